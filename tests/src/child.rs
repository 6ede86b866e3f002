//! Running a program to its end or to its time-out.

use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How a program ended and what it said.
#[derive(Debug)]
pub struct Outcome {
    /// `None`: it had to be killed at its time-out.
    pub status: Option<ExitStatus>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Outcome {
    /// `exit 3`, `signal 11` or `time-out`.
    pub fn end(&self) -> String {
        match self.status {
            None => "time-out".into(),
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit {code}"),
                (None, signal) => format!("signal {}", signal.unwrap_or(0)),
            },
        }
    }

    /// Fails unless it ended with exit status 0, and shows what it said.
    #[track_caller]
    pub fn must_succeed(&self) {
        self.must_succeed_at("it");
    }

    /// As [`must_succeed`](Self::must_succeed), of what it was to do.
    #[track_caller]
    pub fn must_succeed_at(&self, what: impl Display) {
        let said = format_args!("{}{}", self.stdout, self.stderr);
        assert_eq!(self.end(), "exit 0", "{what}\n{said}");
    }

    /// Its standard error without the shim's own lines, and without a line that Open MPI 4.1's
    /// launcher writes in one job of a hundred when a rank's input is closed as the job ends:
    /// `[warn] Epoll MOD(1) on fd 24 failed. ... Bad file descriptor`, by its libevent. Launchers
    /// run without the shim.
    pub fn others_stderr(&self) -> String {
        let launchers = |l: &str| l.starts_with("[warn] Epoll MOD(1) on fd ");
        self.stderr
            .lines()
            .filter(|l| !l.starts_with("regall") && !launchers(l))
            .map(|l| format!("{l}\n"))
            .collect()
    }

    /// What differs from another run, `plain`, but for the shim's own lines.
    pub fn differences(&self, plain: &Self) -> Vec<String> {
        let mut all = Vec::new();
        if plain.end() != self.end() {
            all.push(format!(
                "ended with {} instead of {}",
                self.end(),
                plain.end()
            ));
        }
        for (name, was, is) in [
            ("stdout", &plain.stdout, &self.stdout),
            ("stderr", &plain.others_stderr(), &self.others_stderr()),
        ] {
            if was != is {
                let mut pairs =
                    (was.lines().map(Some).chain([None])).zip(is.lines().map(Some).chain([None]));
                let first = pairs.find(|(a, b)| a != b);
                let (lines, instead) = (is.lines().count(), was.lines().count());
                all.push(format!(
                    "{name}: {lines} lines instead of {instead}; first difference {first:?}"
                ));
            }
        }
        all
    }

    /// The shim's own lines of its standard error.
    pub fn regall_lines(&self) -> Vec<&str> {
        self.stderr
            .lines()
            .filter(|l| l.starts_with("regall"))
            .collect()
    }

    /// Those of them that are not to be expected: where a limit, or what other programs have
    /// left of the machine's memory, leaves little to be pinned, the shim says so. It is never
    /// nothing.
    pub fn complaints(&self) -> Vec<String> {
        let limit = " MiB are not pinned: RLIMIT_MEMLOCK is ";
        let budget = " MiB are not pinned: the budget is ";
        let right =
            |l: &str| l.contains(limit) || l.contains(budget) && !l.contains("the budget is 0 MiB");
        let mine = self.regall_lines().into_iter();
        mine.filter(|l| !right(l)).map(str::to_owned).collect()
    }
}

/// A program on its way, in a process group of its own.
pub struct Running {
    child: Child,
    stdout: File,
    stderr: File,
    deadline: Instant,
    finished: bool,
}

/// Starts a program; its standard input is empty.
pub fn start(command: &mut Command, timeout: Duration) -> Running {
    let stdout = tempfile::tempfile().expect("a temporary file");
    let stderr = tempfile::tempfile().expect("a temporary file");
    let child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().expect("a descriptor"))
        .stderr(stderr.try_clone().expect("a descriptor"))
        .process_group(0)
        .spawn()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    Running {
        child,
        stdout,
        stderr,
        deadline: Instant::now() + timeout,
        finished: false,
    }
}

/// Runs a program to its end.
pub fn run(command: &mut Command, timeout: Duration) -> Outcome {
    start(command, timeout).finish()
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end; what is left of its group then is killed.
    pub fn finish(mut self) -> Outcome {
        let mut pause = Duration::from_micros(500);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child to wait for") {
                break Some(status);
            }
            if Instant::now() > self.deadline {
                break None;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        };
        self.kill_group();
        self.finished = true;
        if status.is_none() {
            let _ = self.child.wait();
        }
        Outcome {
            status,
            stdout: text(&mut self.stdout),
            stderr: text(&mut self.stderr),
        }
    }

    fn kill_group(&self) {
        // SAFETY: a system call without memory. The group is our child's: its
        // number can't have been given to anyone else while members live, and
        // with none left the call fails.
        unsafe { libc::killpg(self.child.id() as i32, libc::SIGKILL) };
    }
}

/// A test that has failed meanwhile leaves nothing running.
impl Drop for Running {
    fn drop(&mut self) {
        if !self.finished {
            self.kill_group();
            let _ = self.child.wait();
        }
    }
}

/// A program that runs beside a test, killed when this is dropped.
pub struct Beside(Child);

impl Beside {
    /// Starts it; nobody reads what it says.
    pub fn start(command: &mut Command) -> Self {
        let started = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        Self(started.unwrap_or_else(|e| panic!("{command:?}: {e}")))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a system call without memory, to our own child, which has not
        // been waited for.
        let done = unsafe { libc::kill(self.0.id() as i32, signal) };
        assert_eq!(done, 0, "signal {signal}");
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind()
        .and_then(|()| file.read_to_end(&mut bytes).map(drop))
        .expect("output");
    String::from_utf8_lossy(&bytes).into_owned()
}
