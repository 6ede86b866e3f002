# libc, function
# glibc's __syscall_cancel_arch, 2.41 and later: the interrupted address tells whether a
# cancellation came before the call, so nothing of it may be elsewhere.
    .intel_syntax noprefix
    .text
    endbr64
    mov eax, [rdi]
    test byte ptr [rdi], 8
    jne away
    mov r11, rdi
    mov rax, rsi
    mov rdi, rdx
    mov rsi, rcx
    mov rdx, r8
    mov r10, r9
    mov r8, [rsp + 8]
    mov r9, [rsp + 16]
    mov [rsp + 8], r11
    syscall
    ret
function_end:
    .skip 64, 0x90
away:
    ret
