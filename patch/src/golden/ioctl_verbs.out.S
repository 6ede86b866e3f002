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
slot:
    .skip 75 - (tail - trampoline)
trampoline:
    mov eax, 16
    cmp esi, 0xc0181b01
    je tail
    cmp esi, 0xc020aa00
    jne back
tail:
    lea rsp, [rsp - 128]
    push [rip + resume]
    call [rip + call_slot]
    lea rsp, [rsp + 136]
    {disp32} jmp behind
back:
    {disp32} jmp site
    .org 0x1400 + 120, 0xcc
resume:
    .quad 0x10000 + behind - start
