# libc, function
# Inlined in libc code that keeps something in a vector register.
    .intel_syntax noprefix
    .text
    movdqu xmm0, [rsi]
    mov eax, 10
    syscall
    movdqu [rdi], xmm0
    ret
