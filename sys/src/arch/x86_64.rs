//! x86-64 Linux: the system-call instruction and the time-stamp counter.

use core::arch::asm;

/// What seccomp filters see of the processor: AUDIT_ARCH_X86_64.
pub const AUDIT: u32 = 0xc000_003e;

/// What a system-call site had in its registers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// System-call number (rax).
    pub nr: u64,
    /// Arguments (rdi, rsi, rdx, r10, r8, r9).
    pub args: [u64; 6],
}

/// Enters the kernel with `nr` and up to six arguments. Returns what the kernel
/// left in rax: a value, or -errno in -4095..=-1.
///
/// # Safety
/// The caller answers for what the call does to the process.
#[inline]
pub unsafe fn syscall6(nr: u64, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> i64 {
    let ret: i64;
    // SAFETY: the kernel clobbers rax, rcx and r11 only; memory effects are the
    // caller's responsibility and the asm block is not `nomem`.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr as i64 => ret,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    ret
}

/// The same for the application's own call. Where the instruction stands is noted in a
/// section that is never loaded, so that what looks on from outside (tests, by ptrace) can
/// tell the application's calls from the shim's: both come from this library's text.
///
/// # Safety
/// Exactly as safe as the application's own system call was.
#[inline]
pub unsafe fn application_call(frame: &Frame) -> i64 {
    let [a, b, c, d, e, f] = frame.args;
    let ret: i64;
    // SAFETY: as above.
    unsafe {
        asm!(
            "2: syscall",
            ".pushsection .regall.application,\"\",@progbits",
            ".quad 2b",
            ".popsection",
            inlateout("rax") frame.nr as i64 => ret,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    ret
}

/// The processor's time-stamp counter, for cheap interval measurements.
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: rdtsc is available to user space on every kernel that MPI runs on
    // unless PR_SET_TSC forbids it, which `time::ticks_allowed` checks first.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// What tells the calling thread from all others, for the price of a load: its thread pointer.
/// A vfork child has its parent's: it runs in its place.
#[inline]
pub fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: fs:0 holds the thread pointer itself (x86-64 TLS ABI).
    unsafe {
        asm!(
            "mov {p}, qword ptr fs:[0]",
            p = out(reg) pointer,
            options(nostack, readonly, preserves_flags, pure),
        );
    }
    pointer
}
