//! `regall verify --watch`: again and again, until the processes have ended.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::time::{Duration, Instant};

use regall_documents::Verify;
use regall_reader::{self as reader, OpenError, Process, Search, Seen};

use crate::answer::{vanished, Answers, Blind, Question, Users, BLIND, GOOD};
use crate::examine::{examine, Failure, Verdict};
use crate::round::{Round, Time};

/// A process that just lost its directory is either ending or between two
/// programs; so long it has to show which.
const SETTLING: Duration = Duration::from_secs(1);

/// Looks every `pause` until all have ended; the worst exit code there was.
pub fn watch(
    asked: &Question,
    pause: Duration,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<u8> {
    let answers = Answers::new(json);
    match asked.all {
        true => watch_all(asked, pause, answers, out),
        false => watch_named(asked, pause, answers, out),
    }
}

/// A document, in one line.
fn line(document: Option<Verify>, out: &mut impl Write) -> anyhow::Result<()> {
    if let Some(document) = document {
        serde_json::to_writer(&mut *out, &document)?;
        writeln!(out)?;
    }
    Ok(())
}

fn watch_all(
    asked: &Question,
    pause: Duration,
    mut answers: Answers,
    out: &mut impl Write,
) -> anyhow::Result<u8> {
    let mut known = HashSet::new();
    let (mut all, mut last) = (Users::default(), Vec::new());
    let mut blind = Blind::default();
    loop {
        let began = Instant::now();
        let time = Time::of(asked)?;
        let round = Round::of(asked, &time, settled(&time, &last)?, &mut answers, out)?;
        if round.blind != blind {
            round.complain_of_blind();
            blind.clone_from(&round.blind);
        }
        for (seen, code) in &round.found {
            if !known.contains(&(seen.pid, seen.start_time)) {
                all.add(seen.uid, *code);
            }
        }
        // (Nobody comes back with the same start.)
        let found = round.found.iter();
        known = found.map(|(seen, _)| (seen.pid, seen.start_time)).collect();
        all.worsen(&round.users);
        let (worst, found) = all.sums();
        let document = answers.document(worst, round.users);
        line(document.filter(|d| !d.processes.is_empty()), out)?;
        out.flush()?;
        if round.found.is_empty() {
            let code = worst.max(asked.found(found));
            line(answers.document(code, all), out)?;
            return Ok(code);
        }
        last = round.found.into_iter().map(|(seen, _)| seen).collect();
        std::thread::sleep(pause.saturating_sub(began.elapsed()));
    }
}

/// The processes that there are now. Those of the `last` round that live on and have no directory
/// may be between two programs: they have a moment to show it, all of them together.
fn settled(time: &Time, last: &[Seen]) -> anyhow::Result<Search> {
    let mut now = time.search()?;
    let began = Instant::now();
    let pids: HashSet<_> = now.seen.iter().map(|seen| seen.pid).collect();
    let mut gone: Vec<_> = last.iter().filter(|s| !pids.contains(&s.pid)).collect();
    let mut back = false;
    while began.elapsed() < SETTLING && !gone.is_empty() {
        gone.retain(|seen| {
            let is_back =
                began.elapsed() < SETTLING && seen.alive() && reader::open(seen.pid).is_ok();
            back |= is_back;
            !is_back && seen.alive()
        });
        std::thread::sleep(Duration::from_millis(10));
    }
    if back {
        now = time.search()?;
    }
    Ok(now)
}

/// The processes that are being watched, and whether they were seen well once.
type Watched = BTreeMap<u32, Watch>;

struct Watch {
    process: Option<Process>,
    seen: bool,
}

fn watch_named(
    asked: &Question,
    pause: Duration,
    mut answers: Answers,
    out: &mut impl Write,
) -> anyhow::Result<u8> {
    let mut worst = GOOD;
    let watch = |pid: &u32| Watch {
        process: Process::find(*pid).ok(),
        seen: false,
    };
    let pids = asked.pids().iter();
    let mut watched: Watched = pids.map(|pid| (*pid, watch(pid))).collect();
    loop {
        let began = Instant::now();
        for (pid, watch) in std::mem::take(&mut watched) {
            let (code, going_on) = step(pid, watch, asked, &mut answers, out)?;
            worst = worst.max(code);
            watched.extend(going_on.map(|w| (pid, w)));
        }
        let document = answers.document(worst, Users::default());
        line(document.filter(|d| !d.processes.is_empty()), out)?;
        out.flush()?;
        if watched.is_empty() {
            line(answers.document(worst, Users::default()), out)?;
            return Ok(worst);
        }
        std::thread::sleep(pause.saturating_sub(began.elapsed()));
    }
}

/// One look: its code, and the process if it is to be looked at again.
fn step(
    pid: u32,
    watch: Watch,
    asked: &Question,
    answers: &mut Answers,
    out: &mut impl Write,
) -> std::io::Result<(u8, Option<Watch>)> {
    let ended = |w: &Watch| !w.process.as_ref().is_some_and(Process::alive);
    if watch.seen && ended(&watch) {
        return Ok((GOOD, None));
    }
    let verdict = examine(pid, asked.strict);
    let excused = watch.seen;
    match &verdict {
        Verdict::Failed(Failure::Unreadable(
            OpenError::Inert | OpenError::Unpublished | OpenError::Removed,
        )) if watch.seen => match settle(pid, &watch) {
            Settled::Ended => Ok((GOOD, None)),
            Settled::Back => Ok((GOOD, Some(watch))),
            Settled::Inert => Ok((answers.report(pid, None, &verdict, out)?, None)),
        },
        v if vanished(v) && excused => Ok((GOOD, None)),
        v if excused && matches!(v, Verdict::Failed(_)) && ended(&watch) => Ok((GOOD, None)),
        Verdict::Failed(_) => {
            let code = answers.report(pid, None, &verdict, out)?;
            // These pass; the rest does not.
            let again = matches!(
                verdict,
                Verdict::Failed(Failure::Busy(_) | Failure::Unreadable(OpenError::Unpublished))
            );
            Ok((code.max(BLIND), again.then_some(watch)))
        }
        _ => {
            let code = answers.report(pid, None, &verdict, out)?;
            Ok((
                code,
                Some(Watch {
                    seen: true,
                    ..watch
                }),
            ))
        }
    }
}

/// What a process came to that lost its directory.
enum Settled {
    /// The process has ended.
    Ended,
    /// The process executes another program, with the shim.
    Back,
    /// The process executes another program, without the shim.
    Inert,
}

fn settle(pid: u32, watch: &Watch) -> Settled {
    let began = Instant::now();
    while began.elapsed() < SETTLING {
        if !watch.process.as_ref().is_some_and(Process::alive) {
            return Settled::Ended;
        }
        match reader::open(pid) {
            Ok(_) => return Settled::Back,
            Err(OpenError::NoSuchProcess) => return Settled::Ended,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    Settled::Inert
}
