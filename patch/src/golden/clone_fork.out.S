    .intel_syntax noprefix
    .text
start:
    xor esi, esi
    mov edi, 0x1200011
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
    mov eax, 56
tail:
    lea rsp, [rsp - 128]
    push [rip + resume]
    call [rip + call_slot]
    lea rsp, [rsp + 136]
    {disp32} jmp behind
    .org 0x1400 + 120, 0xcc
resume:
    .quad 0x10000 + behind - start
