//! Processes that have no directory yet: they have just been forked, or executed.

use std::fs;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use regall_directory::settings::LAUNCHERS;

use super::{OpenError, Process};

/// So long a process has to publish its directory. A child of fork needs about a millisecond,
/// and longer on a busy machine.
const PATIENCE: Duration = Duration::from_millis(500);
/// So long one has that is no new process: it may have executed a program just now.
const AFTER_EXEC: Duration = Duration::from_millis(50);
/// A process without a directory is a new one until this age.
const NEW: Duration = Duration::from_secs(2);

/// Calls `look` until `pid` has published its directory, if it is about to.
///
/// [`OpenError::Unpublished`] if it has not, and may still do so.
pub fn published_soon<T>(
    pid: u32,
    look: impl Fn() -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    let began = Instant::now();
    loop {
        let why = match look() {
            Err(why @ (OpenError::Inert | OpenError::Unpublished)) => why,
            done => return done,
        };
        if is_ending(pid)? {
            return Err(OpenError::NoSuchProcess);
        }
        let new = Process::find(pid)?.age().is_some_and(|age| age < NEW);
        if why == OpenError::Inert && !is_asked(pid) {
            return Err(why);
        }
        if began.elapsed() > if new { PATIENCE } else { AFTER_EXEC } {
            return Err(if new { OpenError::Unpublished } else { why });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether `pid` was started with the shim on, or forked by one that was. It may be left out
/// nevertheless, as launchers are. One that is about to execute a program has no environment
/// for a moment, and one that is ending has none any more.
fn is_asked(pid: u32) -> bool {
    match fs::read(format!("/proc/{pid}/environ")) {
        Ok(environment) if environment.is_empty() => has_memory(pid),
        Ok(environment) => asks(&environment) && !is_launcher(pid, &environment),
        Err(why) => why.kind() != ErrorKind::PermissionDenied,
    }
}

/// `PF_EXITING` and `PF_KTHREAD` of the kernel's sched.h, as field 9 of /proc/PID/stat has them.
const EXITING: u64 = 0x4;
const KERNEL_THREAD: u64 = 0x20_0000;

fn flags(pid: u32) -> Result<u64, OpenError> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let behind_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let flags = behind_name.split(' ').nth(6).and_then(|f| f.parse().ok());
    flags.ok_or(OpenError::NoSuchProcess)
}

/// Whether `pid` is on its way out: its directory is gone, and it may be there for a while.
fn is_ending(pid: u32) -> Result<bool, OpenError> {
    Ok(flags(pid)? & EXITING != 0)
}

/// Whether `pid` may have memory of its own.
fn has_memory(pid: u32) -> bool {
    flags(pid).is_ok_and(|flags| flags & KERNEL_THREAD == 0)
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
