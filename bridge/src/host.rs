//! What the bridge needs from the program that it is in.

use regall_sys::{call, file::Fd, Result};

/// Memory and accounts. The shim's goes through its ledger, so that nothing is mapped
/// that it does not know of.
pub trait Host: Sync {
    /// Anonymous private memory of `bytes` (whole pages), zeroed.
    fn map(&self, bytes: u64) -> Result<u64>;
    /// `bytes` (whole pages) of a file from `offset` on, shared, to read and perhaps to write.
    fn map_file(&self, fd: &Fd, offset: u64, bytes: u64, writable: bool) -> Result<u64>;
    /// Unmaps what one of the others has mapped.
    fn unmap(&self, at: u64, bytes: u64);
    /// Adds to the counters of a mechanism: one transfer of so many bytes.
    fn count(&self, mechanism: crate::mechanism::Kind, bytes: u64);
}

/// A program without the shim.
pub struct Plain;

impl Host for Plain {
    fn map(&self, bytes: u64) -> Result<u64> {
        regall_sys::map_private(bytes as usize).map(|at| at.as_ptr() as u64)
    }

    fn map_file(&self, fd: &Fd, offset: u64, bytes: u64, writable: bool) -> Result<u64> {
        call!(
            libc::SYS_mmap,
            0,
            bytes,
            protection(writable),
            libc::MAP_SHARED,
            fd.raw(),
            offset
        )
    }

    fn unmap(&self, at: u64, bytes: u64) {
        let _ = regall_sys::unmap(at, bytes);
    }

    fn count(&self, _: crate::mechanism::Kind, _: u64) {}
}

/// mmap's `prot` for memory to read, and perhaps to write.
pub const fn protection(writable: bool) -> i32 {
    match writable {
        true => libc::PROT_READ | libc::PROT_WRITE,
        false => libc::PROT_READ,
    }
}
