//! Thread-local storage without libc, and threads of our own.

use core::arch::{asm, global_asm};

/// Bytes of thread-local storage that `crate::thread` uses.
pub const TLS_BYTES: usize = 1152;

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
