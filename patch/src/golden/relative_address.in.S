# function, strict
# As pthread_create blocks all signals: what is addressed moves along.
    .intel_syntax noprefix
    .text
start:
    mov eax, 14
    lea rsi, [rip + start + 0x2000]
    syscall
    ret
