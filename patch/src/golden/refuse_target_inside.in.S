# function
    .intel_syntax noprefix
    .text
# A branch comes between the two instructions that would move.
    mov eax, [rbx]
1:  mov rdx, [rbx + 24]
    mov edi, edx
    syscall
    test eax, eax
    jne 2f
    ret
2:  mov edx, 7
    jmp 1b + 4
