    .intel_syntax noprefix
    .text
start:
    {disp32} jmp trampoline
site:
    syscall
behind:
    ret
    .set call_slot, start + 0x1000
    .set full_slot, start + 0x1008
    .set table, start + 0x1040
    .org 0x1400
trampoline:
    mov eax, 435
    lea rsp, [rsp - 128]
    call [rip + full_slot]
    lea rsp, [rsp + 128]
    {disp32} jmp behind
