    .intel_syntax noprefix
    .text
start:
    mov eax, 14
    {disp32} jmp trampoline
    int3
    int3
site:
    syscall
behind:
    ret
    .set call_slot, start + 0x1000
    .set full_slot, start + 0x1008
    .set table, start + 0x1040
    .org 0x1400
trampoline:
    lea rsi, [rip + start + 0x2000]
    lea rsp, [rsp - 128]
    call [rip + full_slot]
    lea rsp, [rsp + 128]
    {disp32} jmp behind
