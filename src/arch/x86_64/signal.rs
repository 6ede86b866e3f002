//! What a signal handler finds on its stack, and calls that come from one.

use core::arch::global_asm;
use regall_sys::arch::Frame;

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
