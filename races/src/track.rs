//! The ledger's lock, the calls in progress and the notes of signal handlers, and what they
//! find around them: a ledger that writes down what it is told.

#[path = "../../src/track/deferred.rs"]
pub mod deferred;
#[path = "../../src/track/flight.rs"]
pub mod flight;
#[path = "../../src/track/hiding.rs"]
mod hiding;
#[path = "../../src/track/lock.rs"]
pub mod lock;
#[path = "../../src/track/notes.rs"]
pub mod notes;
#[path = "../../src/track/vacancy.rs"]
mod vacancy;

use crate::addr::PageRange;
use crate::base::counters;
use crate::layout::Header;
use crate::vocab::{Attr, Flags};
use core::ptr::NonNull;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What has happened, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// The range's memory has changed.
    Changed(PageRange),
    /// The range is mapped.
    Mapped(PageRange),
    /// The range is gone.
    Gone(PageRange),
    /// The range was read from the kernel's list.
    Read(PageRange),
    /// Everything was.
    ReadAll,
}

thread_local! {
    static TOLD: RefCell<Vec<Told>> = const { RefCell::new(Vec::new()) };
    // loom's word on whether one at a time has the ledger.
    static LEDGER: RefCell<Option<Rc<loom::cell::UnsafeCell<()>>>> = const { RefCell::new(None) };
    static REBUILT: Cell<u32> = const { Cell::new(0) };
}

/// A run of the test begins, with this header of a directory.
pub fn begin(header: NonNull<Header>, impatient: bool) {
    crate::sys::begin(impatient);
    crate::atomic::know(header.as_ptr().cast(), size_of::<Header>());
    counters::use_header(header.as_ptr());
    TOLD.with_borrow_mut(|told| told.clear());
    LEDGER.replace(Some(Rc::new(loom::cell::UnsafeCell::new(()))));
    REBUILT.set(0);
}

/// Writes down that something has happened.
pub fn tell(what: Told) {
    TOLD.with_borrow_mut(|told| told.push(what));
}

/// All that was told.
pub fn told() -> Vec<Told> {
    TOLD.with_borrow(|told| told.clone())
}

/// How often the ledger was found half-way.
pub fn rebuilt() -> u32 {
    REBUILT.get()
}

/// Everything behind the lock.
pub struct State {
    /// What is registered.
    pub hca: Hca,
}

/// Adapters' regions: none.
pub struct Hca;

impl Hca {
    /// The range's regions are about other memory.
    pub fn spoil(&mut self, _: PageRange) {
        exclusively();
    }
}

/// Fails where somebody else has the ledger, or what he did need not be seen here.
pub fn exclusively() {
    let ledger = LEDGER.with_borrow(|l| l.clone()).expect("a run");
    ledger.with_mut(|_| ());
}

impl State {
    const fn new() -> Self {
        Self { hca: Hca }
    }

    /// `range` is not mapped from now on.
    pub fn remove(&mut self, range: PageRange, _: impl FnMut(PageRange, Attr)) {
        exclusively();
        tell(Told::Gone(range));
    }

    /// Nobody looks at locks here.
    pub fn unlocked(&mut self, _: PageRange) {}

    /// Nor here.
    pub fn set_locks(&mut self, _: PageRange, _: Flags) {}

    /// `range` is mapped from now on.
    pub fn insert(&mut self, range: PageRange, _: Attr) {
        exclusively();
        tell(Told::Mapped(range));
    }
}

/// Takes the lock.
pub fn lock() -> Option<lock::Guard> {
    let mut guard = lock::take().ok()?;
    exclusively();
    if guard.is_broken() {
        REBUILT.set(REBUILT.get() + 1);
        guard.mended();
    }
    notes::apply(&mut guard);
    Some(guard)
}

fn forget_reserved() {}

mod resync {
    use super::{lock, tell, PageRange, Told};

    pub fn audit() {
        drop(lock());
        tell(Told::ReadAll);
    }

    pub fn republish(_: PageRange) {}

    pub fn foreign(range: PageRange) {
        drop(lock());
        tell(Told::Read(range));
    }
}

/// Subscribers: nobody wants to be told of memory.
mod subscribers {
    /// Memory goes.
    pub fn memory_leaves(_: super::PageRange) {}
}

mod taken {
    /// There are no segments here.
    pub fn may_divide_segments() {}
}
