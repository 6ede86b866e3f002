# function
    .intel_syntax noprefix
    .text
    call 1f
    syscall
1:  ret
