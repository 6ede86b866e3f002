//! What was refused or limited, and how to mend it.

use super::job::Job;
use crate::units::bytes;

/// What is counted: the counter, what it says of ranges, and what to do.
const COUNTED: [[&str; 3]; 4] = [
    [
        "counters.pin_refused",
        "refused: the kernel did not lock ranges",
        "REGALL_LOG=info names them",
    ],
    [
        "counters.hca_refused",
        "refused: the adapter or the kernel did not register ranges",
        "REGALL_LOG=info names them",
    ],
    [
        "counters.hca_limited",
        "limited: ranges were not registered with the adapter",
        "RLIMIT_MEMLOCK, REGALL_LIMIT, or half of the adapter's regions are used up",
    ],
    [
        "counters.retried",
        "limited: a call of the program failed for RLIMIT_MEMLOCK until the shim unpinned memory",
        "ulimit -l unlimited where ranks are started",
    ],
];

/// A line for each thing.
pub fn of(job: &Job) -> Vec<String> {
    let counted = COUNTED.iter().filter_map(|row| counted(job, row));
    let others = [unpublished(job), missed(job), mixed(job)];
    let all = over_budget(job).into_iter().chain(counted);
    all.chain(others.into_iter().flatten()).collect()
}

/// The most that a process has of something, which process that is, and how many have any.
fn most(job: &Job, f: impl Fn(usize) -> Option<u64>) -> Option<(u64, usize, usize)> {
    let values = job.ranks().filter_map(|at| Some((f(at)?, at)));
    let over = values.filter(|(n, _)| *n > 0);
    let mut count = 0;
    let most = over.inspect(|_| count += 1).max_by_key(|(n, _)| *n);
    most.map(|(n, at)| (n, at, count))
}

/// The same of a figure.
fn most_of(job: &Job, name: &str) -> Option<(u64, usize, usize)> {
    let figure = job.figure(name)?;
    most(job, |at| figure.get(at).get())
}

fn share(job: &Job, count: usize) -> String {
    format!("in {count} of {} processes", job.count())
}

fn over_budget(job: &Job) -> Option<String> {
    let (_, at, count) = most_of(job, "counters.pin_limited")?;
    let figure = |name| job.value(at, name);
    let left = figure("bytes.reason.limit").unwrap_or(0);
    let budget = figure("budget_bytes").map_or("the budget".into(), bytes);
    let mend = match figure("memlock_bytes") {
        Some(limit) => format!(
            "RLIMIT_MEMLOCK is {}: ulimit -l unlimited where ranks are started (a batch system's \
             daemon: LimitMEMLOCK=infinity; Slurm, too: PropagateResourceLimitsExcept=MEMLOCK), \
             see regall doctor",
            bytes(limit)
        ),
        None => "a larger REGALL_LIMIT, or more memory for the job".into(),
    };
    Some(format!(
        "limited: ranges were over {budget} {}, {} at the end of {}; {mend}",
        share(job, count),
        bytes(left),
        job.place(at)
    ))
}

fn counted(job: &Job, [counter, what, mend]: &[&str; 3]) -> Option<String> {
    let (n, at, count) = most_of(job, counter)?;
    let (share, place) = (share(job, count), job.place(at));
    Some(format!("{what} {share}, {n} times in {place}; {mend}"))
}

fn unpublished(job: &Job) -> Option<String> {
    let (n, _, count) = most_of(job, "unpublished")?;
    Some(format!(
        "limited: {n} ranges could not be published {}: /dev/shm is full",
        share(job, count)
    ))
}

fn missed(job: &Job) -> Option<String> {
    let missed = |at| Some(&job.kind(at)?.1.selftest_missed);
    let (_, at, count) = most(job, |at| Some(missed(at)?.len() as u64))?;
    let word = |w: &&String| w.len() < 40 && w.bytes().all(|b| b.is_ascii_graphic());
    let calls: Vec<_> = missed(at)?
        .iter()
        .filter(word)
        .map(String::as_str)
        .collect();
    Some(format!(
        "missed: {} did not arrive in the shim {}; see what else is preloaded, regall must come \
         first",
        calls.join(", "),
        share(job, count)
    ))
}

fn mixed(job: &Job) -> Option<String> {
    let versions = job.libraries();
    let each = versions.iter().map(|(v, n)| format!("{v} in {n}"));
    let each: Vec<_> = each.collect();
    (each.len() > 1).then(|| format!("mixed: not all have the same library: {}", each.join(", ")))
}
