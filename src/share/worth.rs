//! Whether sharing new memory is worth it (REGALL_SHARE=heap; `always` asks nobody).
//!
//! The first touch of a file's page costs half as much again as that of private memory, and ten
//! times as much where private memory gets huge pages. Where memory of a size has come and gone
//! several times and no peer has mapped it, the next is left private. Now and then one is tried
//! again, since a program that computes may begin to communicate; each time in vain the next
//! trial is twice as far away.
//!
//! Fork costs a copy of all that is shared, or the sharing. A rank that forks again and again
//! pays each time, so it has private memory from the [`FORKS`]-th on. Who is no rank has it from
//! the first: a server that saves what it has by a fork has no peers.

use super::table::Part;
use crate::base::settings;
use crate::config::Share;
use crate::limits::Company;
use core::sync::atomic::{AtomicU32, AtomicU8, Ordering::*};
use regall_bridge::window::mark;

/// Bytes of a mapping from which on it is shared: what malloc gives a mapping of its own.
pub const LEAST: u64 = 128 << 10;

/// Sizes are told apart by powers of two, from [`LEAST`] on.
const SIZES: usize = 16;
/// Mappings of a size that nobody wanted, after which the next stays private.
const IDLE: u8 = 8;
/// Mappings from one trial to the next, the first time. Of so many, the last few are shared: in
/// a row, for a peer that has tried in vain for a while does not try each time.
const TURN: u32 = 64;
const TRIED: u32 = 4;
/// A turn is doubled so many times at the most.
const DOUBLED: u8 = 6;
/// A rank's forks of which the last ends sharing.
const FORKS: u32 = 4;

/// What is known of the mappings of one size.
struct Size {
    /// How many mappings have gone one after the other that no peer had mapped, up to [`IDLE`].
    unwanted: AtomicU8,
    /// How many mappings have been asked about in this turn.
    asked: AtomicU32,
    /// How many times the turn has been doubled.
    doubled: AtomicU8,
}

static KNOWN: [Size; SIZES] = [const { Size::new() }; SIZES];
/// Forks that find memory shared until sharing ends.
static LEFT: AtomicU32 = AtomicU32::new(FORKS);

/// At start-up, in a process that has that company.
pub fn begin(company: Company) {
    if company == Company::Unknown {
        LEFT.store(1, Relaxed);
    }
}

fn of_size(bytes: u64) -> Option<&'static Size> {
    let least = LEAST.ilog2();
    let above = bytes.max(1).ilog2().saturating_sub(least);
    KNOWN.get((above as usize).min(SIZES - 1))
}

impl Size {
    const fn new() -> Self {
        Self {
            unwanted: AtomicU8::new(0),
            asked: AtomicU32::new(0),
            doubled: AtomicU8::new(0),
        }
    }

    fn share_next(&self) -> bool {
        if self.unwanted.load(Relaxed) < IDLE {
            return true;
        }
        let doubled = self.doubled.load(Relaxed).min(DOUBLED);
        let turn = TURN << doubled;
        let n = self.asked.fetch_add(1, Relaxed);
        if n + 1 >= turn {
            self.asked.store(0, Relaxed);
            self.doubled.store((doubled + 1).min(DOUBLED), Relaxed);
        }
        n + TRIED >= turn
    }

    fn learn(&self, wanted: bool) {
        if wanted {
            self.asked.store(0, Relaxed);
            self.doubled.store(0, Relaxed);
        }
        let n = match wanted {
            true => 0,
            false => self.unwanted.load(Relaxed).saturating_add(1).min(IDLE),
        };
        self.unwanted.store(n, Relaxed);
    }
}

/// Whether new memory of `bytes` bytes is to be shared.
pub fn sharing(bytes: u64) -> bool {
    of_size(bytes).is_none_or(Size::share_next)
}

/// `part` of a file that is still open has been unmapped; `bytes`: all that was mapped of it, if
/// it was the last. Memory of the heap comes and goes as a part of what stays.
pub fn learn(part: &Part, bytes: u64) {
    if part.frozen || part.file.fd < 0 {
        return; // peers could not be told apart from its time before
    }
    if let Some(size) = of_size(bytes) {
        size.learn(mark::is_there(part.file.fd));
    }
}

/// Returns whether memory is shared only where that pays.
pub fn is_choosy() -> bool {
    settings::config().share != Share::Always
}

/// A fork is about to be made, with memory that is shared. Whether that is one too many.
pub fn forked_too_often() -> bool {
    let left = LEFT.load(Relaxed);
    LEFT.store(left.saturating_sub(1), Relaxed);
    is_choosy() && left <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(size: &Size, mappings: u32, wanted: bool) -> u32 {
        let one = |_| {
            let shared = size.share_next();
            if shared {
                size.learn(wanted);
            }
            u32::from(shared)
        };
        (0..mappings).map(one).sum()
    }

    #[test]
    fn trials_in_vain_become_rare() {
        let size = Size::new();
        assert_eq!(shared(&size, u32::from(IDLE), false), u32::from(IDLE));
        for doubled in 0..=DOUBLED {
            let turn = TURN << doubled;
            assert_eq!(shared(&size, turn - TRIED, false), 0, "{doubled}");
            assert_eq!(shared(&size, TRIED, false), TRIED, "{doubled}");
        }
        // Never farther apart than that.
        assert_eq!(shared(&size, TURN << DOUBLED, false), TRIED);
    }

    #[test]
    fn one_peer_brings_it_back() {
        let size = Size::new();
        shared(&size, 1000, false);
        while !size.share_next() {}
        size.learn(true);
        assert_eq!(shared(&size, 100, true), 100);
        // And what was learnt of trials is forgotten.
        assert_eq!(shared(&size, u32::from(IDLE), false), u32::from(IDLE));
        assert_eq!(shared(&size, TURN, false), TRIED);
    }
}
