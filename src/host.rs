//! What the bridge gets from the shim: memory that the ledger knows of, counters, and
//! leave for peers to get at ours.

use crate::arch::Frame;
use crate::base::{counters, phase, settings, withheld::withheld};
use crate::memory::{self, touchable};
use crate::sys::file::{self, Fd};
use crate::sys::{self, check, Errno, Result};
use crate::thread;
use crate::track::{self, map as maps, resync, VIEW};
use core::sync::atomic::{AtomicU64, Ordering::*};
use regall_bridge::host::{protection, Host};
use regall_bridge::kind::Kind as Mechanism;
use regall_bridge::mechanism::knem;
use regall_bridge::xpmem;
use regall_directory::addr::PageRange;
use regall_directory::layout::{Call, Counter, Header};
use regall_directory::vocab::{Kind, Prot};

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

    unsafe fn unmap(&self, at: u64, bytes: u64) {
        let _ = hooked(Call::Munmap, libc::SYS_munmap, [at, bytes, 0, 0, 0, 0]);
    }

    fn attach(&self, fd: &Fd, offset: u64, bytes: u64, writable: bool) -> Result<u64> {
        let prot = protection(writable);
        let hint = sys::apart_for(bytes, offset);
        let at = fd.map_shared_as(prot, hint, offset, bytes)?;
        note(at, bytes, writable, Kind::File);
        Ok(at)
    }

    fn attach_segment(&self, id: u64, bytes: u64, writable: bool) -> Result<u64> {
        let flags = if writable { 0 } else { libc::SHM_RDONLY };
        let at = sys::attach_segment(id, flags)?;
        note(at, bytes, writable, Kind::Shm);
        Ok(at)
    }

    fn detach_segment(&self, at: u64) {
        let _ = hooked(Call::Shmdt, libc::SYS_shmdt, [at, 0, 0, 0, 0, 0]);
    }

    fn changed(&self, at: u64, bytes: u64) {
        if let (true, Some(range)) = (phase::tracking(), PageRange::from_call(at, bytes)) {
            let flight = track::begin_work();
            resync::range(range, false);
            track::end(flight);
        }
    }

    fn sort(&self, at: u64) -> u64 {
        match VIEW.lookup_hinted(at, &thread::current().hint) {
            Ok(Some(found)) => {
                let attr = found.attr();
                (attr.kind as u64) << 8 | u64::from(attr.prot.bits()) | 1 << 16
            }
            _ => 0,
        }
    }

    fn guards_attachments(&self) -> bool {
        crate::guard::stands()
    }

    #[inline]
    fn ours(&self, at: u64, bytes: u64, writable: bool) -> bool {
        !phase::tracking() || mapped(at, bytes, writable)
    }

    #[inline]
    fn steady(&self, at: u64, bytes: u64, writable: bool) -> bool {
        phase::tracking() && memory::steady(at, bytes, writable)
    }

    fn count(&self, mechanism: Mechanism, bytes: u64) {
        let (transfers, total) = mechanism.counters();
        counters::count(transfers);
        counters::add(total, bytes);
    }

    #[inline]
    fn tally(&self, counter: Counter, n: u64) {
        if n > 0 {
            counters::add(counter, n);
        }
    }
}

/// What was mapped of a peer's memory goes into the ledger as opted-out: its owner has it
/// pinned, and it need not be paid for twice.
fn note(at: u64, bytes: u64, writable: bool, kind: Kind) {
    if let (true, Some(range)) = (phase::tracking(), PageRange::from_call(at, bytes)) {
        let prot = Prot::from_call(protection(writable) as u64, true);
        track::fork::check();
        maps::own_allocation(range, prot, kind, true);
    }
}

/// Whether all of it is in the ledger, to be read or written.
fn mapped(at: u64, bytes: u64, writable: bool) -> bool {
    touchable(at, bytes, writable, |_| true)
}

fn map(bytes: u64, prot: i32, flags: i32, fd: i32, offset: u64) -> Result<u64> {
    // Not in a hole that the application is about to map again.
    let args = [
        sys::apart_for(bytes, offset),
        bytes,
        prot as u64,
        flags as u64,
        fd as i64 as u64,
        offset,
    ];
    hooked(Call::Mmap, libc::SYS_mmap, args)
}

/// A call of our own that takes the way of the application's: its memory is in the ledger
/// before it returns.
fn hooked(call: Call, nr: i64, args: [u64; 6]) -> Result<u64> {
    let mut frame = Frame {
        nr: nr as u64,
        args,
    };
    check(track::handle(call, &mut frame))
}

/// The number by which peers attach our memory through XPMEM; 0: none. The header has it for
/// them, and they could write another there.
static OFFERED: AtomicU64 = AtomicU64::new(0);

/// Publishes the number by which peers attach our memory through XPMEM, if that is here. At
/// the start of a process.
pub fn offer(header: &Header) {
    // It is the parent's.
    OFFERED.store(0, Relaxed);
    // `auto` never attaches by XPMEM: nobody would take the offer.
    let order = settings::config().copy;
    if !order.has(Mechanism::Xpmem) || order.is_auto() {
        return;
    }
    // SAFETY: nobody has been shown this process's directory yet.
    unsafe { xpmem::forget() };
    // In a table that is the parent's, too, descriptors of the device would stay.
    if withheld() || file::are_inherited_shared() {
        return;
    }
    if let Ok(segment) = xpmem::offer() {
        OFFERED.store(segment, Relaxed);
        header.xpmem.store(segment, Release);
    }
}

/// Takes back what drivers in the kernel have of this process's memory: they ask for the user of
/// whom they let at it, and no more.
#[cold]
pub fn withdraw() {
    if let Some(header) = counters::header() {
        header.xpmem.store(0, Release);
    }
    let segment = OFFERED.swap(0, AcqRel);
    for _ in 0..TRIES {
        let xpmem = match segment {
            0 => Ok(()),
            segment => xpmem::withdraw(segment),
        };
        let busy = xpmem == Err(Errno::BUSY) || knem::withdraw() == Err(Errno::BUSY);
        if !busy {
            return;
        }
        sys::nap(PAUSE);
    }
}

/// How often that is tried while others use the drivers, and nanoseconds in between.
const TRIES: u32 = 20;
const PAUSE: u64 = 1_000_000;

/// With REGALL_PTRACER=any, lets every process of this user trace this one where Yama leaves
/// that to ancestors (kernel.yama.ptrace_scope 1). Elsewhere it would be EINVAL. A child of fork
/// has to do so again.
pub fn permit_tracers() {
    if !settings::config().ptracer_any {
        return;
    }
    let mut buf = [0; 8];
    if let Ok(b"1\n") = file::read_small(c"/proc/sys/kernel/yama/ptrace_scope", &mut buf) {
        let _ = sys::process::permit_tracers();
    }
}
