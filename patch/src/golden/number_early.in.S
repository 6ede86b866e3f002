# function
# An inlined mmap: the number is known, though it is loaded early.
    .intel_syntax noprefix
    .text
    mov eax, 9
    test rdi, rdi
    je 1f
    mov esi, 4096
1:  mov edx, 3
    syscall
    ret
