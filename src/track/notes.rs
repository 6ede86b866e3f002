//! What calls do that can't have the lock: its holder is further up their own stack (a signal handler),
//! or parked. The call is made, and noted. Who has the lock writes the notes into the ledger, first
//! thing and before it gives it back. Then the range is read from the kernel once more, without
//! the lock ([`super::deferred`]): in which order the calls were made nobody knows.

use super::State;
use crate::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use crate::base::counters;
use regall_directory::addr::PageRange;
use regall_directory::layout::Counter;
use regall_directory::planted;
use regall_directory::vocab::{Attr, Flags};

/// Behind the last address that user space can have.
const EVERYTHING: u64 = 1 << 56;

const NOTES: usize = if cfg!(feature = "few-places") {
    2
} else {
    1024
};

/// The places that others than [`What::Locked`] take. Of what these say the kernel knows: to read everything anew
/// takes a handler on top of a reader less time than to read each of them.
const OTHERS: usize = if NOTES < 64 { NOTES } else { 64 };

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
    /// The range has changed in a way that only the kernel knows; or the note is in the ledger.
    Changed = 3,
    /// As changed; what was hidden with it is to be published anew.
    Hidden = 4,
    /// Being written, or being worked off: nobody else's to take.
    Busy = 6,
    /// Our locks on the range are gone.
    Unlocked = 7,
    /// The application has the locks in the note on the range, and no others.
    Locked = 8,
    /// As changed; what is registered there with adapters is about other memory, and our locks are gone.
    Spoiled = 5,
}

impl What {
    const fn bit(self) -> u64 {
        1 << self as u64
    }
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

/// The place of the next note; they are used anew when all are done with.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// Places from here on were never used.
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// What there is to do: bits.
static TO_DO: AtomicU64 = AtomicU64::new(0);
/// Some are not in the ledger.
const FRESH: u64 = 1;
/// Some ranges are to be read.
const UNREAD: u64 = 2;
/// One had no place, or nobody knows what a thread has left: everything is to be read anew.
const EVERYTHING_UNREAD: u64 = 4;

/// What those said that had no place, [`What::bit`]s: it is so of all from [`FIRST`] to [`LAST`].
static OF_ALL: AtomicU64 = AtomicU64::new(0);
static FIRST: AtomicU64 = AtomicU64::new(EVERYTHING);
static LAST: AtomicU64 = AtomicU64::new(0);

/// After fork or a rebuild.
pub fn reset() {
    for note in &NOTED {
        note.what.store(What::Done as u64, Relaxed);
    }
    NEXT.store(0, Relaxed);
    TO_DO.store(0, Relaxed);
    OF_ALL.store(0, Relaxed);
    FIRST.store(EVERYTHING, Relaxed);
    LAST.store(0, Relaxed);
}

impl Note {
    fn range(&self) -> Option<PageRange> {
        PageRange::new(self.start.load(Relaxed), self.end.load(Relaxed))
    }

    /// Says `new` if it has said `old`.
    fn becomes(&self, old: What, new: What) -> bool {
        let (old, new) = (old as u64, new as u64);
        let changed = self.what.compare_exchange(old, new, SeqCst, Relaxed);
        changed.is_ok()
    }

    fn is(&self, what: What) -> bool {
        self.what.load(Acquire) == what as u64
    }
}

/// The places that may have notes.
fn noted() -> impl Iterator<Item = &'static Note> {
    NOTED.iter().take(HIGH.load(SeqCst))
}

#[cold]
fn take(what: What, range: PageRange, attr: u64) {
    counters::count(Counter::Deferred);
    loop {
        let most = if what == What::Locked { NOTES } else { OTHERS };
        // (What finds no place takes none from those behind.)
        let n = match NEXT.load(SeqCst) < most {
            true => NEXT.fetch_add(1, SeqCst),
            false => most,
        };
        HIGH.fetch_max(n + 1, SeqCst);
        let Some(note) = NOTED.get(n).filter(|_| n < most) else {
            FIRST.fetch_min(range.start(), SeqCst);
            LAST.fetch_max(range.end(), SeqCst);
            OF_ALL.fetch_or(what.bit(), SeqCst);
            TO_DO.fetch_or(FRESH | EVERYTHING_UNREAD, SeqCst);
            return;
        };
        // Else it is not done with, since it came late.
        if note.becomes(What::Done, What::Busy) {
            note.start.store(range.start(), Relaxed);
            note.end.store(range.end(), Relaxed);
            note.attr.store(attr, Relaxed);
            note.what.store(what as u64, Release);
            TO_DO.fetch_or(FRESH, SeqCst);
            return;
        }
    }
}

