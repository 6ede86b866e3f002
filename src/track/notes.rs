//! Events of a signal handler that came while its own thread held the lock.
//! The handler can't wait for it. Its call is made; what it did is noted, and
//! the holder writes the notes into the ledger before it gives the lock back:
//! nobody else has been at the ledger in between, so their order is right.
//! What is then left to do about them [`super::deferred`] does without the lock.

use super::State;
use crate::atomic::{fence, AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use crate::base::counters;
use regall_directory::addr::PageRange;
use regall_directory::layout::Counter;
use regall_directory::vocab::{Attr, Flags};

/// Behind the last address that user space can have.
const EVERYTHING: u64 = 1 << 56;

const NOTES: usize = if cfg!(feature = "few-places") { 2 } else { 64 };

/// What has to be done about a note.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum What {
    /// Nothing any more.
    Done = 0,
    /// The range is mapped, with the attributes in the note.
    Mapped = 1,
    /// The range is gone.
    Gone = 2,
    /// The range has changed in a way that only the kernel knows.
    Changed = 3,
    /// Written into the ledger; still to be pinned.
    Unpinned = 4,
    /// Being written, or being worked off: nobody else's to take.
    Busy = 6,
    /// Our locks on the range are gone.
    Unlocked = 7,
    /// The application has the locks in the note on the range, and no others.
    Locked = 8,
    /// As changed; and what is registered there with adapters is about other memory.
    Spoiled = 5,
}

struct Note {
    what: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    attr: AtomicU64,
}

static NOTED: [Note; NOTES] = [const {
    Note {
        what: AtomicU64::new(0),
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        attr: AtomicU64::new(0),
    }
}; NOTES];

/// Notes taken since the last [`done_with`].
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether one had no place: everything is to be read anew.
static OVERFLOWED: AtomicBool = AtomicBool::new(false);

/// Whether one had no place that said that regions are about other memory: then all are.
static ALL_SPOILED: AtomicBool = AtomicBool::new(false);

/// Of these, how many are in the ledger.
static APPLIED: AtomicUsize = AtomicUsize::new(0);

/// After fork or a rebuild.
pub fn reset() {
    for note in &NOTED {
        note.what.store(What::Done as u64, Relaxed);
    }
    COUNT.store(0, Relaxed);
    APPLIED.store(0, Relaxed);
    OVERFLOWED.store(false, Relaxed);
    ALL_SPOILED.store(false, Relaxed);
}

impl Note {
    fn range(&self) -> Option<PageRange> {
        PageRange::new(self.start.load(Relaxed), self.end.load(Relaxed))
    }
}

#[cold]
fn take(what: What, range: PageRange, attr: u64) {
    counters::count(Counter::Deferred);
    loop {
        let n = COUNT.fetch_add(1, SeqCst);
        let Some(note) = NOTED.get(n) else {
            if matches!(what, What::Gone | What::Spoiled) {
                ALL_SPOILED.store(true, SeqCst);
            }
            return everything();
        };
        // Somebody's who had the number before the notes were done with: theirs stays.
        let (free, mine) = (What::Done as u64, What::Busy as u64);
        if note
            .what
            .compare_exchange(free, mine, SeqCst, Relaxed)
            .is_err()
        {
            continue;
        }
        note.start.store(range.start(), Relaxed);
        note.end.store(range.end(), Relaxed);
        note.attr.store(attr, Relaxed);
        note.what.store(what as u64, Release);
        // The notes may have been done with between the number and the words: whoever did that
        // has seen the words, or it is seen here. Noted twice, it does no harm.
        fence(SeqCst);
        if COUNT.load(Relaxed) > n {
            return;
        }
    }
}

/// Everything is to be read anew.
#[cold]
pub fn everything() {
    OVERFLOWED.store(true, SeqCst);
}

/// `range` has changed and is to be read anew.
pub fn later(range: PageRange) {
    take(What::Changed, range, 0);
}

/// `range` is not what it was, and its regions could not be taken out in time.
pub fn spoiled(range: PageRange) {
    take(What::Spoiled, range, 0);
}

/// `range` is not locked by us any more.
#[cold]
pub fn unlocked(range: PageRange) {
    take(What::Unlocked, range, 0);
}

/// The application has `locks` on `range` from now on, and no others.
#[cold]
pub fn locked(range: PageRange, locks: Flags) {
    take(What::Locked, range, locks.bits().into());
}

/// Returns whether it is noted that the application has locked some of `range`, and not yet written down.
#[cold]
pub fn are_locked(range: PageRange) -> bool {
    let locked = |note: &Note| {
        let range = note.range().and_then(|it| it.intersection(range));
        note.what.load(Acquire) == What::Locked as u64
            && note.attr.load(Relaxed) != 0
            && range.is_some()
    };
    NOTED.iter().any(locked)
}

