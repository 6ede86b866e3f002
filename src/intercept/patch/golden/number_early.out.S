    .intel_syntax noprefix
    .text
start:
    mov eax, 9
    test rdi, rdi
    je 1f
    mov esi, 4096
1:  {disp32} jmp trampoline
    syscall
behind:
    ret
    .set call_slot, start + 0x1000
    .set full_slot, start + 0x1008
    .set table, start + 0x1040
    .org 0x1400
trampoline:
    mov edx, 3
    lea rsp, [rsp - 128]
    call [rip + full_slot]
    lea rsp, [rsp + 128]
    {disp32} jmp behind
