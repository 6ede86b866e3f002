# function
    .intel_syntax noprefix
    .text
# A jump table might lead between the two.
    mov eax, [rdi]
    jmp [rsi]
    mov rdx, [rbx + 24]
    mov eax, [rbx]
    syscall
    ret