/// Everything is to be read anew.
#[cold]
pub fn everything() {
    TO_DO.fetch_or(EVERYTHING_UNREAD, SeqCst);
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
        note.is(What::Locked)
            && note.attr.load(Relaxed) != 0
            && note
                .range()
                .is_some_and(|it| it.intersection(range).is_some())
    };
    noted().any(locked)
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

/// Writes the notes into the ledger. Called by the lock's holder, as the first thing and as the last.
#[inline]
pub fn apply(state: &mut State) {
    if TO_DO.load(Acquire) & FRESH != 0 {
        apply_slowly(state);
    }
}

#[cold]
fn apply_slowly(state: &mut State) {
    // A handler on top of this may note more.
    while TO_DO.fetch_and(!FRESH, SeqCst) & FRESH != 0 {
        apply_to_all(state);
        noted().for_each(|note| apply_one(state, note));
        TO_DO.fetch_or(UNREAD, SeqCst);
    }
}

fn apply_to_all(state: &mut State) {
    let said = OF_ALL.swap(0, SeqCst);
    if said == 0 {
        return;
    }
    let (first, last) = (FIRST.swap(EVERYTHING, SeqCst), LAST.swap(0, SeqCst));
    // Taken by who came before, when it was not yet said what is so of it: then of everything.
    let hull = PageRange::new(first, last).or(PageRange::new(0, EVERYTHING));
    let Some(all) = hull else {
        return;
    };
    if said & (What::Gone.bit() | What::Spoiled.bit()) != 0 {
        state.hca.spoil(all);
    }
    if said & (What::Spoiled.bit() | What::Unlocked.bit()) != 0 {
        state.unlocked(all);
    }
}

fn apply_one(state: &mut State, note: &Note) {
    // First, since the words before are its own only then. Nobody else takes one before it is in the
    // ledger, and it stays until it is: a handler looks at both.
    let what = note.what.load(Acquire);
    let is = |it: What| what == it as u64;
    let (range, word) = (note.range(), note.attr.load(Relaxed));
    let Some(range) = range else {
        return;
    };
    let mut left = What::Changed;
    if is(What::Gone) {
        state.remove(range, |_, _| ());
        state.hca.spoil(range);
        left = What::Hidden;
    } else if is(What::Spoiled) {
        state.hca.spoil(range);
        state.unlocked(range);
    } else if is(What::Unlocked) {
        state.unlocked(range);
    } else if is(What::Locked) {
        let locks = Flags::from_bits(word as u16);
        planted!("notes-no-locks", (), state.set_locks(range, locks));
    } else if is(What::Mapped) {
        if let Some(attr) = Attr::unpack(word) {
            state.insert(range, attr);
        }
    } else {
        return;
    }
    note.what.store(left as u64, Release);
}

/// Whether there is anything to do.
#[inline]
pub fn any() -> bool {
    TO_DO.load(Acquire) != 0
}

/// Whether everything is to be read anew: by who is told so, and nobody else.
pub fn is_everything_unread() -> bool {
    TO_DO.fetch_and(!EVERYTHING_UNREAD, SeqCst) & EVERYTHING_UNREAD != 0
}

/// Takes the notes that are in the ledger one by one, and has `read` read their ranges, and publish
/// anew what was hidden there. Called without the lock.
pub fn work_off(mut read: impl FnMut(PageRange, bool)) {
    let n = NEXT.load(SeqCst);
    TO_DO.fetch_and(!UNREAD, SeqCst);
    for note in noted() {
        let hidden = note.becomes(What::Hidden, What::Busy);
        if !hidden && !note.becomes(What::Changed, What::Busy) {
            continue;
        }
        let range = note.range();
        note.what.store(What::Done as u64, Release);
        if let Some(range) = range {
            read(range, hidden);
        }
    }
    // Unless one was taken meanwhile, or is not in the ledger, where it has to come before later ones.
    if TO_DO.load(SeqCst) & FRESH != 0 {
        return;
    }
    let _ = NEXT.compare_exchange(n, 0, SeqCst, Relaxed);
}
