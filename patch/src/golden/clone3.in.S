# function
    .intel_syntax noprefix
    .text
    mov eax, 435
    syscall
    ret
