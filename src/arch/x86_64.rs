//! x86-64 Linux: the system-call instruction, thread-local storage without
//! libc, the stubs that patched sites arrive at, and the four memory routines
//! that the compiler takes for granted.

use core::arch::{asm, global_asm};
pub use regall_sys::arch::{ticks, Frame};

/// Bytes of thread-local storage that `crate::thread` uses.
pub const TLS_BYTES: usize = 1088;

// Thread-local storage in the initial-exec model: no __tls_get_addr, which may
// call malloc. A preloaded library's TLS is part of the static block.
global_asm!(
    r#"
    .section .tbss.regall_tls,"awT",@nobits
    .balign 64
    .hidden regall_tls
    .globl regall_tls
    .type regall_tls, @object
    .size regall_tls, {bytes}
regall_tls:
    .skip {bytes}
    .text
"#,
    bytes = const TLS_BYTES,
);

// memcpy and its kin: the compiler calls them; libc's are interposed by
// sanitizers and would be a libc call on the hook path. Hidden, so that nobody
// else is given ours. Starting `rep movsb` takes longer than copying a few structures.
// From 4 KiB to 32 MiB `rep movsb` was within 5 % of libc's where it was measured; a loop with
// AVX2 was no better, non-temporal stores were slower.
// (libFuzzer has its own, by which it learns what is compared with what.)
#[cfg(not(fuzzing))]
global_asm!(
    r#"
    .hidden memcpy
    .globl memcpy
    .type memcpy, @function
memcpy:
    .cfi_startproc
    mov rax, rdi
    cmp rdx, 16
    jb 4f
    cmp rdx, 32
    ja 2f
    movups xmm0, [rsi]
    movups xmm1, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + rdx - 16], xmm1
    ret
2:  cmp rdx, 64
    ja 3f
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + rdx - 32]
    movups xmm3, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + rdx - 32], xmm2
    movups [rdi + rdx - 16], xmm3
    ret
3:  cmp rdx, 128
    ja 7f
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movups xmm4, [rsi + rdx - 64]
    movups xmm5, [rsi + rdx - 48]
    movups xmm6, [rsi + rdx - 32]
    movups xmm7, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
    movups [rdi + rdx - 64], xmm4
    movups [rdi + rdx - 48], xmm5
    movups [rdi + rdx - 32], xmm6
    movups [rdi + rdx - 16], xmm7
    ret
4:  cmp edx, 8
    jb 5f
    mov rcx, [rsi]
    mov r8, [rsi + rdx - 8]
    mov [rdi], rcx
    mov [rdi + rdx - 8], r8
    ret
5:  cmp edx, 4
    jb 6f
    mov ecx, [rsi]
    mov r8d, [rsi + rdx - 4]
    mov [rdi], ecx
    mov [rdi + rdx - 4], r8d
    ret
6:  test edx, edx
    jz 8f
    movzx ecx, byte ptr [rsi + rdx - 1]
    mov [rdi + rdx - 1], cl
    dec edx
    jnz 6b
    ret
7:  mov rcx, rdx
    rep movsb
8:  ret
    .cfi_endproc
    .size memcpy, . - memcpy

    .hidden memmove
    .globl memmove
    .type memmove, @function
memmove:
    .cfi_startproc
    mov rax, rdi
    mov rcx, rdx
    mov r8, rdi
    sub r8, rsi
    cmp r8, rdx
    jb 2f
    rep movsb
    ret
2:  lea rdi, [rdi + rdx - 1]
    lea rsi, [rsi + rdx - 1]
    std
    rep movsb
    cld
    ret
    .cfi_endproc
    .size memmove, . - memmove

    .hidden memset
    .globl memset
    .type memset, @function
memset:
    .cfi_startproc
    mov rax, rdi
    movzx esi, sil
    cmp rdx, 16
    jb 3f
    cmp rdx, 128
    ja 4f
    mov rcx, 0x0101010101010101
    imul rsi, rcx
    movq xmm0, rsi
    punpcklqdq xmm0, xmm0
    lea rcx, [rdi + rdx - 16]
2:  movups [rdi], xmm0
    add rdi, 16
    cmp rdi, rcx
    jb 2b
    movups [rcx], xmm0
    ret
3:  test edx, edx
    jz 5f
    mov [rdi + rdx - 1], sil
    dec edx
    jnz 3b
    ret
4:  mov r8, rax
    mov eax, esi
    mov rcx, rdx
    rep stosb
    mov rax, r8
