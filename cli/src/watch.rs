//! `regall verify --watch`: again and again, until the processes have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::{Duration, Instant};

use regall_documents::Verify;
use regall_reader::{self as reader, OpenError, Process};

use crate::answer::{vanished, Answers, Question, Users, BLIND, GOOD};
use crate::examine::{examine, Failure, Verdict};

/// A process that just lost its directory is either ending or between two
/// programs; so long it has to show which.
const SETTLING: Duration = Duration::from_secs(1);

/// The processes that are being watched, and whether they were seen well once.
type Watched = BTreeMap<u32, Watch>;

struct Watch {
    process: Option<Process>,
    /// Whose it is, with `--all`.
    uid: Option<u32>,
    seen: bool,
}

/// Looks every `pause` until all have ended; the worst exit code there was.
pub fn watch(
    asked: &Question,
    pause: Duration,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<u8> {
    let mut answers = Answers::new(json);
    let mut worst = GOOD;
    let mut watched = Watched::new();
    let mut first = true;
    let mut found = BTreeSet::new();
    loop {
        let began = Instant::now();
        if asked.all || first {
            add(&mut watched, asked)?;
        }
        first = false;
        let mut users = Users::default();
        for (pid, watch) in std::mem::take(&mut watched) {
            let uid = watch.uid;
            let (code, going_on) = step(pid, watch, asked, &mut answers, out)?;
            if code != GOOD || going_on.is_some() {
                found.insert(pid);
                uid.into_iter().for_each(|uid| users.add(uid, code));
            }
            worst = worst.max(code);
            watched.extend(going_on.map(|w| (pid, w)));
        }
        let document = answers.document(worst, users);
        line(document.filter(|d| !d.processes.is_empty()), out)?;
        out.flush()?;
        if watched.is_empty() {
            let code = worst.max(asked.found(found.len()));
            line(answers.document(code, Users::default()), out)?;
            return Ok(code);
        }
        std::thread::sleep(pause.saturating_sub(began.elapsed()));
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

fn add(watched: &mut Watched, asked: &Question) -> anyhow::Result<()> {
    let named = asked.pids().iter().map(|pid| (*pid, None));
    let published = match asked.all {
        true => asked.published()?,
        false => Vec::new(),
    };
    let published = published.into_iter().map(|seen| (seen.pid, Some(seen.uid)));
    for (pid, uid) in named.chain(published) {
        watched.entry(pid).or_insert_with(|| Watch {
            process: Process::find(pid).ok(),
            uid,
            seen: false,
        });
    }
    Ok(())
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
    let excused = watch.seen || asked.all;
    match &verdict {
        Verdict::Failed(Failure::Unreadable(
            OpenError::Inert | OpenError::Unpublished | OpenError::Removed,
        )) if watch.seen => match settle(pid, &watch) {
            Settled::Ended => Ok((GOOD, None)),
            Settled::Back => Ok((GOOD, Some(watch))),
            Settled::Inert if asked.all => Ok((GOOD, None)),
            Settled::Inert => Ok((answers.report(pid, watch.uid, &verdict, out)?, None)),
        },
        v if vanished(v) && excused => Ok((GOOD, None)),
        v if excused && matches!(v, Verdict::Failed(_)) && ended(&watch) => Ok((GOOD, None)),
        Verdict::Failed(_) => {
            let code = answers.report(pid, watch.uid, &verdict, out)?;
            // These pass; the rest does not.
            let again = matches!(
                verdict,
                Verdict::Failed(Failure::Busy | Failure::Unreadable(OpenError::Unpublished))
            );
            Ok((code.max(BLIND), again.then_some(watch)))
        }
        _ => {
            let code = answers.report(pid, watch.uid, &verdict, out)?;
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
