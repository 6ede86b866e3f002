//! The checker's memory: one mapping of a fixed size, made at the start. All zeroes is its first
//! state, and pages that nothing has been put into are not there.

use crate::sys;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use regall_checking::record::{HEAD_BYTES, REGISTERS, STACKS, STACK_BYTES};
use regall_checking::table::{Slot, Table};
use regall_directory::addr::PageRange;

/// Registrations at a time.
const SLOTS: usize = 8192;
/// Of so many of them the stack is kept.
const SAVED: usize = 1024;
/// So many of those that were deregistered last are remembered.
const PAST: usize = 128;
/// Records that can be made at the same time.
const SCRATCHES: usize = 16;
/// Bytes of a stack with its registers.
const ROOM: usize = REGISTERS * 8 + STACK_BYTES;
/// Bytes of a record at the most.
pub const RECORD: usize = HEAD_BYTES + STACKS * ROOM;

/// A stack that is kept: who registered something, or deregistered it.
#[repr(C)]
pub struct Saved {
    /// Bytes of it, without registers; 0: none.
    pub bytes: AtomicU64,
    room: UnsafeCell<[u8; ROOM]>,
}

impl Saved {
    /// Where registers and bytes are. Whoever reads them has the kernel copy them, and looks
    /// afterwards whether they still are what they were.
    pub fn room(&self) -> *mut u8 {
        self.room.get().cast()
    }
}

/// One of those that were deregistered last.
#[repr(C)]
pub struct Past {
    /// The `struct ibv_mr`; 0: none.
    pub handle: AtomicU64,
    /// Its device.
    pub context: AtomicU64,
    /// Its keys.
    pub keys: AtomicU64,
    /// First byte.
    pub start: AtomicU64,
    /// First byte behind it.
    pub end: AtomicU64,
    /// Its number.
    pub serial: AtomicU64,
    /// Who deregistered it.
    pub saved: Saved,
}

/// Room in which a record is put together.
#[repr(C)]
pub struct Scratch {
    taken: AtomicBool,
    bytes: UnsafeCell<[u8; RECORD]>,
}

/// A scratch that is this thread's.
pub struct Taken(&'static Scratch);

impl Taken {
    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8; RECORD] {
        // SAFETY: whoever has set `taken` is the only one here until it is dropped, and lends
        // it once at a time.
        unsafe { &mut *self.0.bytes.get() }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}

/// All of it.
#[repr(C)]
pub struct Area {
    slots: [Slot; SLOTS],
    next: AtomicU64,
    high: AtomicU64,
    saved: [Saved; SAVED],
    past: [Past; PAST],
    turn: AtomicU64,
    scratches: [Scratch; SCRATCHES],
}

// SAFETY: what is not atomic is a scratch's, which has one user at a time, or a saved stack's,
// which only the kernel reads and writes.
unsafe impl Sync for Area {}

impl Area {
    /// The table of registrations.
    pub fn table(&self) -> Table<'_> {
        Table::new(&self.slots, &self.next, &self.high)
    }

    /// Where slot `n`'s stack is kept.
    pub fn saved(&self, n: usize) -> Option<&Saved> {
        self.saved.get(n)
    }

    /// Those that were deregistered last, in any order.
    pub fn past(&self) -> &[Past; PAST] {
        &self.past
    }

    /// The place of the next one.
    pub fn next_past(&self) -> Option<&Past> {
        let turn = self.turn.fetch_add(1, Relaxed) as usize;
        self.past.get(turn % PAST)
    }

    /// Room for a record. `None`: all are in use.
    pub fn scratch(&'static self) -> Option<Taken> {
        let free = |s: &&Scratch| !s.taken.swap(true, Acquire);
        self.scratches.iter().find(free).map(Taken)
    }

    /// A child of fork, which has one thread: nothing is registered, and nobody else is here.
    pub fn forget(&self) {
        LOST.store(false, Relaxed);
        self.table().forget();
        for past in &self.past {
            past.handle.store(0, Relaxed);
        }
        for scratch in &self.scratches {
            scratch.taken.store(false, Relaxed);
        }
    }
}

/// Memory of some registration has gone away at some time.
static LOST: AtomicBool = AtomicBool::new(false);

/// Memory of a registration has gone away.
pub fn lost() {
    LOST.store(true, Release);
}

/// Whether memory of any registration has.
#[inline]
pub fn anything_lost() -> bool {
    LOST.load(Acquire)
}

static AREA: AtomicPtr<Area> = AtomicPtr::new(core::ptr::null_mut());

/// The checker's memory; `None`: nothing is checked.
#[inline]
pub fn area() -> Option<&'static Area> {
    // SAFETY: null, or `make`'s, which is never unmapped.
    unsafe { AREA.load(Acquire).as_ref() }
}

/// Maps it. Once, at the start.
pub fn make() -> Option<PageRange> {
    let bytes = size_of::<Area>().next_multiple_of(4096);
    let at = sys::map_private(bytes).ok()?;
    AREA.store(at.as_ptr().cast(), Release);
    range()
}

/// Where it is.
pub fn range() -> Option<PageRange> {
    let at = core::ptr::from_ref(area()?) as u64;
    PageRange::from_call(at, size_of::<Area>() as u64)
}