5:  ret
    .cfi_endproc
    .size memset, . - memset

    .hidden memcmp
    .globl memcmp
    .type memcmp, @function
    .hidden bcmp
    .globl bcmp
    .type bcmp, @function
memcmp:
bcmp:
    .cfi_startproc
    xor ecx, ecx
2:  cmp rcx, rdx
    je 3f
    movzx eax, byte ptr [rdi + rcx]
    movzx r8d, byte ptr [rsi + rcx]
    inc rcx
    sub eax, r8d
    je 2b
    ret
3:  xor eax, eax
    ret
    .cfi_endproc
    .size memcmp, . - memcmp

    .hidden strlen
    .globl strlen
    .type strlen, @function
strlen:
    .cfi_startproc
    mov rax, -1
2:  inc rax
    cmp byte ptr [rdi + rax], 0
    jne 2b
    ret
    .cfi_endproc
    .size strlen, . - strlen
"#
);

/// Start of this thread's block of [`TLS_BYTES`] zero-initialised bytes. Also a
/// number that tells threads apart for the price of two loads (a vfork child
/// has its parent's: it runs in its place).
#[inline]
pub fn tls_block() -> *mut u8 {
    let p: *mut u8;
    // SAFETY: fs:0 holds the thread pointer itself (x86-64 TLS ABI), and the
    // linker fills the GOT entry with the block's offset from it.
    unsafe {
        asm!(
            "mov {p}, qword ptr fs:[0]",
            "add {p}, qword ptr [rip + regall_tls@GOTTPOFF]",
            p = out(reg) p,
            options(nostack, readonly, preserves_flags, pure),
        );
    }
    p
}

/// How far below its thread pointer a thread's block begins, in bytes.
pub fn tls_depth() -> u64 {
    let depth: u64;
    // SAFETY: reads the GOT entry that `tls_block` uses.
    unsafe {
        asm!(
            // Linkers that know the offset rewrite mov and add, and nothing else.
            "mov {d}, qword ptr [rip + regall_tls@GOTTPOFF]",
            "neg {d}",
            d = out(reg) depth,
            options(nostack, readonly, pure),
        );
    }
    depth
}

/// Whether a function that glibc alone has is in this program.
pub fn glibc_is_loaded() -> bool {
    let at: u64;
    // SAFETY: reads the GOT entry that the loader fills; 0 if nobody has the symbol.
    unsafe {
        asm!(
            ".weak gnu_get_libc_version",
            "mov {at}, qword ptr [rip + gnu_get_libc_version@GOTPCREL]",
            at = out(reg) at,
            options(nostack, readonly, preserves_flags, pure),
        );
    }
    at != 0
}

/// What code here finds at its thread pointer: the pointer itself (x86-64 TLS ABI).
///
/// # Safety
/// `at` is valid for writing 8 bytes.
pub unsafe fn make_thread_pointer(at: u64) {
    // SAFETY: by the contract above.
    unsafe { (at as *mut u64).write(at) };
}

// regall_start_thread(flags, stack, tid, tls, entry): clone(2). The new thread calls
// `entry`, which does not return, on its own stack; the old one returns clone's result.
// The kernel gives the thread copies of all registers but rax and rsp.
global_asm!(
    r#"
    .hidden regall_start_thread
    .globl regall_start_thread
    .type regall_start_thread, @function
regall_start_thread:
    .cfi_startproc
    mov r10, rdx
    mov r9, r8
    mov r8, rcx
    mov eax, {clone}
    syscall
    test rax, rax
    jz 2f
    ret
    // A thread begins here: nobody called it.
2:  .cfi_undefined rip
    xor ebp, ebp
    cld
    call r9
    ud2
    .cfi_endproc
    .size regall_start_thread, . - regall_start_thread
"#,
    clone = const libc::SYS_clone,
);

unsafe extern "C" {
    /// Starts a thread with clone(2)'s `flags` at `entry`, on the stack that ends at
    /// `stack` (16-byte aligned), with the thread pointer `tls`. `tid` is where CLONE_PARENT_SETTID
    /// and CLONE_CHILD_CLEARTID write. clone's result: a thread id or -errno.
    pub fn regall_start_thread(
        flags: u64,
        stack: u64,
        tid: *const core::sync::atomic::AtomicU32,
        tls: u64,
        entry: extern "C" fn() -> !,
    ) -> i64;
}

/// The stack pointer, near enough.
#[inline]
pub fn stack_pointer() -> u64 {
    let sp: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}

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

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering::Relaxed};

