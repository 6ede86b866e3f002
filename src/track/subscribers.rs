//! Who is told of what happens here. The crate's root, which knows all parts, hands one table
//! down at start-up ([`set`]); nothing here names a part that stands above it.

use super::real::real;
use crate::arch::Frame;
use crate::limits::Budget;
use crate::sys::file;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};
use regall_directory::addr::PageRange;
use regall_directory::layout::{Call, Header};

/// What is called, and when.
pub struct Subscribers {
    /// Handles a call that is not about memory; it makes the call, too.
    pub other_call: fn(Call, &mut Frame) -> i64,
    /// Handles a request to an adapter (RDMA_VERBS_IOCTL); it makes the call, too.
    pub verbs: fn(&mut Frame) -> i64,
    /// The program may have closed an adapter.
    pub adapters_closed: fn(),
    /// A call is about to be made; what it returns is handed to the next. After [`watch`] alone.
    pub before: fn(Call, &[u64; 6]) -> [u64; 3],
    /// It has been made, and what came of it. Not in a child that it has made.
    pub after: fn(Call, &[u64; 6], [u64; 3], i64),
    /// A child of fork begins: it has this thread alone, and nothing of its parent's may be
    /// touched.
    pub child_begins: &'static [fn()],
    /// A process has a directory that nobody has been shown yet.
    pub new_directory: &'static [fn(&Header)],
    /// What may be pinned.
    pub budget: fn() -> Budget,
    /// A child of fork is tracked.
    pub child_tracked: &'static [fn()],
    /// Code has come to a range, which can be read up to an address; whether that is shared
    /// memory, and whether it may be running already.
    pub new_code: &'static [fn(PageRange, u64, bool, bool)],
    /// A range's code is gone.
    pub code_gone: &'static [fn(PageRange)],
    /// Memory is about to leave a range. After [`listen`] alone; with the ledger's lock held,
    /// unless a signal handler interrupts who holds it.
    pub memory_leaves: &'static [fn(PageRange)],
    /// The pages of a range are about to be replaced by others. After [`listen`] alone.
    pub pages_replaced: &'static [fn(PageRange)],
    /// Whether somebody else than an adapter holds pages of this process.
    pub pages_held: fn() -> bool,
    /// How many threads of the shim's own there are that only do what peers could do themselves.
    pub helpers: fn() -> u64,
    /// A region that peers may reach has lost its last borrower, or the kernel would not forget
    /// one yet. False: no thread of the shim's sees to it.
    pub keys_idle: fn() -> bool,
    /// A domain is to be filled ([`adopting`](super::adopting)). False: no thread of the shim's
    /// sees to it.
    pub domain_opened: fn() -> bool,
    /// How many threads of the shim's own there are that register and deregister.
    pub rotators: fn() -> u64,
    /// No thread that sees to those may be there, until the next is called. Whether there was one.
    pub keys_pause: fn() -> bool,
    /// The rotator may be there again, and is.
    pub keys_resume: fn(),
    /// Nothing of this process is lent any more, whatever was lent before; true: and no thread
    /// of the shim's own may be there any longer.
    pub nothing_lent: &'static [fn(bool)],
    /// The program is about to put itself under a seccomp filter: what may not be found out then is
    /// to be found out now.
    pub filter_comes: fn(),
}

/// As long as nobody is told of anything.
static NOBODY: Subscribers = Subscribers {
    other_call: |_, frame| real(frame),
    verbs: |frame| real(frame),
    adapters_closed: || (),
    before: |_, _| [0; 3],
    after: |_, _, _, _| (),
    child_begins: &[],
    new_directory: &[],
    budget: || Budget::NONE,
    child_tracked: &[],
    new_code: &[],
    code_gone: &[],
    memory_leaves: &[],
    pages_replaced: &[],
    pages_held: || false,
    helpers: || 0,
    keys_idle: || false,
    domain_opened: || false,
    rotators: || 0,
    keys_pause: || false,
    keys_resume: || (),
    nothing_lent: &[],
    filter_comes: || (),
};

/// The table; null: [`NOBODY`].
static TABLE: AtomicPtr<Subscribers> = AtomicPtr::new(core::ptr::null_mut());

/// Somebody wants to be told of memory that leaves and pages that are replaced: until then
/// nobody pays for a look into the table.
static LISTENING: AtomicBool = AtomicBool::new(false);

/// Somebody wants to be told of every call, before and after.
static WATCHING: AtomicBool = AtomicBool::new(false);

/// From now on every call is told of, before and after.
pub fn watch() {
    WATCHING.store(true, Relaxed);
}

/// Whether every call is told of.
#[inline]
pub fn watching() -> bool {
    WATCHING.load(Relaxed)
}

/// Hands the table down. Once, at start-up, before anything is intercepted.
pub fn set(table: &'static Subscribers) {
    TABLE.store(core::ptr::from_ref(table).cast_mut(), Release);
}

/// The table.
#[inline]
pub fn table() -> &'static Subscribers {
    // SAFETY: null, or a static that `set` was given.
    unsafe { TABLE.load(Acquire).as_ref() }.unwrap_or(&NOBODY)
}

/// From now on memory that leaves and pages that are replaced are told of. Whoever takes the
/// ledger's lock behind this knows that whoever takes it later tells him.
pub fn listen() {
    LISTENING.store(true, SeqCst);
}

/// Memory is about to leave `range`.
#[inline]
pub fn memory_leaves(range: PageRange) {
    if LISTENING.load(SeqCst) {
        tell(table().memory_leaves, range);
    }
}

/// The pages of `range` are about to be replaced by others.
#[inline]
pub fn pages_replaced(range: PageRange) {
    if LISTENING.load(SeqCst) {
        tell(table().pages_replaced, range);
    }
}

/// Whether somebody else than an adapter holds pages of this process.
#[inline]
pub fn pages_held() -> bool {
    LISTENING.load(Relaxed) && (table().pages_held)()
}

/// How many threads of the shim's own there are that only do what peers could do themselves.
pub fn helpers() -> u64 {
    (table().helpers)()
}

/// Returns whether this is the process's only thread, but for the helper: what peers have it put
/// there, they can put there themselves, too. The rotator writes to no memory of the program's, and
/// closes none of its descriptors.
pub fn alone() -> bool {
    let ours = || helpers() + (table().rotators)();
    let before = ours();
    let alone = file::threads() == Ok(1 + before);
    // One that has ended meanwhile may have been counted for one of the program's.
    alone && ours() == before
}

/// The code of `range` is gone.
pub fn code_gone(range: PageRange) {
    tell(table().code_gone, range);
}

/// Code has come to `range`, which can be read up to `end`; `running`: it may be already.
pub fn new_code(range: PageRange, end: u64, shared: bool, running: bool) {
    for told in table().new_code {
        told(range, end, shared, running);
    }
}

/// The program is about to put itself under a seccomp filter.
pub fn filter_comes() {
    (table().filter_comes)()
}

/// Nothing of this process is lent any more; `alone`: and no thread of the shim's own may be
/// there any longer.
#[cold]
pub fn nothing_lent(alone: bool) {
    for told in table().nothing_lent {
        told(alone);
    }
}

#[cold]
#[inline(never)]
fn tell(whom: &[fn(PageRange)], range: PageRange) {
    for told in whom {
        told(range);
    }
}
