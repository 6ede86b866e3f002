    .intel_syntax noprefix
    .text
start:
    {disp32} jmp trampoline
    syscall
behind:
    ret
    .set call_slot, start + 0x1000
    .set full_slot, start + 0x1008
    .set table, start + 0x1040
    .org 0x1400
slot:
    .skip 75 - (tail - trampoline)
trampoline:
    mov eax, 13
tail:
    lea rsp, [rsp - 128]
    push [rip + resume]
    call [rip + full_slot]
    lea rsp, [rsp + 136]
    {disp32} jmp behind
    .org 0x1400 + 120, 0xcc
resume:
    .quad 0x10000 + behind - start
