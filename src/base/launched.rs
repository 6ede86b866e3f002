//! The place of this process in a job, by what launchers and batch systems put into its
//! environment, and the day on which it began. Kept from the constructor on, for names of files
//! and for the statistics.

use crate::config::names::{self, Job};
use crate::config::Environment;
use crate::sys::time;
use crate::text::number;
use core::cell::UnsafeCell;
use regall_directory::settings::{JOBS, RANKS, SIZES};

/// What is kept.
struct Launched {
    rank: Option<u64>,
    ranks: Option<u64>,
    job: Job,
    day: u64,
}

struct Kept(UnsafeCell<Launched>);
// SAFETY: written by the constructor alone, before anybody reads it.
unsafe impl Sync for Kept {}
static KEPT: Kept = Kept(UnsafeCell::new(Launched {
    rank: None,
    ranks: None,
    job: Job::new(),
    day: 0,
}));

/// Keeps what the environment says.
///
/// # Safety
/// The constructor calls this, while it is the only thread and before any other function of this
/// module.
pub unsafe fn remember(env: Environment) {
    let first = |names: &[&[u8]]| {
        let said = |name: &&[u8]| env.with(name, number).flatten();
        names.iter().find_map(said)
    };
    let said = |name: &&[u8]| {
        let job = env.with(name, names::job)?;
        (!job.as_bytes().is_empty()).then_some(job)
    };
    // SAFETY: by the contract above nobody else has a reference.
    let kept = unsafe { &mut *KEPT.0.get() };
    *kept = Launched {
        rank: first(&RANKS),
        ranks: first(&SIZES),
        job: JOBS.iter().find_map(said).unwrap_or_default(),
        day: time::day(),
    };
}

fn kept() -> &'static Launched {
    // SAFETY: not written any more once anybody calls this.
    unsafe { &*KEPT.0.get() }
}

/// Its MPI rank.
pub fn rank() -> Option<u64> {
    kept().rank
}

/// The number of ranks.
pub fn ranks() -> Option<u64> {
    kept().ranks
}

/// The number of the batch job, as part of a file's name; empty: no batch system says.
pub fn job() -> &'static [u8] {
    kept().job.as_bytes()
}

/// When it began: days since 1970-01-01.
pub fn day() -> u64 {
    kept().day
}
