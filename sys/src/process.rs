//! Who a process is, from /proc.

use crate::file;
use crate::text::number;
use crate::{Errno, Result};
use core::ffi::CStr;

/// Who a process is: a pid can come again, pid and start time together don't.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Its pid, as it sees itself.
    pub pid: u32,
    /// Field 22 of /proc/PID/stat, clock ticks since boot.
    pub start: u64,
    /// Inode of the pid namespace.
    pub namespace: u64,
}

impl Identity {
    /// This process's.
    pub fn own() -> Result<Self> {
        Ok(Self {
            pid: crate::getpid(),
            start: start_time(c"/proc/self/stat")?,
            namespace: file::stat_path(c"/proc/self/ns/pid", false)?.inode,
        })
    }
}

/// Field 22 of the /proc/PID/stat at `path`.
pub fn start_time(path: &CStr) -> Result<u64> {
    let mut buf = [0u8; 1024];
    let text = file::read_small(path, &mut buf)?;
    // The name in field 2 may hold anything, parentheses too: count from its end.
    let after = text.iter().rposition(|b| *b == b')').ok_or(Errno::INVAL)?;
    let rest = text.get(after + 1..).unwrap_or(&[]);
    // Behind the parenthesis: an empty piece, field 3, ...
    rest.split(|b| *b == b' ')
        .nth(20)
        .and_then(number)
        .ok_or(Errno::INVAL)
}
