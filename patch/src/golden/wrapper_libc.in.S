# libc, function
# glibc's munmap: the function-call ABI holds.
    .intel_syntax noprefix
    .text
    mov eax, 11
    syscall
    cmp rax, -4095
    jae 1f
    ret
1:  mov rax, -1
    ret
