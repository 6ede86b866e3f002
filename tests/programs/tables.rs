//! Descriptors that the shim opens beside other threads, one of which may want the number: seen by strace.

use super::*;
use std::collections::{HashMap, HashSet};

/// Calls that return a descriptor (fcntl among others), and those by which it is known whose table it is.
const OPENING: &str = "open,openat,openat2,creat,socket,socketpair,accept,accept4,dup,dup2,dup3,fcntl,pipe,pipe2,memfd_create,pidfd_open,eventfd,eventfd2,epoll_create,epoll_create1,timerfd_create,signalfd,signalfd4,inotify_init,inotify_init1,userfaultfd,open_by_handle_at,pidfd_getfd";
/// What is opened when the process ends: a part of the call.
const AT_THE_END: [&str; 2] = ["\"/proc/self/stat\"", "/dev/shm/regall-"];
const AROUND: &str = "mmap,execve,clone,clone3,fork,vfork,close_range";

/// Where the library's own calls are made, as addresses in its file: behind the instruction.
fn own_calls() -> HashSet<u64> {
    let library = std::fs::read(build::shim()).expect("the library");
    let word = |at: usize, bytes: usize| {
        let part = library[at..at + bytes].iter().rev();
        part.fold(0u64, |word, byte| word << 8 | u64::from(*byte)) as usize
    };
    let (table, size) = (word(0x28, 8), word(0x3a, 2));
    let section = |n: usize| table + n * size;
    let names = word(section(word(0x3e, 2)) + 0x18, 8);
    let is_it = |n: &usize| {
        let name = &library[names + word(section(*n), 4)..];
        name.starts_with(b".regall.entered\0")
    };
    let ours = (0..word(0x3c, 2)).find(is_it).expect(".regall.entered");
    let (at, bytes) = (word(section(ours) + 0x18, 8), word(section(ours) + 0x20, 8));
    let calls = (at..at + bytes).step_by(8);
    calls.map(|at| word(at, 8) as u64 + 2).collect()
}

/// What is known of the processes from strace's lines.
#[derive(Default)]
struct Seen {
    /// Where a thread has the library.
    library: HashMap<u32, u64>,
    /// A thread's process, if that has another number.
    process: HashMap<u32, u32>,
    /// How many threads a process has beside its first.
    others: HashMap<u32, i64>,
    /// Calls that have begun: where, and the beginning of the line.
    begun: HashMap<u32, (u64, String)>,
    opened: Vec<String>,
    /// Children that shared a table of descriptors, and did not leave it.
    sharers: i64,
}

impl Seen {
    fn process(&self, thread: u32) -> u32 {
        *self.process.get(&thread).unwrap_or(&thread)
    }

    /// Takes in one line: `THREAD [ADDRESS] CALL(...) = RESULT`.
    fn line(&mut self, line: &str, own: &HashSet<u64>) -> Option<()> {
        let (thread, rest) = line.split_once(' ')?;
        let thread = thread.parse().ok()?;
        let (address, call) = rest.trim_start().strip_prefix('[')?.split_once("] ")?;
        if call.starts_with("+++") {
            *self.others.entry(self.process(thread)).or_default() -= 1;
            return None;
        }
        let mut at = u64::from_str_radix(address, 16).ok()?;
        let mut call = call.to_string();
        if let Some(begun) = call.strip_suffix("<unfinished ...>") {
            self.begun.insert(thread, (at, begun.to_string()));
            return None;
        }
        if let Some((_, end)) = call.split_once(" resumed>") {
            let (from, begun) = self.begun.remove(&thread)?;
            (at, call) = (from, begun + end);
        }
        let (_, result) = call.rsplit_once(" = ")?;
        let result = result.split(['<', ' ']).next()?.to_string();
        self.call(thread, at, &call, &result, own)
    }

    fn call(
        &mut self,
        thread: u32,
        at: u64,
        call: &str,
        result: &str,
        own: &HashSet<u64>,
    ) -> Option<()> {
        let name = call.split('(').next()?;
        match name {
            "execve" if result == "0" => {
                self.library.remove(&thread);
                let process = self.process(thread);
                self.others.remove(&process);
            }
            "mmap" if call.contains("libregall.so>") && !self.library.contains_key(&thread) => {
                let base = u64::from_str_radix(result.strip_prefix("0x")?, 16).ok()?;
                self.library.insert(thread, base);
            }
            // (Before its parent's line, and so before anything else is known of it.)
            "close_range" if !self.library.contains_key(&thread) && result == "0" => {
                self.sharers -= i64::from(call.contains("CLOSE_RANGE_UNSHARE"));
            }
            "mmap" | "close_range" => (),
            "clone" | "clone3" | "fork" | "vfork" => {
                let (child, base) = (result.parse().ok()?, *self.library.get(&thread)?);
                self.library.insert(child, base);
                if call.contains("CLONE_THREAD") {
                    let process = self.process(thread);
                    self.process.insert(child, process);
                    *self.others.entry(process).or_default() += 1;
                }
                self.sharers += i64::from(call.contains("CLONE_FILES|CLONE_VFORK"));
            }
            _ => {
                let base = *self.library.get(&thread)?;
                let made = !result.starts_with('-') && result != "?";
                let opens = name != "fcntl" || call.contains("F_DUPFD");
                let many = self
                    .others
                    .get(&self.process(thread))
                    .is_some_and(|n| *n > 0);
                if made && opens && many && own.contains(&at.wrapping_sub(base)) {
                    self.opened.push(call.to_string());
                }
            }
        }
        Some(())
    }
}

/// What the shim opens in the program's table while that has several threads.
fn opened_by(program: &str) -> Vec<String> {
    let trace = tempfile::NamedTempFile::new().expect("a file");
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-i", "-y", "--signal=none", "-o"])
        .arg(trace.path());
    strace.arg(format!("--trace={OPENING},{AROUND}"));
    for (name, value) in Mode::Auto.settings() {
        strace.arg(format!("--env={name}={value}"));
    }
    let traced = child::run(strace.arg(build::program(program)), TIMEOUT);
    assert_ne!(traced.end(), "time-out", "{program}");
    let (own, mut seen) = (own_calls(), Seen::default());
    let lines = std::fs::read(trace.path()).expect("what strace says");
    for line in String::from_utf8_lossy(&lines).lines() {
        seen.line(line, &own);
    }
    assert!(
        !seen.library.is_empty(),
        "{program}: the library is not seen"
    );
    assert_eq!(seen.sharers, 0, "{program}");
    seen.opened
}

/// Beside other threads nothing is opened in the process's table.
#[test]
fn nothing_is_opened_beside_other_threads() {
    if missing("strace") {
        return;
    }
    // (Their directories grow; mappings come and go; a holder of the mutex has left it.)
    let few = ["threads", "numbers", "park"];
    let all = [
        "bound",
        "charged",
        "clone",
        "contended",
        "fork",
        "heap",
        "held",
        "once",
    ];
    let all = all.iter().filter(|_| thorough());
    for program in few.iter().chain(all) {
        let mut opened = opened_by(program);
        opened.retain(|call| !AT_THE_END.iter().any(|part| call.contains(part)));
        assert!(opened.is_empty(), "{program}: {opened:#?}");
    }
}
