//! Things that are tried: in a child of fork, so that nothing of what they do
//! stays, and a filter that kills takes the child alone.

use std::io;
use std::time::{Duration, Instant};

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
    pid: i32,
    pipe: i32,
}

impl Child {
    /// Starts one that calls `answer` with the end of a pipe, and then ends. This
    /// process has one thread, so the child may do all that we may.
    pub fn start(answer: impl FnOnce(i32)) -> Result<Self, Failure> {
        let mut ends = [0i32; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(Failure::Silent);
        }
        // SAFETY: no threads, and nothing of ours is held.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: no memory; it must not outlive us.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                answer(ends[1]);
                // SAFETY: ends the child, with nothing of the parent's flushed.
                unsafe { libc::_exit(0) }
            }
            pid => {
                close(ends[1]);
                let this = Self { pid, pipe: ends[0] };
                match pid < 0 {
                    true => Err(Failure::Silent),
                    false => Ok(this),
                }
            }
        }
    }

    /// The next `N` numbers that it has to say.
    pub fn numbers<const N: usize>(&self) -> Result<[i64; N], Failure> {
        let deadline = Instant::now() + PATIENCE;
        let mut bytes = vec![0u8; N * 8];
        let mut have = 0;
        while have < bytes.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut wait = libc::pollfd {
                fd: self.pipe,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one structure, which outlives the call.
            let ready = unsafe { libc::poll(&mut wait, 1, left.as_millis() as i32) };
            if ready < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                continue;
            }
            if ready <= 0 {
                return Err(Failure::Late);
            }
            let rest = &mut bytes[have..];
            // SAFETY: room for as many bytes as are asked for.
            let got = unsafe { libc::read(self.pipe, rest.as_mut_ptr().cast(), rest.len()) };
            match usize::try_from(got) {
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
        self.pid
    }

    /// How it ended, without taking that away from [`Drop`].
    fn end(&self) -> Failure {
        // SAFETY: all zeroes is a valid `siginfo_t`.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let what = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: `info` outlives the call. The pipe is closed, so it is about to end.
        if unsafe { libc::waitid(libc::P_PID, self.pid as u32, &mut info, what) } != 0 {
            return Failure::Silent;
        }
        // SAFETY: waitid filled it in for a child.
        match (info.si_code, unsafe { info.si_status() }) {
            (libc::CLD_KILLED | libc::CLD_DUMPED, signal) => Failure::Killed(signal),
            _ => Failure::Silent,
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        close(self.pipe);
        if self.pid > 0 {
            // SAFETY: no memory; our own child, which has not been waited for.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            // SAFETY: a status is not asked for.
            unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
        }
    }
}

fn close(fd: i32) {
    // SAFETY: a descriptor of ours that is not used any more.
    unsafe { libc::close(fd) };
}

/// Says numbers to whoever holds the other end of `pipe`.
pub fn say(pipe: i32, numbers: &[i64]) {
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
    // SAFETY: as many bytes as there are; less than a pipe holds, so all or nothing.
    unsafe { libc::write(pipe, bytes.as_ptr().cast(), bytes.len()) };
}

/// What `f` says when a child calls it.
pub fn in_child<const N: usize>(f: impl FnOnce() -> [i64; N]) -> Result<[i64; N], Failure> {
    Child::start(|pipe| say(pipe, &f()))?.numbers()
}

/// What a system call that answers 0 or more, or -1 and errno, has said: 0, or the errno.
pub fn errno(answer: i64) -> i64 {
    match answer {
        -1 => i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        _ => 0,
    }
}

/// What an errno is called.
pub fn text(errno: i64) -> String {
    crate::words(&io::Error::from_raw_os_error(errno as i32).to_string())
}

/// Anonymous memory of `bytes` for a child, never given back.
pub fn map(bytes: usize, prot: i32, flags: i32) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: new memory, at an address of the kernel's choosing.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at.cast())
}

/// The least time of some calls of `f`, nanoseconds; `None` if one failed.
pub fn fastest(times: usize, mut f: impl FnMut() -> bool) -> Option<i64> {
    let mut least = i64::MAX;
    for _ in 0..times {
        let began = Instant::now();
        if !f() {
            return None;
        }
        least = least.min(began.elapsed().as_nanos() as i64);
    }
    Some(least)
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
            // SAFETY: ends the child.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
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
