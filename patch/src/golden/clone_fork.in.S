# libc, function
# _Fork: the hook only sees what copies the address space.
    .intel_syntax noprefix
    .text
    xor esi, esi
    mov edi, 0x1200011
    mov eax, 56
    syscall
    ret
