//! The stubs that trampolines call, and the ways out of a hook.

use regall_sys::arch::Frame;

/// Number of arch_prctl(2).
pub(crate) const ARCH_PRCTL: libc::c_long = libc::SYS_arch_prctl;

// The stubs that trampolines call. On entry (after the trampoline's `call`):
// rax = number, rdi rsi rdx r10 r8 r9 = arguments as at the site, rcx and r11
// free, the red zone already skipped. They must keep everything but rax, rcx
// and r11, as a `syscall` instruction does.
//
// regall_entry_call: for wrapper functions, where the caller-saved vector
//   registers are dead by the function-call ABI.
// regall_entry_full: for a site in the middle of anybody's code: the vector
//   state is kept too, by xsave where the processor has it.
//
// Who makes them names what they call: `hook(frame, outer)` does the rest and returns
// rax, and `left(outer, rax)` puts back what was kept in `outer`. Two calls and not
// one, because the kernel leaves nothing of the processor's memory of return addresses:
// every return after the system call to a frame from before it is mispredicted, so
// there are few of them (`hook` goes on to the call's handler by tail calls).
//
// The callee-saved registers and the address to resume at stand right behind the
// frame, so that a panic in a hook can go back to the program from any depth
// (`resume`).
macro_rules! entry_stubs {
    ($hook:path, $left:path, $outer:ty) => {
core::arch::global_asm!(
    r#"
    .hidden regall_entry_call
    .globl regall_entry_call
    .type regall_entry_call, @function
regall_entry_call:
    .cfi_startproc
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    push rbx
    .cfi_offset rbx, -24
    push r12
    .cfi_offset r12, -32
    push r13
    .cfi_offset r13, -40
    push r14
    .cfi_offset r14, -48
    push r15
    .cfi_offset r15, -56
    lea rcx, [rip + 2f]
    push rcx
    push r9
    push r8
    push r10
    push rdx
    push rsi
    push rdi
    push rax
    mov rdi, rsp
    sub rsp, {outer}
    mov rsi, rsp
    and rsp, -16
    cld
    call {hook}
    lea rdi, [rbp - 104 - {outer}]
    mov rsi, rax
    call {left}
    lea rcx, [rbp - 104]
    // Whoever comes from `regall_resume` has no rbp yet.
2:  .cfi_def_cfa rcx, 120
    lea rbp, [rcx + 104]
    .cfi_def_cfa rbp, 16
    mov rbx, qword ptr [rbp - 8]
    .cfi_restore rbx
    mov r12, qword ptr [rbp - 16]
    .cfi_restore r12
    mov r13, qword ptr [rbp - 24]
    .cfi_restore r13
    mov r14, qword ptr [rbp - 32]
    .cfi_restore r14
    mov r15, qword ptr [rbp - 40]
    .cfi_restore r15
    mov r9, qword ptr [rbp - 56]
    mov r8, qword ptr [rbp - 64]
    mov r10, qword ptr [rbp - 72]
    mov rdx, qword ptr [rbp - 80]
    mov rsi, qword ptr [rbp - 88]
    mov rdi, qword ptr [rbp - 96]
    leave
    .cfi_restore rbp
    .cfi_def_cfa rsp, 8
    ret
    .cfi_endproc
    .size regall_entry_call, . - regall_entry_call

    .hidden regall_entry_full
    .globl regall_entry_full
    .type regall_entry_full, @function
regall_entry_full:
    .cfi_startproc
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    pushfq
    push rbx
    .cfi_offset rbx, -32
    push r12
    .cfi_offset r12, -40
    push r13
    .cfi_offset r13, -48
    push r14
    .cfi_offset r14, -56
    push r15
    .cfi_offset r15, -64
    lea rcx, [rip + 2f]
    push rcx
    push r9
    push r8
    push r10
    push rdx
    push rsi
    push rdi
    push rax
    mov r12, rsp
    sub rsp, 8 + {outer}
    sub rsp, qword ptr [rip + {size}]
    and rsp, -64
    mov qword ptr [r12 - 8], rsp
    cmp byte ptr [rip + {xsave}], 0
    je 3f
    // The header of an xsave area must be zero where xsave does not write it.
    xor ecx, ecx
    mov qword ptr [rsp + 512], rcx
    mov qword ptr [rsp + 520], rcx
    mov qword ptr [rsp + 528], rcx
    mov qword ptr [rsp + 536], rcx
    mov qword ptr [rsp + 544], rcx
    mov qword ptr [rsp + 552], rcx
    mov qword ptr [rsp + 560], rcx
    mov qword ptr [rsp + 568], rcx
    mov eax, dword ptr [rip + {mask}]
    xor edx, edx
    xsave64 [rsp]
    jmp 4f
3:  fxsave64 [rsp]
4:  mov rdi, r12
    lea rsi, [r12 - 8 - {outer}]
    cld
    call {hook}
    lea rdi, [r12 - 8 - {outer}]
    mov rsi, rax
    call {left}
    mov rcx, r12
    .hidden regall_back_full
    .globl regall_back_full
regall_back_full:
2:  .cfi_def_cfa rcx, 128
    lea rbp, [rcx + 112]
    .cfi_def_cfa rbp, 16
    mov r12, rax
    mov rcx, qword ptr [rcx - 8]
    cmp byte ptr [rip + {xsave}], 0
    je 5f
    mov eax, dword ptr [rip + {mask}]
    xor edx, edx
    xrstor64 [rcx]
    jmp 6f
5:  fxrstor64 [rcx]
6:  mov rax, r12
    mov rbx, qword ptr [rbp - 16]
    .cfi_restore rbx
    mov r12, qword ptr [rbp - 24]
    .cfi_restore r12
    mov r13, qword ptr [rbp - 32]
    .cfi_restore r13
    mov r14, qword ptr [rbp - 40]
    .cfi_restore r14
    mov r15, qword ptr [rbp - 48]
    .cfi_restore r15
    mov r9, qword ptr [rbp - 64]
    mov r8, qword ptr [rbp - 72]
    mov r10, qword ptr [rbp - 80]
    mov rdx, qword ptr [rbp - 88]
    mov rsi, qword ptr [rbp - 96]
    mov rdi, qword ptr [rbp - 104]
    lea rsp, [rbp - 8]
    popfq
    pop rbp
    .cfi_restore rbp
    .cfi_def_cfa rsp, 8
    ret
    .cfi_endproc
    .size regall_entry_full, . - regall_entry_full

    // regall_resume(frame, value): leaves a hook from any depth below `frame`.
    .hidden regall_resume
    .globl regall_resume
    .type regall_resume, @function
regall_resume:
    .cfi_startproc
    mov rcx, rdi
    mov rax, rsi
    jmp qword ptr [rcx + 56]
    .cfi_endproc
    .size regall_resume, . - regall_resume

    // regall_land(frame, value, target, stack, tls): leaves a hook from any depth below
    // `frame`, for `target` with the stack pointer `stack`. The thread pointer becomes `tls`
    // unless that is -1. Which of the two stubs built the frame, the address behind it says.
    .hidden regall_land
    .globl regall_land
    .type regall_land, @function
regall_land:
    .cfi_startproc
    // It takes the stack and the registers apart: a walk ends here.
    .cfi_undefined rip
    mov rbx, rdi
    mov r12, rsi
    mov r13, rdx
    mov r14, rcx
    mov r15, r8
    and rsp, -16
    cld
    lea rdi, [rbx - {outer}]
    lea rax, [rip + regall_back_full]
    cmp qword ptr [rbx + 56], rax
    jne 2f
    sub rdi, 8
2:  mov rsi, r12
    call {left}
    cmp r15, -1
    je 3f
    mov edi, 0x1002 // ARCH_SET_FS
    mov rsi, r15
    mov eax, {arch_prctl}
    syscall
3:  lea rax, [rip + regall_back_full]
    cmp qword ptr [rbx + 56], rax
    je 4f
    mov rax, r12
    mov r11, r13
    mov rcx, r14
    lea rbp, [rbx + 104]
    mov rbx, qword ptr [rbp - 8]
    mov r12, qword ptr [rbp - 16]
    mov r13, qword ptr [rbp - 24]
    mov r14, qword ptr [rbp - 32]
    mov r15, qword ptr [rbp - 40]
    mov r9, qword ptr [rbp - 56]
    mov r8, qword ptr [rbp - 64]
    mov r10, qword ptr [rbp - 72]
    mov rdx, qword ptr [rbp - 80]
    mov rsi, qword ptr [rbp - 88]
    mov rdi, qword ptr [rbp - 96]
    mov rbp, qword ptr [rbp]
    mov rsp, rcx
    jmp r11
4:  mov rcx, qword ptr [rbx - 8]
    cmp byte ptr [rip + {xsave}], 0
    je 5f
    mov eax, dword ptr [rip + {mask}]
    xor edx, edx
    xrstor64 [rcx]
    jmp 6f
5:  fxrstor64 [rcx]
6:  mov rax, r12
    mov r11, r13
    mov rcx, r14
    lea rbp, [rbx + 112]
    push qword ptr [rbp - 8]
    popfq
    mov rbx, qword ptr [rbp - 16]
    mov r12, qword ptr [rbp - 24]
    mov r13, qword ptr [rbp - 32]
    mov r14, qword ptr [rbp - 40]
    mov r15, qword ptr [rbp - 48]
    mov r9, qword ptr [rbp - 64]
    mov r8, qword ptr [rbp - 72]
    mov r10, qword ptr [rbp - 80]
    mov rdx, qword ptr [rbp - 88]
    mov rsi, qword ptr [rbp - 96]
    mov rdi, qword ptr [rbp - 104]
    mov rbp, qword ptr [rbp]
    mov rsp, rcx
    jmp r11
    .cfi_endproc
    .size regall_land, . - regall_land
"#,
    arch_prctl = const $crate::arch::ARCH_PRCTL,
    hook = sym $hook,
    left = sym $left,
    outer = const size_of::<$outer>(),
    size = sym $crate::arch::VECTOR_STATE_BYTES,
    xsave = sym $crate::arch::HAS_XSAVE,
    mask = sym $crate::arch::VECTOR_STATE_MASK,
);
    };
}
pub(crate) use entry_stubs;

