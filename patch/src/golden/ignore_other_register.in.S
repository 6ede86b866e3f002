# function
    .intel_syntax noprefix
    .text
# mov r8d, 9 has the bytes of mov eax, 9 in it.
    mov eax, 1
    mov r8d, 9
    syscall
    ret
