//! The pool: trampolines inside the library's own text, with unwind information.
//!
//! Unwinders (libgcc, gdb, perf, libunwind) find a function's frame by the module
//! that its address is in and that module's `.eh_frame`, both of which the pool has
//! because it is a section of the library. A slot is filled at run time, in a fixed
//! shape: what is around the call into the hook stands at [`TAIL`], what varies ends
//! there. So the rows of the table are written down here, once for all slots:
//!
//! - Where the stack is as at the site, the frame is that of a function called from
//!   there: the caller's stack pointer is our own, and the return address is the
//!   slot's word, [`WORD`], the address behind the site's `syscall`. The patched
//!   function's own table goes on from there, whatever it has pushed.
//! - Once that word is on the stack, the return address is taken from the stack. That
//!   is what stands below a hook, and needs no memory but the stack (perf has no other).
//! - A reader that has the file and not the memory (perf) finds a word of zero. It
//!   takes the function to be one that has pushed nothing, as libc's are: the return
//!   address is then an address in the word itself, whose row says so.

use core::arch::global_asm;
use regall_directory::addr::PageRange;
use regall_patch::plan::{TAIL, TRAMPOLINE_BYTES, WORD};
use regall_patch::zone::HEADER_BYTES;

/// Bytes of the pool.
const POOL_BYTES: u64 = 32 << 10;
/// Slots that share an entry of the unwind table: an unwinder reads all rows before
/// the one that it looks for.
const TOGETHER: u64 = 8;
const SLOTS: u64 = (POOL_BYTES - HEADER_BYTES) / TRAMPOLINE_BYTES as u64;

// The expression counts on a slot's beginning being its address without the low 7 bits.
const _: () = assert!(TRAMPOLINE_BYTES == 128);
const _: () = assert!(SLOTS % TOGETHER == 0);
const _: () = assert!(WORD + 8 == TRAMPOLINE_BYTES);
// Both are bytes of the expression.
const _: () = assert!(WORD == 0x78);

// 0x16, 16, 29: DW_CFA_val_expression of register 16 (the return address), 29 bytes, in which
// `word` is breg16 0; const1s -128; and; plus_uconst WORD; deref:
//   word; lit0; lit0; word; ge; minus (all ones if the word is 0, else 0);
//   breg16 0; const1s -128; and; plus_uconst WORD + 4; and; plus
// Without dup, bra and drop, which valgrind's reader does not know.
global_asm!(
    r#"
    .section .regall.pool,"ax",@progbits
    .balign 4096
    .hidden regall_trampolines
    .globl regall_trampolines
    .type regall_trampolines, @function
regall_trampolines:
    .skip {header}
    .rept {groups}
    .cfi_startproc
    .cfi_def_cfa_offset 0
    .cfi_escape 0x16, 16, 29, 0x80, 0, 0x09, 0x80, 0x1a, 0x23, 0x78, 0x06, 0x30, 0x30, 0x80, 0, 0x09, 0x80, 0x1a, 0x23, 0x78, 0x06, 0x2a, 0x1c, 0x80, 0, 0x09, 0x80, 0x1a, 0x23, 0x7c, 0x1a, 0x22
    .rept {together}
    .cfi_remember_state
    // What was moved, what looks at the number, and the first instruction of the tail.
    .skip {tail} + 5, 0xcc
    .cfi_def_cfa_offset 128
    .skip 6, 0xcc // push
    .cfi_def_cfa_offset 136
    .cfi_offset 16, -136
    .skip 6 + 8, 0xcc // call, lea
    .cfi_restore_state
    .cfi_remember_state
    .skip {word} - {tail} - 25, 0xcc
    .cfi_def_cfa_offset 8
    .cfi_offset 16, -8
    .quad 0
    .cfi_restore_state
    .endr
    .cfi_endproc
    .endr
    .size regall_trampolines, . - regall_trampolines
    .text
"#,
    header = const HEADER_BYTES,
    groups = const SLOTS / TOGETHER,
    together = const TOGETHER,
    tail = const TAIL,
    word = const WORD,
);

unsafe extern "C" {
    fn regall_trampolines();
}

/// Where the pool is.
pub fn range() -> Option<PageRange> {
    let at = regall_trampolines as *const () as u64;
    PageRange::new(at, at.checked_add(POOL_BYTES)?)
}
