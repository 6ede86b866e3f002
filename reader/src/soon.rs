//! Processes that have no directory yet, or none any more: they have just been forked or
//! executed, or they are ending.
//!
//! What /proc shows of a process that ends meanwhile is nothing, or half of it. So whether it
//! lives is asked behind everything that is concluded from what was read of it.

use std::fs;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use regall_directory::settings::LAUNCHERS;

use super::error::OpenError;
use super::process::Process;
use super::procfs;

/// How long a process has to publish its directory. A child of fork needs about a millisecond,
/// and longer on a busy machine.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a process has that is not new: it may have executed a program just now.
const AFTER_EXEC: Duration = Duration::from_millis(50);
/// A process without a directory is a new one until this age.
const NEW: Duration = Duration::from_secs(2);
/// One that gets no processor is waited for up to this.
const STARVED: Duration = Duration::from_secs(5);

/// Calls `look` until `pid` has published its directory, if it is about to.
///
/// [`OpenError::Unpublished`] if it has not, and may still do so; [`OpenError::Removed`] if it
/// had one.
pub fn published_soon<T>(
    pid: u32,
    look: impl Fn() -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    let mut soon = Soon::new(pid);
    loop {
        match look() {
            Ok(done) => return Ok(done),
            Err(why) => soon.wait_after(why)?,
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A process that has no directory, and whether it is about to have one.
pub struct Soon {
    pid: u32,
    waited: Waited,
}

impl Soon {
    /// Nothing has been waited for yet.
    pub fn new(pid: u32) -> Self {
        let waited = Waited::new(pid);
        Self { pid, waited }
    }

    /// Returns whether another look, in a moment, may see more than one that failed with `why`;
    /// if not, that is an error, in words of [`published_soon`]'s.
    pub fn wait_after(&mut self, why: OpenError) -> Result<(), OpenError> {
        // (A directory goes before its process does, and is mapped still.)
        let passes = [
            OpenError::Inert,
            OpenError::Unpublished,
            OpenError::Elsewhere,
        ];
        if !passes.contains(&why) {
            return Err(why);
        }
        let asked = is_asked(self.pid);
        let process = living(self.pid)?;
        if why == OpenError::Inert && !asked {
            return Err(why);
        }
        let new = process.age().is_some_and(|age| age < NEW);
        let patience = if new { PATIENCE } else { AFTER_EXEC };
        if !self.waited.more_than(&process, patience) {
            return Ok(());
        }
        let removed = process.has_lost_its_directory()?;
        living(self.pid)?;
        Err(match removed {
            true => OpenError::Removed,
            false if new => OpenError::Unpublished,
            false => why,
        })
    }
}

/// `pid`, unless it has ended or is ending.
fn living(pid: u32) -> Result<Process, OpenError> {
    let process = Process::find(pid)?;
    match process.is_ending()? {
        true => Err(OpenError::NoSuchProcess),
        false => Ok(process),
    }
}

/// How long a process has been waited for. The time in which it was ready to run and others
/// had the processors does not count.
struct Waited {
    begun: Instant,
    last: Instant,
    counted: Duration,
    /// Nanoseconds that it had run for at the last look.
    ran: Option<u64>,
}

impl Waited {
    fn new(pid: u32) -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            last: now,
            counted: Duration::ZERO,
            ran: ran(pid),
        }
    }

    fn more_than(&mut self, process: &Process, patience: Duration) -> bool {
        let now = Instant::now();
        let before = std::mem::replace(&mut self.ran, ran(process.pid));
        // (It would run if it got a processor, or what it waits for from a disk.)
        let ready = process.state().is_ok_and(|state| "RD".contains(state));
        if self.ran.is_none() || self.ran != before || !ready {
            self.counted += now - self.last;
        }
        self.last = now;
        self.counted > patience || now - self.begun > STARVED
    }
}

/// Nanoseconds for which the first thread of `pid` has run (proc(5), `schedstat`).
fn ran(pid: u32) -> Option<u64> {
    let text = procfs::text(format!("/proc/{pid}/schedstat")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Whether `pid` was started with the shim on, or forked by one that was. It may be left out
/// nevertheless, as launchers are. One that is about to execute a program has no environment
/// for a moment, and one that is ending has none any more.
fn is_asked(pid: u32) -> bool {
    match procfs::whole(format!("/proc/{pid}/environ")) {
        Ok(environment) if environment.is_empty() => executes_a_file(pid),
        Ok(environment) => asks(&environment) && !is_launcher(pid, &environment),
        // One that is too long to be read is not known.
        Err(why) => !matches!(
            why.kind(),
            ErrorKind::PermissionDenied | ErrorKind::FileTooLarge
        ),
    }
}

/// Not so of the kernel's threads.
fn executes_a_file(pid: u32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

/// Whether `pid` is left out for its name, and nobody has said otherwise.
fn is_launcher(pid: u32, environment: &[u8]) -> bool {
    let says = |setting: &[u8]| setting.starts_with(b"REGALL_ONLY=");
    if environment.split(|&b| b == 0).any(says) {
        return false;
    }
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    let name = program
        .ok()
        .and_then(|p| Some(p.file_name()?.as_encoded_bytes().to_vec()));
    name.is_some_and(|name| {
        LAUNCHERS
            .split(|&b| b == b',')
            .any(|launcher| launcher == name)
    })
}

fn asks(environment: &[u8]) -> bool {
    let mut settings = environment.split(|&b| b == 0);
    settings.any(|setting| setting == b"REGALL=1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn who_asks() {
        assert!(asks(b"A=B\0REGALL=1\0"));
        assert!(!asks(b"A=B\0REGALL=0\0XREGALL=1\0REGALL=11\0"));
        assert!(!asks(b""));
    }

    /// What is seen of this process, which nobody has asked for the shim.
    #[test]
    fn only_what_may_come_is_waited_for() {
        let us = std::process::id();
        let looks = Cell::new(0);
        let seen = |first: OpenError, last: Result<u32, OpenError>| {
            looks.set(0);
            published_soon(us, || {
                looks.set(looks.get() + 1);
                match looks.get() {
                    1..=3 => Err(first.clone()),
                    _ => last.clone(),
                }
            })
        };
        assert_eq!(seen(OpenError::Unpublished, Ok(7)), Ok(7));
        assert_eq!(looks.get(), 4);
        assert_eq!(seen(OpenError::Foreign, Ok(7)), Err(OpenError::Foreign));
        assert_eq!(looks.get(), 1);
        let asked = std::env::var("REGALL").is_ok_and(|v| v == "1");
        assert_eq!(seen(OpenError::Inert, Ok(7)).is_ok(), asked);
    }
}
