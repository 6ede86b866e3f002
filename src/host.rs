//! What the bridge gets from the shim: memory that the ledger knows of, counters, and
//! leave for peers to get at ours.

use crate::arch::Frame;
use crate::intercept;
use crate::startup;
use crate::sys::file::{self, Fd};
use crate::sys::{call, check, Result};
use crate::track::flight;
use regall_bridge::host::{protection, Host};
use regall_bridge::mechanism::{Kind, Order};

/// The shim as the bridge's host.
pub struct Shim;

impl Host for Shim {
    fn map(&self, bytes: u64) -> Result<u64> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        map(bytes, protection(true), flags, -1, 0)
    }

    fn map_file(&self, fd: &Fd, offset: u64, bytes: u64, writable: bool) -> Result<u64> {
        map(
            bytes,
            protection(writable),
            libc::MAP_SHARED,
            fd.raw(),
            offset,
        )
    }

    fn unmap(&self, at: u64, bytes: u64) {
        let _ = hooked(libc::SYS_munmap, [at, bytes, 0, 0, 0, 0]);
    }

    fn count(&self, mechanism: Kind, bytes: u64) {
        let (transfers, total) = mechanism.counters();
        flight::count(transfers);
        flight::add(total, bytes);
    }
}

fn map(bytes: u64, prot: i32, flags: i32, fd: i32, offset: u64) -> Result<u64> {
    let args = [
        0,
        bytes,
        prot as u64,
        flags as u64,
        fd as i64 as u64,
        offset,
    ];
    hooked(libc::SYS_mmap, args)
}

/// A call of our own that takes the way of the application's: its memory is in the ledger
/// before it returns.
fn hooked(nr: i64, args: [u64; 6]) -> Result<u64> {
    let mut frame = Frame {
        nr: nr as u64,
        args,
    };
    check(intercept::event(&mut frame))
}

/// Lets other processes of this user attach where Yama restricts that to ancestors
/// (kernel.yama.ptrace_scope 1). Elsewhere it would be EINVAL. A child of fork has to
/// do so again.
pub fn permit_peers() {
    if startup::config().copy == Order::OFF {
        return;
    }
    let mut buf = [0; 8];
    if let Ok(b"1\n") = file::read_small(c"/proc/sys/kernel/yama/ptrace_scope", &mut buf) {
        let _ = call!(libc::SYS_prctl, libc::PR_SET_PTRACER, u64::MAX);
    }
}
