//! Atomics as core has them, whose values are in loom's hands. loom's own can't lie in zeroed
//! memory or in a static, as those of the shim do; these are known to it by their addresses.
//!
//! A test calls [`begin`] first, and [`know`] for all memory that its threads use, before it
//! starts them: what loom hears of from one thread is not there yet for the others. Statics need
//! not be named, if threads are started by [`spawn`] and the test is run by [`check`].

pub use core::sync::atomic::{compiler_fence, Ordering};
pub use loom::sync::atomic::fence;

use loom::model::Builder;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// loom's word for one of ours.
type Word = loom::sync::atomic::AtomicU64;

thread_local! {
    // loom runs all threads of a test on one thread of the system's.
    static KNOWN: RefCell<HashMap<usize, Rc<Word>>> = RefCell::new(HashMap::new());
    // Whether a run has more than one thread yet.
    static SPLIT: Cell<bool> = const { Cell::new(false) };
    // Statics that one of several threads was the first to use, and what is in them at first.
    static LATE: RefCell<BTreeMap<usize, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// A run of the test begins.
pub fn begin() {
    KNOWN.with_borrow_mut(|known| known.clear());
    SPLIT.set(false);
    let late = LATE.with_borrow(|late| late.clone());
    for (at, value) in late {
        word(at, || value);
    }
}

/// A thread more.
pub fn spawn(f: impl FnOnce() + 'static) -> loom::thread::JoinHandle<()> {
    SPLIT.set(true);
    loom::thread::spawn(f)
}

/// What a run ends with that has found a word of which loom should have heard earlier.
struct Late;

/// Returns how long a model may take: a third of `most` in `make test`.
pub fn time_for(most: Duration) -> Duration {
    let is_short = std::env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "default");
    if is_short {
        most / 3
    } else {
        most
    }
}

/// Runs the test in every order with one preemption, and then in those with two, or as many of
/// them as there is time for: from the start again where it turns out that loom must hear of
/// another static before the threads begin.
pub fn check(limit: Duration, test: impl Fn() + Sync + Send + 'static) {
    let limit = time_for(limit);
    LATE.with_borrow_mut(|late| late.clear());
    let (test, begun) = (Arc::new(test), Instant::now());
    let mut preemptions = 1;
    while preemptions <= 2 {
        let mut builder = Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.max_branches = 100_000;
        // How often loom looks at the clock, in runs.
        builder.checkpoint_interval = 100;
        builder.max_duration = Some(limit.saturating_sub(begun.elapsed()).max(limit / 6));
        let test = test.clone();
        let run = || builder.check(move || test());
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(()) => preemptions += 1,
            Err(why) if why.is::<Late>() => (),
            Err(why) => resume_unwind(why),
        }
    }
}

/// All words in `bytes` of zeroed memory at `at` are about to be used.
pub fn know(at: *const u8, bytes: usize) {
    // What is shorter stands at the beginning of eight bytes of its own.
    for n in (0..bytes).step_by(8) {
        word(at as usize + n, || 0);
    }
}

fn word(at: usize, value: impl Fn() -> u64) -> Rc<Word> {
    let known = KNOWN.with_borrow(|k| k.get(&at).cloned());
    known.unwrap_or_else(|| {
        if SPLIT.get() {
            LATE.with_borrow_mut(|late| late.insert(at, value()));
            if !std::thread::panicking() {
                resume_unwind(Box::new(Late));
            }
        }
        let new = Rc::new(Word::new(value()));
        KNOWN.with_borrow_mut(|k| k.insert(at, new.clone()));
        new
    })
}

macro_rules! atomic {
    ($name:ident, $value:ty, $core:ident) => {
        /// As core's.
        #[repr(transparent)]
        pub struct $name(core::sync::atomic::$core);

        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(core::sync::atomic::$core::new(value))
            }
            fn word(&self) -> Rc<Word> {
                let at = std::ptr::from_ref(self) as usize;
                word(at, || self.0.load(Ordering::Relaxed) as u64)
            }
            pub fn load(&self, order: Ordering) -> $value {
                self.word().load(order) as $value
            }
            pub fn store(&self, value: $value, order: Ordering) {
                self.word().store(value as u64, order);
            }
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.word().swap(value as u64, order) as $value
            }
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.word().fetch_add(value as u64, order) as $value
            }
            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.word().fetch_sub(value as u64, order) as $value
            }
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.word().fetch_or(value as u64, order) as $value
            }
            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                // All that is above a shorter word is zeroes.
                self.word().fetch_and(value as u64, order) as $value
            }
            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                self.word().fetch_max(value as u64, order) as $value
            }
            pub fn fetch_min(&self, value: $value, order: Ordering) -> $value {
                self.word().fetch_min(value as u64, order) as $value
            }
            pub fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                good: Ordering,
                bad: Ordering,
            ) -> Result<$value, $value> {
                let done = self
                    .word()
                    .compare_exchange(old as u64, new as u64, good, bad);
                done.map(|v| v as $value).map_err(|v| v as $value)
            }
            pub fn fetch_update(
                &self,
                good: Ordering,
                bad: Ordering,
                mut f: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut old = self.load(bad);
                while let Some(new) = f(old) {
                    match self.compare_exchange(old, new, good, bad) {
                        Ok(old) => return Ok(old),
                        Err(now) => old = now,
                    }
                }
                Err(old)
            }
        }
    };
}

atomic!(AtomicU64, u64, AtomicU64);
atomic!(AtomicU32, u32, AtomicU32);
atomic!(AtomicUsize, usize, AtomicUsize);

/// As core's.
#[repr(transparent)]
pub struct AtomicBool(core::sync::atomic::AtomicBool);

impl AtomicBool {
    pub const fn new(value: bool) -> Self {
        Self(core::sync::atomic::AtomicBool::new(value))
    }
    fn word(&self) -> Rc<Word> {
        let at = std::ptr::from_ref(self) as usize;
        word(at, || self.0.load(Ordering::Relaxed).into())
    }
    pub fn load(&self, order: Ordering) -> bool {
        self.word().load(order) != 0
    }
    pub fn store(&self, value: bool, order: Ordering) {
        self.word().store(value.into(), order);
    }
    pub fn swap(&self, value: bool, order: Ordering) -> bool {
        self.word().swap(value.into(), order) != 0
    }
}

/// As core's.
#[repr(transparent)]
pub struct AtomicPtr<T>(AtomicU64, PhantomData<*mut T>);

// SAFETY: as core's: the pointer alone is shared.
unsafe impl<T> Sync for AtomicPtr<T> {}
// SAFETY: likewise.
unsafe impl<T> Send for AtomicPtr<T> {}

impl<T> AtomicPtr<T> {
    /// A null pointer: no other is ever the first.
    pub const fn new(_null: *mut T) -> Self {
        Self(AtomicU64::new(0), PhantomData)
    }
    pub fn load(&self, order: Ordering) -> *mut T {
        self.0.load(order) as *mut T
    }
    pub fn store(&self, value: *mut T, order: Ordering) {
        self.0.store(value as u64, order);
    }
}
