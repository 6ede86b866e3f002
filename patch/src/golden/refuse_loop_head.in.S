# function
    .intel_syntax noprefix
    .text
# The first of the two is a loop's head, and too short.
    mov esi, [rdi]
    mov eax, esi
    jmp 1f
    nop
1:  mov edi, edx
    syscall
    jmp 1b
