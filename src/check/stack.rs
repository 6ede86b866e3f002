//! Copies of stacks: three registers, and up to 16 KiB from the stack pointer on.

use crate::sys;
use regall_checking::record::{REGISTERS, STACK_BYTES};

const PAGE: u64 = 4096;

/// Copies `registers` (instruction, stack and frame pointer) and the stack above them to `to`,
/// which has room for both. Returns the stack's bytes.
pub fn copy(registers: [u64; REGISTERS], to: *mut u8) -> u64 {
    let [_, stack, _] = registers;
    // SAFETY: room for the registers.
    unsafe { to.cast::<[u64; REGISTERS]>().write_unaligned(registers) };
    // SAFETY: the bytes behind them.
    let to = unsafe { to.add(REGISTERS * 8) };
    // SAFETY: as above.
    match unsafe { sys::copy_checked(stack, to, STACK_BYTES) } {
        Ok(bytes) => bytes as u64,
        Err(_) => by_page(stack, to),
    }
}

/// The same where process_vm_readv is forbidden: as far as pages can be read.
#[cold]
fn by_page(from: u64, to: *mut u8) -> u64 {
    let mut done = 0;
    while done < STACK_BYTES as u64 {
        let at = from + done;
        let part = (PAGE - at % PAGE).min(STACK_BYTES as u64 - done);
        if !sys::readable(at & !7) {
            break;
        }
        // SAFETY: this thread's own stack, of which the page has just been read; and as above.
        unsafe { (at as *const u8).copy_to(to.add(done as usize), part as usize) };
        done += part;
    }
    done
}
