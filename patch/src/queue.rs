//! Code that became executable while somebody else had the patcher's memory.
//!
//! Who can't have the lock leaves the range here and waits for a while that it is
//! searched: whoever has the lock searches what is here before it lets go, and looks
//! again behind that. A range whose owner waits is in its owner's hands. Who comes on top
//! of its own thread's search (a signal handler) can't wait, and who waited in vain
//! goes on: what such an owner leaves may be unmapped at any moment, so it is copied first.
//! With no place free, everything executable is searched.

use core::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering::*};
use regall_directory::addr::PageRange;

/// Threads that can wait at the same time.
const PLACES: usize = 32;

/// A place that is nobody's.
const FREE: u64 = 0;
/// Being written.
const FILLING: u64 = 1;
/// To be searched; its owner waits.
const WAITING: u64 = 2;
/// To be searched; nobody waits.
const LEFT: u64 = 3;
/// Being searched; its owner waits.
const WORKING: u64 = 4;
/// Searched; its owner frees the place.
const DONE: u64 = 5;

/// What is to be searched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// The range of the code.
    pub range: PageRange,
    /// Whether it was executable before: anybody may be running it.
    pub running: bool,
    /// Sites are patched, not just counted.
    pub patch: bool,
    /// The code is gone: what is known of it is to be forgotten, nothing to be searched.
    pub gone: bool,
}

struct Place {
    state: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    flags: AtomicU64,
}

static QUEUE: [Place; PLACES] = [const {
    Place {
        state: AtomicU64::new(FREE),
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        flags: AtomicU64::new(0),
    }
}; PLACES];
/// Whether there was no place for something.
static EVERYTHING: AtomicBool = AtomicBool::new(false);

/// A job that waits to be done. Ends as [`Ticket::leave`] or when it is done.
pub struct Ticket(&'static Place);

/// Leaves a job. `None`: no place is free.
pub fn put(job: Job) -> Option<Ticket> {
    let fill = |place: &&Place| {
        let taken = place
            .state
            .compare_exchange(FREE, FILLING, Acquire, Relaxed);
        taken.is_ok()
    };
    let place = QUEUE.iter().find(fill)?;
    place.start.store(job.range.start(), Relaxed);
    place.end.store(job.range.end(), Relaxed);
    let flags = u64::from(job.running) | u64::from(job.patch) << 1 | u64::from(job.gone) << 2;
    place.flags.store(flags, Relaxed);
    place.state.store(WAITING, Release);
    // Whoever gives the lock back looks here behind that, and who leaves a job tries for
    // the lock behind this: one of the two sees the other.
    fence(SeqCst);
    Some(Ticket(place))
}

/// There is something that no place was free for.
pub fn overflow() {
    EVERYTHING.store(true, SeqCst);
}

/// Whether there is anything to do.
pub fn pending() -> bool {
    fence(SeqCst);
    let open = |place: &Place| matches!(place.state.load(Relaxed), WAITING | LEFT);
    EVERYTHING.load(Relaxed) || QUEUE.iter().any(open)
}

/// Whether everything is to be searched; not any more then.
pub fn take_everything() -> bool {
    EVERYTHING.load(Relaxed) && EVERYTHING.swap(false, SeqCst)
}

impl Ticket {
    /// Whether the job is done. Its place is free then.
    pub fn is_done(&self) -> bool {
        let done = self.0.state.load(Acquire) == DONE;
        if done {
            self.0.state.store(FREE, Release);
        }
        done
    }

    /// Waits no more. False if somebody is at the job just now: it is to be waited for.
    pub fn leave(&self) -> bool {
        let left = self
            .0
            .state
            .compare_exchange(WAITING, LEFT, AcqRel, Relaxed);
        left.is_ok()
    }
}

/// Does what is to be done, with the patcher's lock held. `work` is told whether the
/// owner waits.
pub fn drain(mut work: impl FnMut(Job, bool)) {
    for place in &QUEUE {
        let begin = |from| {
            let taken = place.state.compare_exchange(from, WORKING, AcqRel, Relaxed);
            taken.is_ok()
        };
        let waits = begin(WAITING);
        if !waits && !begin(LEFT) {
            continue;
        }
        let flags = place.flags.load(Relaxed);
        let range = PageRange::new(place.start.load(Relaxed), place.end.load(Relaxed));
        if let Some(range) = range {
            let job = Job {
                range,
                running: flags & 1 != 0,
                patch: flags & 2 != 0,
                gone: flags & 4 != 0,
            };
            work(job, waits);
        }
        place.state.store(if waits { DONE } else { FREE }, Release);
    }
}

/// In a child of fork: nobody waits, and what was being written, searched or given back
/// is searched again.
pub fn recover() {
    for place in &QUEUE {
        match place.state.load(Relaxed) {
            FREE | DONE => place.state.store(FREE, Relaxed),
            FILLING => {
                place.state.store(FREE, Relaxed);
                EVERYTHING.store(true, Relaxed);
            }
            _ => place.state.store(LEFT, Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(n: u64) -> Job {
        Job {
            range: PageRange::new(n << 12, (n + 1) << 12).unwrap(),
            running: n % 2 == 0,
            patch: n % 3 == 0,
            gone: n % 5 == 0,
        }
    }

    /// One test, since there is one queue.
    #[test]
    fn every_job_is_done_once_whoever_waits() {
        let _alone = crate::tests::alone();
        assert!(!pending());
        let first = put(job(1)).unwrap();
        let second = put(job(2)).unwrap();
        assert!(pending() && second.leave() && !second.leave());
        let mut seen = Vec::new();
        drain(|job, waits| {
            assert!(!waits || !first.is_done() && !first.leave());
            seen.push((job, waits));
        });
        assert_eq!(seen, [(job(1), true), (job(2), false)]);
        assert!(!pending() && first.is_done() && !first.is_done());
        // A child of fork does what nobody waits for there.
        let third = put(job(3)).unwrap();
        recover();
        assert!(pending() && !third.leave());
        drain(|job, waits| seen.push((job, waits)));
        assert_eq!(seen[2..], [(job(3), false)]);
        // More than there are places for.
        let all: Vec<_> = (0..).map_while(|n| put(job(n))).collect();
        assert_eq!(all.len(), PLACES);
        overflow();
        drain(|_, _| ());
        assert!(all.iter().all(Ticket::is_done));
        assert!(pending() && take_everything() && !take_everything() && !pending());
    }
}
