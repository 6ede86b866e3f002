# function
    .intel_syntax noprefix
    .text
    xor eax, eax
    syscall
    ret
