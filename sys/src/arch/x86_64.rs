//! x86-64 Linux: the system-call instruction and the time-stamp counter.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicPtr, Ordering::Release};

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

/// Says whether a call, number and arguments, is not to be made.
pub type IsStopped = extern "C" fn(&[u64; 7]) -> bool;

/// Who is asked before each call; null: nobody.
static ASKED: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Has `is_stopped` asked before each call of [`enter`]'s from now on.
pub fn ask_first(is_stopped: IsStopped) {
    ASKED.store(is_stopped as *mut (), Release);
}

/// Enters the kernel with `call`, number and up to six arguments. Returns what the kernel left in
/// rax: a value, or -errno in -4095..=-1. If who is asked first ([`ask_first`]) stops the call it is
/// not made, and -EPERM is returned. There is one instruction for all calls, in `regall_enter`: to ask
/// at each place would make the library a tenth larger.
///
/// # Safety
/// The caller answers for what the call does to the process.
#[inline]
pub(crate) unsafe fn enter(call: [u64; 7]) -> i64 {
    let [nr, a, b, c, d, e, f] = call;
    let ret: i64;
    // SAFETY: the function clobbers what any function may, and the stack below.
    unsafe {
        asm!(
            "call {enter}",
            enter = sym regall_enter,
            inlateout("rax") nr as i64 => ret,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            clobber_abi("sysv64"),
        );
    }
    ret
}

extern "C" {
    /// Takes what the kernel takes, where the kernel takes it.
    fn regall_enter();
}

// At the instruction the stack's top is the address that the call came from: what looks on from
// outside (tests, by ptrace) tells the places apart by it. Where the instruction stands is noted as
// that of the application's calls is.
global_asm!(
    ".pushsection .text.regall_enter,\"ax\",@progbits",
    ".globl regall_enter",
    ".hidden regall_enter",
    ".type regall_enter,@function",
    ".p2align 4",
    "regall_enter:",
    ".cfi_startproc",
    "cmp qword ptr [rip + {asked}], 0",
    "jne 3f",
    "2: syscall",
    "ret",
    // The array that is asked about lies on the stack.
    "3: push r9",
    ".cfi_adjust_cfa_offset 8",
    "push r8",
    ".cfi_adjust_cfa_offset 8",
    "push r10",
    ".cfi_adjust_cfa_offset 8",
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "mov rdi, rsp",
    "call qword ptr [rip + {asked}]",
    "mov ecx, eax",
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdx",
    ".cfi_adjust_cfa_offset -8",
    "pop r10",
    ".cfi_adjust_cfa_offset -8",
    "pop r8",
    ".cfi_adjust_cfa_offset -8",
    "pop r9",
    ".cfi_adjust_cfa_offset -8",
    "test cl, cl",
    "je 2b",
    "mov rax, {stopped}",
    "ret",
    ".cfi_endproc",
    ".size regall_enter, . - regall_enter",
    ".popsection",
    ".pushsection .regall.entered,\"\",@progbits",
    ".quad 2b",
    ".popsection",
    asked = sym ASKED,
    stopped = const -(crate::errno::Errno::PERM.0),
);

/// The same for the application's own call, of which nobody is asked. Where the instruction stands is
/// noted in a section that is never loaded, so that what looks on from outside (tests, by ptrace) can
/// tell the application's calls from the shim's: both come from this library's text.
///
/// # Safety
/// Exactly as safe as the application's own system call was.
#[inline]
pub unsafe fn application_call(frame: &Frame) -> i64 {
    let [a, b, c, d, e, f] = frame.args;
    let ret: i64;
    // SAFETY: the kernel clobbers rax, rcx and r11 only; memory effects are the
    // caller's responsibility and the asm block is not `nomem`.
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

/// Makes a child by clone(2) with `flags`, CLONE_VM and CLONE_VFORK among them, that calls `f` with
/// `with` on this thread's stack, as this thread, and ends. Returns the child's id, or -errno, when it has
/// ended.
///
/// # Safety
/// `f` and what it gets may be used by this thread now.
pub(crate) unsafe fn call_in_child(flags: u64, f: extern "C" fn(*mut ()), with: *mut ()) -> i64 {
    let ret: i64;
    // SAFETY: this thread sleeps while its child uses the stack below this frame.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rdi, r12",
            "call r13",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "mov eax, {exit_group}",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit,
            exit_group = const libc::SYS_exit_group,
            inlateout("rax") libc::SYS_clone => ret,
            in("rdi") flags,
            in("rsi") 0,
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            in("r12") with,
            in("r13") f,
            lateout("rcx") _,
            lateout("r11") _,
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
