# 
    .intel_syntax noprefix
    .text
# Nothing tells whether a branch comes between the two.
    endbr64
    mov rdx, [rbx + 24]
    mov eax, [rbx]
    syscall
    ret
