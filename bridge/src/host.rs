//! What the bridge needs from the program that it is in.

use regall_sys::{file::Fd, Result};

/// Memory and accounts. The shim's goes through its ledger, so that nothing is mapped
/// that it does not know of.
pub trait Host: Sync {
    /// Anonymous private memory of `bytes` (whole pages), zeroed.
    fn map(&self, bytes: u64) -> Result<u64>;
    /// `bytes` (whole pages) of a file from `offset` on, shared, to read and perhaps to write.
    fn map_file(&self, fd: &Fd, offset: u64, bytes: u64, writable: bool) -> Result<u64>;
    /// Unmaps what one of the others has mapped.
    ///
    /// # Safety
    /// Nobody uses it any more.
    unsafe fn unmap(&self, at: u64, bytes: u64);
    /// As [`Host::map_file`], for memory of a peer's: its owner has it registered, so here
    /// it need not be.
    fn attach(&self, fd: &Fd, offset: u64, bytes: u64, writable: bool) -> Result<u64> {
        self.map_file(fd, offset, bytes, writable)
    }
    /// Attaches a System V segment, all of its `bytes`, likewise: shmat(2).
    fn attach_segment(&self, id: u64, bytes: u64, writable: bool) -> Result<u64> {
        let _ = bytes;
        let flags = if writable { 0 } else { libc::SHM_RDONLY };
        regall_sys::attach_segment(id, flags)
    }
    /// Detaches it: shmdt(2).
    fn detach_segment(&self, at: u64) {
        // SAFETY: it is what `attach_segment` has attached, of which its user has no more use.
        let _ = unsafe { regall_sys::detach_segment(at) };
    }
    /// A driver has mapped `bytes` at `at`, or unmapped what was there.
    fn changed(&self, at: u64, bytes: u64) {
        let _ = (at, bytes);
    }
    /// What is known to be mapped at `at`: a number that stays the same as long as that does, and
    /// is another one of other kinds of memory. 0: nothing is known.
    fn sort(&self, at: u64) -> u64 {
        let _ = at;
        0
    }
    /// Makes sure that what drivers attach is detached before this process executes another
    /// program; whether that is so.
    fn guards_attachments(&self) -> bool {
        true
    }
    /// Whether these bytes of this process are mapped, to be read or written, as far as is
    /// known. Those that are not are left to the kernel to copy, which says EFAULT.
    fn ours(&self, at: u64, bytes: u64, writable: bool) -> bool {
        let _ = (at, bytes, writable);
        true
    }
    /// Whether these bytes of this process can be read, or written, and nothing but its own
    /// doing can change that meanwhile. What is not known to be so is left to the kernel.
    fn steady(&self, at: u64, bytes: u64, writable: bool) -> bool {
        let _ = (at, bytes, writable);
        false
    }
    /// Adds to the counters of a mechanism: one transfer of so many bytes.
    fn count(&self, mechanism: crate::kind::Kind, bytes: u64);
    /// Adds `n` to another counter.
    fn tally(&self, counter: regall_directory::layout::Counter, n: u64) {
        let _ = (counter, n);
    }
}

/// A program without the shim.
pub struct Plain;

impl Host for Plain {
    fn map(&self, bytes: u64) -> Result<u64> {
        regall_sys::map_private(bytes as usize).map(|at| at.as_ptr() as u64)
    }

    fn map_file(&self, fd: &Fd, offset: u64, bytes: u64, writable: bool) -> Result<u64> {
        fd.map_shared_as(protection(writable), 0, offset, bytes)
    }

    unsafe fn unmap(&self, at: u64, bytes: u64) {
        // SAFETY: the caller says so.
        let _ = unsafe { regall_sys::unmap(at, bytes) };
    }

    fn count(&self, _: crate::kind::Kind, _: u64) {}
}

/// mmap's `prot` for memory to read, and perhaps to write.
pub const fn protection(writable: bool) -> i32 {
    match writable {
        true => libc::PROT_READ | libc::PROT_WRITE,
        false => libc::PROT_READ,
    }
}
