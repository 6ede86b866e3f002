//! A process of the same user that writes into a directory all the time: who reads it ends,
//! in bounded time, with an answer or an error, and its owner does not even notice.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use regall_tests::build;
use regall_tests::child::{self, Beside};
use regall_tests::mode::Mode;
use regall_tests::soak::{self, Row};

/// Far more than any of them takes, on a machine that is busy, too.
const BOUND: Duration = Duration::from_secs(60);
/// Bytes of a directory that are worth writing to: the header and the first slots.
const HEADER: u64 = 8192;

/// Writes words into a file until it is dropped.
struct Scribbler {
    over: Arc<AtomicBool>,
    words: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Scribbler {
    /// `cuts`: it makes the file shorter and longer, too.
    fn start(file: File, cuts: bool) -> Self {
        let (over, words) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stop, count) = (over.clone(), words.clone());
        let good = whole(&file);
        let work = move || {
            let mut seed = 0x9e37_79b9_7f4a_7c15u64;
            while !stop.load(Relaxed) {
                scribble(&file, &good, &mut seed, cuts);
                count.fetch_add(1, Relaxed);
            }
        };
        Self {
            over,
            words,
            thread: Some(std::thread::spawn(work)),
        }
    }

    fn words(&self) -> u64 {
        self.words.load(Relaxed)
    }
}

