//! Things that are tried: in a child of fork, so that nothing of what they do
//! stays, and a filter that kills takes the child alone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::{self, Errno};
use rustix::mm::{mmap_anonymous, MapFlags, ProtFlags};
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::process::{kill_process, set_parent_process_death_signal, waitid, waitpid};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};

/// How long a child may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why a child has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// A signal ended it.
    Killed(i32),
    /// The child was not done in time.
    Late,
    /// There was no child, or it said nothing.
    Silent,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Killed(libc::SIGSYS) => {
                f.write_str("a seccomp filter kills the process that tries it")
            }
            Self::Killed(signal) => {
                write!(f, "the process that tried it was ended by signal {signal}")
            }
            Self::Late => write!(f, "not done within {} s", PATIENCE.as_secs()),
            Self::Silent => f.write_str("no child could be made to try it"),
        }
    }
}

/// A child of fork. It is killed when this is dropped.
pub struct Child {
    pid: Pid,
    pipe: OwnedFd,
}

impl Child {
    /// Starts one that calls `answer` with the end of a pipe, and then ends. This
    /// process has one thread, so the child may do all that we may.
    pub fn start(answer: impl FnOnce(BorrowedFd)) -> Result<Self, Failure> {
        let (pipe, end) = pipe_with(PipeFlags::CLOEXEC).map_err(|_| Failure::Silent)?;
        // SAFETY: no threads, and nothing of ours is held.
        match unsafe { libc::fork() } {
            0 => {
                // It must not outlive us.
                let _ = set_parent_process_death_signal(Some(Signal::KILL));
                answer(end.as_fd());
                // SAFETY: ends the child, with nothing of the parent's flushed.
                unsafe { libc::_exit(0) }
            }
            ..0 => Err(Failure::Silent),
            pid => match Pid::from_raw(pid) {
                Some(pid) => Ok(Self { pid, pipe }),
                None => Err(Failure::Silent),
            },
        }
    }

    /// The next `N` numbers that it has to say.
    pub fn numbers<const N: usize>(&self) -> Result<[i64; N], Failure> {
        let deadline = Instant::now() + PATIENCE;
        let mut bytes = vec![0u8; N * 8];
        let mut have = 0;
        while have < bytes.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| Failure::Late)?;
            match poll(&mut [PollFd::new(&self.pipe, PollFlags::IN)], Some(&left)) {
                Err(Errno::INTR) => continue,
                Ok(1..) => (),
                _ => return Err(Failure::Late),
            }
            match io::read(&self.pipe, &mut bytes[have..]) {
                Ok(0) | Err(_) => return Err(self.end()),
                Ok(n) => have += n,
            }
        }
        let mut numbers = [0; N];
        for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = i64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        Ok(numbers)
    }

    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// How it ended, without taking that away from [`Drop`].
    fn end(&self) -> Failure {
        // The pipe is closed, so it is about to end.
        let ended = waitid(
            WaitId::Pid(self.pid),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        );
        match ended.ok().flatten().and_then(|s| s.terminating_signal()) {
            Some(signal) => Failure::Killed(signal),
            None => Failure::Silent,
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It has not been waited for, so the number is still its own.
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }
}

/// Says numbers to whoever holds the other end of `pipe`.
pub fn say(pipe: BorrowedFd, numbers: &[i64]) {
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
    // Less than a pipe holds, so all or nothing.
    let _ = io::write(pipe, &bytes);
}

/// What `f` says when a child calls it.
pub fn in_child<const N: usize>(f: impl FnOnce() -> [i64; N]) -> Result<[i64; N], Failure> {
    Child::start(|pipe| say(pipe, &f()))?.numbers()
}

/// What a call has said: 0, or the errno.
pub fn errno<T>(answer: io::Result<T>) -> i64 {
    answer.map_or_else(|no| no.raw_os_error().into(), |_| 0)
}

/// The errno of the call of libc's that has just failed.
pub fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// What an errno is called.
pub fn text(errno: i64) -> String {
    crate::output::without_numbers(&std::io::Error::from_raw_os_error(errno as i32).to_string())
}

/// What a child may do with its memory.
pub const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Anonymous memory of `bytes` for a child, never given back.
pub fn map(bytes: usize, prot: ProtFlags, flags: MapFlags) -> io::Result<*mut u8> {
    let flags = MapFlags::PRIVATE | flags;
    // SAFETY: new memory, at an address of the kernel's choosing.
    unsafe { mmap_anonymous(ptr::null_mut(), bytes, prot, flags) }.map(|at| at.cast())
}

/// The least time of some calls of `f`, nanoseconds, if none failed.
pub fn fastest(times: usize, mut f: impl FnMut() -> io::Result<()>) -> io::Result<i64> {
    let mut least = i64::MAX;
    for _ in 0..times {
        let began = Instant::now();
        f()?;
        least = least.min(began.elapsed().as_nanos() as i64);
    }
    Ok(least)
}

/// Nanoseconds as people read them.
pub fn time(nanos: i64) -> String {
    match nanos {
        ..1_000 => format!("{nanos} ns"),
        1_000..10_000 => format!("{:.1} µs", nanos as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} µs", nanos as f64 / 1e3),
        _ => format!("{:.1} ms", nanos as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_says_what_it_found_and_how_it_ended() {
        assert_eq!(in_child(|| [1, -2]), Ok([1, -2]));
        let killed = in_child(|| -> [i64; 1] {
            kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
            [0]
        });
        assert_eq!(killed, Err(Failure::Killed(libc::SIGKILL)));
        // SAFETY: ends the child.
        let silent = in_child(|| -> [i64; 1] { unsafe { libc::_exit(1) } });
        assert_eq!(silent, Err(Failure::Silent));
    }

    #[test]
    fn times_as_people_read_them() {
        assert_eq!(time(335), "335 ns");
        assert_eq!(time(5_560), "5.6 µs");
        assert_eq!(time(127_400), "127 µs");
        assert_eq!(time(2_056_000), "2.1 ms");
    }
}