unsafe extern "C" {
    /// Arrival from a wrapper function's site. Called by trampolines only.
    pub fn regall_entry_call();
    /// Arrival from any other site. Called by trampolines only.
    pub fn regall_entry_full();
    /// Goes back to the site whose arrival `frame` is, with `value` in rax, from
    /// any depth of the hook.
    pub fn regall_resume(frame: *mut Frame, value: i64) -> !;
    fn regall_land(frame: *mut Frame, value: i64, target: u64, stack: u64, tls: u64) -> !;
    fn regall_back_full();
}

/// Where an arrival goes back to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Landing {
    /// Address of the code.
    pub target: u64,
    /// Stack pointer there.
    pub stack: u64,
    /// Thread pointer there; `None`: as it is.
    pub tls: Option<u64>,
}

/// Where the entry stub that built `frame` returns to, and its stack pointer there: in the
/// trampoline, below the red zone that it has skipped.
///
/// # Safety
/// `frame` is what an entry stub built on this thread's stack.
pub unsafe fn way_back(frame: *const Frame) -> Landing {
    let at = frame as u64;
    // SAFETY: the address to resume at stands right behind the frame.
    let resume = unsafe { (frame.add(1)).cast::<u64>().read() };
    let saved = if resume == regall_back_full as *const () as u64 {
        120
    } else {
        112
    };
    // SAFETY: there the trampoline's call has left its return address.
    let target = unsafe { ((at + saved) as *const u64).read() };
    Landing {
        target,
        stack: at + saved + 8,
        tls: None,
    }
}

/// Leaves the hook whose arrival `frame` is, from any depth below it, with `value` in rax and
/// all other registers as they were at the site, but for what `landing` says.
///
/// # Safety
/// `frame` is what an entry stub built on this thread's stack, and nothing that is between
/// here and there has to be dropped.
pub unsafe fn land(frame: *mut Frame, value: i64, landing: Landing) -> ! {
    let Landing { target, stack, tls } = landing;
    // SAFETY: by the contract above.
    unsafe { regall_land(frame, value, target, stack, tls.unwrap_or(u64::MAX)) }
}
