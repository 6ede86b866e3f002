# function
# The same bytes in another library: vector registers may be alive.
    .intel_syntax noprefix
    .text
    mov eax, 11
    syscall
    ret