impl Drop for Scribbler {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn whole(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("a size").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("all of it");
    bytes
}

/// One word, and most often what was there comes back, so that there is something left to
/// read; now and then all of it.
fn scribble(file: &File, good: &[u8], seed: &mut u64, cuts: bool) {
    let mut draw = |n: u64| {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        (*seed >> 11) % n
    };
    let bytes = good.len() as u64;
    let at = match draw(4) {
        0 => draw(64) * 8,
        1 => draw(HEADER / 8) * 8,
        _ => (HEADER + draw(64 * 64) / 8 * 8).min(bytes - 8),
    };
    let word = match draw(5) {
        0 => draw(100),
        1 => u64::MAX - draw(5000),
        2 => 1 << draw(64),
        3 => draw(1 << 47) & !4095,
        _ => draw(u64::MAX),
    };
    // What fails (it has just been cut short) fails.
    let _ = file.write_all_at(&word.to_ne_bytes(), at);
    if draw(4) != 0 {
        let was = &good[at as usize..at as usize + 8];
        let _ = file.write_all_at(was, at);
    }
    match draw(2000) {
        0 if cuts => drop(file.set_len(draw(2 * bytes))),
        1 if cuts => drop(file.set_len(1 << 40)),
        n if n < 60 => {
            let _ = file.set_len(bytes);
            let _ = file.write_all_at(good, 0);
        }
        _ => (),
    }
}

/// The directory of a process, once it is there and does not grow any more.
fn directory_of(pid: u32) -> PathBuf {
    // SAFETY: a system call without arguments.
    let uid = unsafe { libc::geteuid() };
    let deadline = Instant::now() + BOUND;
    loop {
        let all = fs::read_dir(format!("/dev/shm/regall-{uid}"));
        let named = |path: &PathBuf| {
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned());
            name.is_some_and(|n| n.starts_with(&format!("{pid}.")) && n.matches('.').count() == 2)
        };
        let found = all
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
            .find(named);
        match found {
            Some(path) if ready(pid) => return path,
            _ => assert!(Instant::now() < deadline, "no directory of {pid}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether it can be read, and no call is in progress.
fn ready(pid: u32) -> bool {
    let mut verify = Command::new(build::regall());
    verify.args(["verify", &pid.to_string()]);
    child::run(&mut verify, BOUND).end() == "exit 0"
}

fn open(path: &PathBuf) -> File {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .open(path)
        .expect("its directory")
}

/// Runs every command that reads a directory again and again, and says how they ended.
fn read_all_the_while(pid: u32, commands: &[&[&str]]) -> [u64; 3] {
    let until = Instant::now() + soak::duration();
    let mut ends = [0; 3];
    let id = pid.to_string();
    loop {
        for command in commands {
            let words = command.iter().map(|w| if *w == "PID" { &id } else { *w });
            let outcome = child::run(Command::new(build::regall()).args(words), BOUND);
            let code = outcome.status.and_then(|s| s.code());
            let code = code.unwrap_or_else(|| panic!("{command:?}: {}", outcome.end()));
            assert!(
                (0..=2).contains(&code),
                "{command:?}: {code}, {}",
                outcome.stderr
            );
            assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
            assert!(outcome.stdout.len() < 64 << 20, "{command:?} says too much");
            ends[code as usize] += 1;
        }
        if Instant::now() > until {
            return ends;
        }
    }
}

const READERS: [&[&str]; 7] = [
    &["maps", "PID"],
    &["maps", "PID", "--json"],
    &["dump", "PID"],
    &["verify", "PID"],
    &["stats", "PID", "--json"],
    &["top", "--once", "--json"],
    &["verify", "PID", "--strict"],
];

fn sleeper() -> Beside {
    let mut command = Command::new("sleep");
    Mode::Populate.apply(command.arg("3600"));
    Beside::start(&mut command)
}

#[test]
fn who_reads_a_directory_that_is_rewritten_ends() {
    let row = Row::begin("fuzz", "readers of a rewritten directory");
    let sleeper = sleeper();
    let path = directory_of(sleeper.pid());
    let scribbler = Scribbler::start(open(&path), true);
    let [good, gaps, failed] = read_all_the_while(sleeper.pid(), &READERS);
    // Both kinds were met, or nothing was shown.
    assert!(good > 0 && gaps + failed > 0, "{good} {gaps} {failed}");
    row.passed(format!(
        "{good} read, {gaps} with gaps, {failed} refused; {} words written",
        scribbler.words()
    ));
}

/// The bridge maps what it reads, so here the file keeps its size (docs/limits.md).
#[test]
fn who_gets_by_a_directory_that_is_rewritten_ends() {
    let row = Row::begin("fuzz", "gets by a rewritten directory");
    let sleeper = sleeper();
    let path = directory_of(sleeper.pid());
    let maps = fs::read_to_string(format!("/proc/{}/maps", sleeper.pid())).expect("maps");
    let stack = maps
        .lines()
        .find(|l| l.contains("[stack]"))
        .expect("a stack");
    let end = stack.split(['-', ' ']).nth(1).expect("an end");
    let at = u64::from_str_radix(end, 16).expect("a number") - 4096;
    let scribbler = Scribbler::start(open(&path), false);
    let at = format!("{at:#x}");
    let gets: [&[&str]; 2] = [
        &["peek", "PID", &at, "4096"],
        &["peek", "PID", "0x10000", "64"],
    ];
    let [good, _, failed] = read_all_the_while(sleeper.pid(), &gets);
    assert!(good > 0 && failed > 0, "{good} {failed}");
    row.passed(format!(
        "{good} got, {failed} refused; {} words written",
        scribbler.words()
    ));
}

/// Nothing is ever read back from the file, so whose it is goes on as if nothing was.
#[test]
fn the_owner_of_a_directory_that_is_rewritten_goes_on() {
    let row = Row::begin("fuzz", "owner of a rewritten directory");
    let calls = soak::rounds(20_000, 2_000_000).to_string();
    let mut plain = Command::new(build::program("torture"));
    Mode::Plain.apply(plain.args([&calls, "7"]));
    let plain = child::run(&mut plain, Duration::from_secs(3600));
    let mut command = Command::new(build::program("torture"));
    Mode::Populate.apply(command.args([&calls, "7"]));
    let running = child::start(&mut command, Duration::from_secs(3600));
    let scribbler = Scribbler::start(open(&directory_of_busy(running.pid())), false);
    let outcome = running.finish();
    assert_eq!(outcome.differences(&plain), Vec::<String>::new());
    assert_eq!(outcome.regall_lines(), Vec::<&str>::new());
    row.passed(format!(
        "{calls} calls, {} words written",
        scribbler.words()
    ));
}

/// As [`directory_of`], of one that has no quiet moment.
fn directory_of_busy(pid: u32) -> PathBuf {
    // SAFETY: a system call without arguments.
    let uid = unsafe { libc::geteuid() };
    let deadline = Instant::now() + BOUND;
    loop {
        let all = fs::read_dir(format!("/dev/shm/regall-{uid}"))
            .into_iter()
            .flatten();
        let mut paths = all.flatten().map(|e| e.path());
        let mine = |p: &PathBuf| {
            let name = p.file_name().map(|n| n.to_string_lossy().into_owned());
            let full = p.metadata().is_ok_and(|m| m.len() > HEADER);
            full && name.is_some_and(|n| n.starts_with(&format!("{pid}.")))
        };
        if let Some(path) = paths.find(mine) {
            return path;
        }
        assert!(Instant::now() < deadline, "no directory of {pid}");
        std::thread::yield_now();
    }
}