/// Number of arch_prctl(2).
pub(crate) const ARCH_PRCTL: libc::c_long = libc::SYS_arch_prctl;
/// Bytes that an entry stub takes for the vector registers.
pub(crate) static VECTOR_STATE_BYTES: AtomicU64 = AtomicU64::new(512);
/// Which of them it keeps, for xsave.
pub(crate) static VECTOR_STATE_MASK: AtomicU32 = AtomicU32::new(0);
/// Whether the processor has xsave; else they are kept by fxsave.
pub(crate) static HAS_XSAVE: AtomicU8 = AtomicU8::new(0);

/// What the processor says of itself in a leaf. The function is unsafe before Rust 1.94.
#[allow(unused_unsafe)]
fn cpuid(leaf: u32, subleaf: u32) -> core::arch::x86_64::CpuidResult {
    // SAFETY: every processor of this architecture has the instruction, and it touches no memory.
    unsafe { core::arch::x86_64::__cpuid_count(leaf, subleaf) }
}

/// Finds out how this processor keeps its vector registers. Once, at start-up.
pub fn init() {
    use core::arch::x86_64::_xgetbv;
    let osxsave = cpuid(1, 0).ecx & (1 << 27) != 0;
    if !osxsave {
        return;
    }
    // x87, SSE, AVX and AVX-512 state: all that compiled code here can touch.
    // Not AMX's tiles (8 KiB): we never use them, and the stack may be small.
    const OURS: u64 = 0b1110_0111;
    #[target_feature(enable = "xsave")]
    unsafe fn xcr0() -> u64 {
        // SAFETY: OSXSAVE is set, so xgetbv(0) is allowed.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: as above.
    let mask = unsafe { xcr0() } & OURS;
    let mut bytes = 576u64;
    for component in 2..8u32 {
        if mask & (1 << component) != 0 {
            let leaf = cpuid(0xd, component);
            bytes = bytes.max(u64::from(leaf.eax) + u64::from(leaf.ebx));
        }
    }
    VECTOR_STATE_BYTES.store((bytes + 63) & !63, Relaxed);
    VECTOR_STATE_MASK.store(mask as u32, Relaxed);
    HAS_XSAVE.store(1, Relaxed);
}

/// While this lives, this thread may use memory of every protection key (pkeys(7)).
pub struct AllKeys {
    /// What it may do otherwise; 0: anything, or the processor has no keys.
    rights: u32,
}

impl AllKeys {
    /// From now on.
    pub fn take() -> Self {
        const OSPKE: u32 = 1 << 4;
        let leaf = cpuid(7, 0);
        if cpuid(0, 0).eax < 7 || leaf.ecx & OSPKE == 0 {
            return Self { rights: 0 };
        }
        let rights: u32;
        // SAFETY: with OSPKE the instruction (rdpkru) is there, and reads a register.
        unsafe {
            asm!(".byte 0x0f, 0x01, 0xee", in("ecx") 0, out("eax") rights, out("edx") _,
                options(nomem, nostack, preserves_flags));
        }
        let keys = Self { rights };
        if rights != 0 {
            Self::allow(0);
        }
        keys
    }

    fn allow(rights: u32) {
        // SAFETY: with OSPKE the instruction (wrpkru) is there. What memory may be used
        // changes; not `nomem`, so that no access is moved across.
        unsafe {
            asm!(".byte 0x0f, 0x01, 0xef", in("ecx") 0, in("eax") rights, in("edx") 0,
                options(nostack, preserves_flags));
        }
    }
}

impl Drop for AllKeys {
    fn drop(&mut self) {
        if self.rights != 0 {
            Self::allow(self.rights);
        }
    }
}

/// What lies on the stack under a signal handler (the kernel's `struct
/// ucontext`), as far as anything here uses it.
#[repr(C)]
pub struct SignalContext {
    flags: u64,
    link: u64,
    /// The alternate stack that the end of the handler puts back: address,
    /// flags, bytes.
    pub stack: [u64; 3],
    r8: u64,
    r9: u64,
    r10: u64,
    r11_to_r15: [u64; 5],
    rdi: u64,
    rsi: u64,
    rbp_rbx: [u64; 2],
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    rip: u64,
    rest: [u64; 15],
    /// The signal mask that the end of the handler puts back, a bit a signal.
    pub mask: u64,
}

/// Bytes of a system-call instruction, `syscall` or `int 0x80`.
const CALL_BYTES: u64 = 2;

impl SignalContext {
    /// The system call that the interrupted instruction asks for.
    pub fn frame(&self) -> Frame {
        let args = [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9];
        // The kernel goes by eax, whatever is above it in rax.
        Frame {
            nr: u64::from(self.rax as u32),
            args,
        }
    }

    /// What the call that was asked for returned.
    pub fn set_result(&mut self, value: i64) {
        self.rax = value as u64;
    }

    /// The address behind the interrupted system-call instruction.
    pub fn behind(&self) -> u64 {
        self.rip
    }

    /// The instruction is to be executed (again).
    pub fn rewind(&mut self) {
        self.rip = self.rip.wrapping_sub(CALL_BYTES);
    }

    /// The stack pointer.
    pub fn stack_pointer(&self) -> u64 {
        self.rsp
    }

    /// The program goes on on another stack.
    pub fn set_stack_pointer(&mut self, sp: u64) {
        self.rsp = sp;
    }
}

/// What the kernel calls the instruction set of 64-bit system calls.
pub const AUDIT_ARCH: u32 = 0xc000_003e;
/// The code that a signal handler returns to: `mov $15, %rax; syscall`.
pub const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// `syscall; ret`, as at the end of getpid and its like.
pub const CALL_AND_RETURN: [u8; 3] = [0x0f, 0x05, 0xc3];

// regall_arrive(frame): an arrival that comes from code here.
// regall_call_at(frame, at): the call `frame`, by a `syscall; ret` elsewhere.
// regall_sigreturn_at(sp, at): ends the signal handler whose frame is at `sp`
//   by the restorer at `at`.
global_asm!(
    r#"
    .macro regall_load frame
    mov rax, qword ptr [\frame]
    mov rdi, qword ptr [\frame + 8]
    mov rsi, qword ptr [\frame + 16]
    mov rdx, qword ptr [\frame + 24]
    mov r10, qword ptr [\frame + 32]
    mov r8, qword ptr [\frame + 40]
    mov r9, qword ptr [\frame + 48]
    .endm

    .hidden regall_arrive
    .globl regall_arrive
    .type regall_arrive, @function
regall_arrive:
    .cfi_startproc
    sub rsp, 8
    .cfi_adjust_cfa_offset 8
    mov r11, rdi
    regall_load r11
    call regall_entry_call
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .size regall_arrive, . - regall_arrive

    .hidden regall_call_at
    .globl regall_call_at
    .type regall_call_at, @function
regall_call_at:
    .cfi_startproc
    sub rsp, 8
    .cfi_adjust_cfa_offset 8
    mov r11, rdi
    mov rcx, rsi
    regall_load r11
    call rcx
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .size regall_call_at, . - regall_call_at

    .hidden regall_sigreturn_at
    .globl regall_sigreturn_at
    .type regall_sigreturn_at, @function
regall_sigreturn_at:
    .cfi_startproc
    mov rsp, rdi
    // The next frame is the interrupted code's, by the kernel's frame at rsp.
    .cfi_undefined rip
    jmp rsi
    .cfi_endproc
    .size regall_sigreturn_at, . - regall_sigreturn_at
"#
);

unsafe extern "C" {
    /// As [`regall_entry_call`], for calls that did not come by a trampoline.
    pub fn regall_arrive(frame: *const Frame) -> i64;
    /// Makes the call `frame` with the [`CALL_AND_RETURN`] at address `at`.
    pub fn regall_call_at(frame: *const Frame, at: u64) -> i64;
    /// Ends the signal handler whose context is at `sp` with the [`RESTORER`] at `at`.
    pub fn regall_sigreturn_at(sp: u64, at: u64) -> !;
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn a_signal_context_is_libcs() {
        let registers = offset_of!(libc::ucontext_t, uc_mcontext);
        let at = |register: i32| registers + 8 * register as usize;
        assert_eq!(
            offset_of!(SignalContext, stack),
            offset_of!(libc::ucontext_t, uc_stack)
        );
        assert_eq!(offset_of!(SignalContext, r8), at(libc::REG_R8));
        assert_eq!(offset_of!(SignalContext, r10), at(libc::REG_R10));
        assert_eq!(offset_of!(SignalContext, rdi), at(libc::REG_RDI));
        assert_eq!(offset_of!(SignalContext, rsi), at(libc::REG_RSI));
        assert_eq!(offset_of!(SignalContext, rdx), at(libc::REG_RDX));
        assert_eq!(offset_of!(SignalContext, rax), at(libc::REG_RAX));
        assert_eq!(offset_of!(SignalContext, rsp), at(libc::REG_RSP));
        assert_eq!(offset_of!(SignalContext, rip), at(libc::REG_RIP));
        // libc's own uc_sigmask stands where the kernel's does.
        assert_eq!(
            offset_of!(SignalContext, mask),
            offset_of!(libc::ucontext_t, uc_sigmask)
        );
    }
}
