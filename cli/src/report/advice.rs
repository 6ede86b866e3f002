//! What was refused or limited, and how to mend it.

use super::gather::{Job, Process};
use crate::units::bytes;

/// A line for each thing.
pub fn of(job: &Job) -> Vec<String> {
    let mut all = Vec::new();
    let most = |f: &dyn Fn(&Process) -> Option<u64>| {
        let values = job.ranks.iter().filter_map(|p| Some((f(p)?, p)));
        let over = values.filter(|(n, _)| *n > 0);
        let count = over.clone().count();
        over.max_by_key(|(n, _)| *n).map(|(n, p)| (n, p, count))
    };
    let figure = |name: &'static str| move |p: &Process| p.figure(name);
    let share = |count: usize| format!("in {count} of {} processes", job.ranks.len());

    if let Some((_, p, count)) = most(&figure("counters.pin_limited")) {
        let left = p.figure("bytes.reason.limit").unwrap_or(0);
        let budget = p.figure("budget_bytes").map_or("the budget".into(), bytes);
        let memlock = p.figure("memlock_bytes");
        let mend = match memlock {
            Some(limit) => format!(
                "RLIMIT_MEMLOCK is {}: ulimit -l unlimited where ranks are started (a batch \
                 system's daemon: LimitMEMLOCK=infinity; Slurm, too: \
                 PropagateResourceLimitsExcept=MEMLOCK), see regall doctor",
                bytes(limit)
            ),
            None => "a larger REGALL_LIMIT, or more memory for the job".into(),
        };
        all.push(format!(
            "limited: ranges were over {budget} {}, {} at the end of {}; {mend}",
            share(count),
            bytes(left),
            p.place
        ));
    }
    if let Some((n, p, count)) = most(&figure("counters.pin_refused")) {
        all.push(format!(
            "refused: the kernel did not lock ranges {}, {n} times in {}; REGALL_LOG=info names them",
            share(count),
            p.place
        ));
    }
    if let Some((n, p, count)) = most(&figure("counters.hca_refused")) {
        all.push(format!(
            "refused: the adapter or the kernel did not register ranges {}, {n} times in {}; \
             REGALL_LOG=info names them",
            share(count),
            p.place
        ));
    }
    if let Some((n, p, count)) = most(&figure("counters.hca_limited")) {
        all.push(format!(
            "limited: ranges were not registered with the adapter {}, {n} times in {}; \
             RLIMIT_MEMLOCK, REGALL_LIMIT, or half of the adapter's regions are used up",
            share(count),
            p.place
        ));
    }
    if let Some((n, p, count)) = most(&figure("counters.relented")) {
        all.push(format!(
            "limited: a call of the program's failed for RLIMIT_MEMLOCK until the shim let go of \
             its pins {}, {n} times in {}; ulimit -l unlimited where ranks are started",
            share(count),
            p.place
        ));
    }
    if let Some((n, _, count)) = most(&figure("unpublished")) {
        all.push(format!(
            "limited: {n} ranges could not be published {}: /dev/shm is full",
            share(count)
        ));
    }
    let missed = |p: &Process| Some(p.missed().len() as u64);
    if let Some((_, p, count)) = most(&missed) {
        let word = |w: &&String| w.len() < 40 && w.bytes().all(|b| b.is_ascii_graphic());
        let calls: Vec<_> = p.missed().iter().filter(word).map(String::as_str).collect();
        all.push(format!(
            "missed: {} did not arrive in the shim {}; see what else is preloaded, regall must \
             come first",
            calls.join(", "),
            share(count)
        ));
    }
    let versions = job.libraries();
    if versions.len() > 1 {
        let each = versions.iter().map(|(v, n)| format!("{v} in {n}"));
        let each: Vec<_> = each.collect();
        all.push(format!(
            "mixed: not all have the same library: {}",
            each.join(", ")
        ));
    }
    all
}
