# function
    .intel_syntax noprefix
    .text
# The number waits in a register, in a loop, behind padding and a call.
    mov r8d, 202
    jmp 1f
    nop word ptr [rax + rax]
2:  call 3f
    nop
1:  xor r10d, r10d
    mov eax, r8d
    syscall
    cmp eax, -11
    je 1b
    jne 2b
3:  ret
