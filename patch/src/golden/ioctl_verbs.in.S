# libc, function, ioctl, verbs
    .intel_syntax noprefix
    .text
    mov eax, 16
    syscall
    ret
