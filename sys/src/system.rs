//! What the machine has, and what a process may have of it.

use crate::arch;
use crate::entry::call;
use crate::errno::Result;

/// `(soft, hard)` of a resource limit, in its own units; u64::MAX: none.
pub fn rlimit(resource: u32) -> Result<(u64, u64)> {
    let mut out = [0u64; 2];
    call!(libc::SYS_prlimit64, 0, resource, 0, out.as_mut_ptr())?;
    Ok((out[0], out[1]))
}

/// How much memory the machine has, and swap space: sysinfo(2).
pub fn machine() -> Result<libc::sysinfo> {
    // SAFETY: all zeroes is a valid `struct sysinfo`.
    let mut info: libc::sysinfo = unsafe { core::mem::zeroed() };
    call!(libc::SYS_sysinfo, &raw mut info)?;
    Ok(info)
}

/// Random 64 bits; the time-stamp counter where the kernel has none to give.
pub fn random() -> u64 {
    let mut out = 0u64;
    match call!(libc::SYS_getrandom, &raw mut out, 8, libc::GRND_NONBLOCK) {
        Ok(8) => out,
        _ => arch::ticks(),
    }
}
