    .intel_syntax noprefix
    .text
start:
    mov rdi, [rbx + 8]
    {disp32} jmp trampoline
    int3
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
    mov rdx, [rbx + 24]
    mov eax, [rbx]
    cmp eax, 512
    jae back
    mov ecx, eax
    lea r11, [rip + table]
    movzx ecx, byte ptr [r11 + rcx]
    jrcxz back
    cmp ecx, 3
    jb hook
    cmp esi, 0xc020aa00
    jne back
hook:
    mov eax, eax
tail:
    lea rsp, [rsp - 128]
    push [rip + resume]
    call [rip + full_slot]
    lea rsp, [rsp + 136]
    {disp32} jmp behind
back:
    {disp32} jmp site
    .org 0x1400 + 120, 0xcc
resume:
    .quad 0x10000 + behind - start
