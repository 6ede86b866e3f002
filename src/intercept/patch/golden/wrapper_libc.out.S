    .intel_syntax noprefix
    .text
start:
    {disp32} jmp trampoline
    syscall
behind:
    cmp rax, -4095
    jae 1f
    ret
1:  mov rax, -1
    ret
    .set call_slot, start + 0x1000
    .set full_slot, start + 0x1008
    .set table, start + 0x1040
    .org 0x1400
trampoline:
    mov eax, 11
    lea rsp, [rsp - 128]
    call [rip + call_slot]
    lea rsp, [rsp + 128]
    {disp32} jmp behind
