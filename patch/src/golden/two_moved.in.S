# function
# The number comes from memory, and no instruction of five bytes is there.
    .intel_syntax noprefix
    .text
    mov rdi, [rbx + 8]
    mov rdx, [rbx + 24]
    mov eax, [rbx]
    syscall
    ret
