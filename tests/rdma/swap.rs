//! Swap space that comes while a process runs, which has had none.

use super::machine::{groups, Swap};
use super::*;
use regall_tests::coverage;
use regall_tests::fits::{Group, MIB};
use regall_tests::quiet::lookers;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// c-tests/fits/called, which has touched private and shared memory, and makes no memory call
/// unless it is asked to.
struct Program {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
    private: u64,
    shared: u64,
}

impl Program {
    /// Starts it, in `group`.
    fn start(group: Option<&Group>) -> Self {
        let mut command = Command::new("sh");
        Mode::Auto.apply(&mut command);
        command.args(["-c", r#"[ -z "$1" ] || echo $$ >"$1"; exec "$0""#]);
        command.arg(build::program("fits/called"));
        command.args(group.map(|group| group.path("cgroup.procs")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("c-tests/fits/called");
        let ask = child.stdin.take().expect("its input");
        let mut answers = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        answers.read_line(&mut line).expect("where its memory is");
        let mut words = line.split_whitespace();
        let mut next = || u64::from_str_radix(words.next().expect("an address"), 16);
        let (private, shared) = (next().expect("hex"), next().expect("hex"));
        Self {
            child,
            ask,
            answers,
            private,
            shared,
        }
    }

    /// The words of PIN for its private and its shared memory.
    fn pins(&self) -> [String; 2] {
        let lines = coverage::dump(self.child.id()).expect("a dump");
        let at = |addr| lines.iter().find(|l| l.start <= addr && addr < l.end);
        [self.private, self.shared].map(|addr| at(addr).expect("a line").pin.clone())
    }

    /// Has it make calls until its memory is held as `words` say: it looks once a second.
    fn calls_until(&mut self, words: [&str; 2]) {
        let began = Instant::now();
        loop {
            self.ask.write_all(b"?").expect("a question");
            self.answers.read_exact(&mut [0]).expect("an answer");
            let pins = self.pins();
            if pins == words {
                return;
            }
            assert!(began.elapsed() < TIMEOUT, "{pins:?} in place of {words:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Both checkers end with `code`, and say `words`.
    fn checked(&self, code: i32, words: &str) {
        for (name, mut command) in lookers(self.child.id()) {
            let until = Instant::now() + TIMEOUT;
            let (done, said) = loop {
                let done = child::run(&mut command, TIMEOUT);
                let said = format!("{}{}", done.stdout, done.stderr);
                // (A look that is slow, on a machine that is busy, is none.)
                if !said.contains("busy for") || Instant::now() > until {
                    break (done, said);
                }
            };
            assert_eq!(done.end(), format!("exit {code}"), "{name}: {said}");
            assert!(said.contains(words), "{name}: {said}");
        }
    }

    fn locked(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("its status");
        let mut lines = status.lines().filter_map(|l| l.strip_prefix("VmLck:"));
        let kb = lines.next().and_then(|l| l.split_whitespace().next());
        kb.and_then(|kb| kb.parse().ok()).expect("VmLck")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const COME: &str = "swap has come since";

/// It says `kept` until it makes a call, which the checkers notice, and is locked from then on.
pub fn comes() -> Checked {
    let _groups = groups()?;
    let mut program = Program::start(None);
    assert_eq!(program.pins(), ["kept", "kept"]);
    assert_eq!(program.locked(), 0);
    program.checked(0, "");
    let _swap = Swap::on()?;
    assert_eq!(program.pins(), ["kept", "kept"]);
    program.checked(1, COME);
    program.calls_until(["yes", "yes"]);
    program.checked(0, "");
    assert!(program.locked() > 8 << 10, "{} KiB", program.locked());
    Ok(())
}

/// A cgroup without swap space keeps private memory, until it has some or the process leaves it.
pub fn of_a_cgroup() -> Checked {
    let _groups = groups()?;
    let _swap = Swap::on()?;
    let group = |name| Group::new(name, 256 * MIB).expect("a group");
    let (without, other) = (group("without"), group("other"));
    let none = |most: &str| assert!(without.write("memory.swap.max", most), "memory.swap.max");
    none("0");
    let mut moved = Program::start(Some(&without));
    let mut stays = Program::start(Some(&without));
    for program in [&mut moved, &mut stays] {
        program.calls_until(["kept", "yes"]);
        program.checked(0, "");
    }
    assert!(other.write("cgroup.procs", moved.child.id()), "a move");
    moved.checked(1, COME);
    moved.calls_until(["yes", "yes"]);
    moved.checked(0, "");
    stays.checked(0, "");
    none("max");
    stays.checked(1, COME);
    stays.calls_until(["yes", "yes"]);
    stays.checked(0, "");
    Ok(())
}