/// `range` has been mapped and is `attr`.
pub fn mapped(range: PageRange, attr: Attr) {
    take(What::Mapped, range, attr.pack());
}

/// `range` is gone: its entries are hidden ([`super::hiding`]) and still in the ledger.
#[cold]
pub fn gone(range: PageRange) {
    take(What::Gone, range, 0);
}

/// Writes the notes into the ledger. Called by the lock's holder, as the last
/// thing before it gives it back.
#[inline]
pub fn apply(state: &mut State) {
    if COUNT.load(Acquire) > APPLIED.load(Relaxed) {
        apply_slowly(state);
    }
}

#[cold]
fn apply_slowly(state: &mut State) {
    loop {
        let all = PageRange::new(0, EVERYTHING).filter(|_| ALL_SPOILED.swap(false, SeqCst));
        if let Some(all) = all {
            state.hca.spoil(all);
        }
        let n = APPLIED.load(Relaxed);
        if n >= COUNT.load(Acquire) {
            return;
        }
        APPLIED.store(n + 1, Relaxed);
        let Some(note) = NOTED.get(n) else {
            continue; // too many: everything is read anew
        };
        // Not before this: they may be another's until then.
        let what = note.what.load(Acquire);
        let word = note.attr.load(Relaxed);
        let (range, attr) = (note.range(), Attr::unpack(word));
        let Some(range) = range else {
            continue;
        };
        // Unless somebody who works notes off was quicker, and reads the range anew.
        let becomes = |next: What| {
            let next = next as u64;
            note.what
                .compare_exchange(what, next, AcqRel, Relaxed)
                .is_ok()
        };
        // Regions are taken out when the lock is free.
        let left = match crate::registrar::hca::active() {
            true => What::Changed,
            false => What::Done,
        };
        if what == What::Gone as u64 && becomes(left) {
            state.remove(range, |_, _| ());
            state.hca.spoil(range);
        } else if what == What::Spoiled as u64 && becomes(What::Changed) {
            state.hca.spoil(range);
        } else if what == What::Unlocked as u64 && becomes(What::Unpinned) {
            state.unlocked(range);
        } else if what == What::Locked as u64 {
            // (Before the note goes: a handler looks at both.)
            state.set_locks(range, Flags::from_bits(word as u16));
            becomes(What::Unpinned);
        } else if let (true, Some(attr)) = (what == What::Mapped as u64, attr) {
            if becomes(What::Unpinned) {
                state.insert(range, attr);
            }
        }
    }
}

/// What is left to do about a note that is in the ledger, or was about it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The range is to be pinned.
    Pin,
    /// The range is to be read from the kernel.
    Read,
}

/// Whether there are any.
#[inline]
pub fn any() -> bool {
    COUNT.load(Acquire) != 0 || OVERFLOWED.load(Acquire)
}

/// How many have been taken since the last [`done_with`], those included that no place was left for.
pub fn count() -> usize {
    COUNT.load(SeqCst)
}

/// Whether some had no place. Who is told so reads everything anew: nobody else is told.
pub fn have_overflowed() -> bool {
    OVERFLOWED.load(SeqCst) && OVERFLOWED.swap(false, SeqCst)
}

/// The `n` notes that were taken are done with, if there are no more of them by now that have a
/// place. Then they are to be worked off once more: one that got its number before and was written
/// meanwhile was either written by who saw the new count, or it is seen then.
pub fn done_with(n: usize) -> bool {
    let same = |now: usize| (now.min(NOTES) == n.min(NOTES)).then_some(0);
    if COUNT.fetch_update(SeqCst, Relaxed, same).is_err() {
        return false;
    }
    APPLIED.store(0, Relaxed);
    fence(SeqCst);
    true
}

/// Takes the first `n` notes one by one, and has `each` do what is left to do. Called without
/// the lock.
pub fn work_off(n: usize, mut each: impl FnMut(PageRange, Left)) {
    for note in NOTED.iter().take(n) {
        let what = note.what.load(Acquire);
        let free = what == What::Done as u64 || what == What::Busy as u64;
        let mine = What::Busy as u64;
        if free
            || note
                .what
                .compare_exchange(what, mine, AcqRel, Relaxed)
                .is_err()
        {
            continue;
        }
        let range = note.range();
        note.what.store(What::Done as u64, Release);
        let Some(range) = range else {
            continue;
        };
        each(
            range,
            match what == What::Unpinned as u64 {
                true => Left::Pin,
                false => Left::Read,
            },
        );
    }
}
