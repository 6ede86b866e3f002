//! x86-64 Linux: thread-local storage without libc, the stubs that patched sites arrive at,
//! and the four memory routines that the compiler takes for granted.

use core::arch::asm;
pub use regall_sys::arch::{ticks, Frame};

#[cfg(not(fuzzing))] // libFuzzer has its own, by which it learns what is compared with what
mod memory;
mod signal;
mod state;
mod stubs;
mod thread;

pub use signal::*;
pub use state::*;
pub use stubs::*;
pub use thread::*;

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

/// The instruction, stack and frame pointers of the function that this becomes a part of: where
/// a walk of its stack begins.
#[inline(always)]
pub fn registers() -> [u64; 3] {
    let (instruction, stack, frame): (u64, u64, u64);
    // SAFETY: reads registers.
    unsafe {
        asm!(
            "lea {}, [rip]",
            "mov {}, rsp",
            "mov {}, rbp",
            out(reg) instruction,
            out(reg) stack,
            out(reg) frame,
            options(nomem, nostack, preserves_flags),
        );
    }
    [instruction, stack, frame]
}

/// The stack pointer, near enough.
#[inline]
pub fn stack_pointer() -> u64 {
    let sp: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}
