//! A long start-up says how far it is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use regall_tests::child::{self, Outcome};
use regall_tests::mode::Mode;
use regall_tests::quiet::Watcher;
use regall_tests::{build, procfs};

const TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of memory that the program is started with.
const BYTES: u64 = 640 << 20;

/// A program whose memory is there before main.
fn big(folder: &Path) -> PathBuf {
    let (source, program) = (folder.join("big.c"), folder.join("big"));
    let text = format!(
        "#include \"quiet.h\"\nstatic char big[{BYTES}];\n\
         int main(void) {{ quiet_point(\"started\"); return big[4096]; }}\n"
    );
    std::fs::write(&source, text).expect("a source");
    let mut gcc = Command::new("gcc");
    gcc.arg("-I").arg(build::root().join("c-tests"));
    let done = child::run(gcc.arg("-o").arg(&program).arg(&source), TIMEOUT);
    done.must_succeed();
    program
}

/// Runs it with this log level, and stops it for so long in the midst of its start-up.
/// `None`: it was not caught there.
fn held_up(program: &Path, level: &str, pause: Duration) -> Option<Outcome> {
    let mut command = Command::new(program);
    Mode::Populate.apply(&mut command);
    // Small pages, which take their time.
    command.env("REGALL_HUGE", "off").env("REGALL_LOG", level);
    let running = child::start(&mut command, TIMEOUT);
    let pid = running.pid();
    let began = Instant::now();
    let caught = loop {
        match resident(pid) {
            Some(bytes) if bytes > BYTES / 2 => break false,
            Some(bytes) if bytes > BYTES / 16 => break true,
            None => break false,
            _ if began.elapsed() > TIMEOUT => break false,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let signal = |signal: i32| {
        // SAFETY: a system call without memory, to a child that is not waited for yet.
        unsafe { libc::kill(pid as i32, signal) };
    };
    if caught {
        signal(libc::SIGSTOP);
        std::thread::sleep(pause);
        signal(libc::SIGCONT);
    }
    let done = running.finish();
    done.must_succeed();
    caught.then_some(done)
}

/// Bytes that it has resident; `None` when it has ended.
fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// The lines that say how far it is, as (done, total) in MiB.
fn told(outcome: &Outcome) -> Vec<(f64, f64)> {
    let lines = outcome.stderr.lines();
    let texts = lines.filter_map(|l| l.split_once("info: registering: ").map(|(_, text)| text));
    texts
        .filter_map(|text| {
            let (done, total) = text.split_once(" of ")?;
            let total = total.strip_suffix(" MiB")?;
            Some((done.parse().ok()?, total.parse().ok()?))
        })
        .collect()
}

#[test]
fn a_long_start_up_says_how_far_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = big(folder.path());
    let pause = Duration::from_millis(1200);
    for attempt in 0.. {
        assert!(
            attempt < 10,
            "it was never caught in the midst of its start-up"
        );
        let Some(done) = held_up(&program, "info", pause) else {
            continue;
        };
        let told = told(&done);
        // It may have been stopped in its last piece.
        if told.is_empty() {
            continue;
        }
        let all = BYTES as f64 / f64::from(1 << 20);
        assert!(told.len() < 1 + TIMEOUT.as_secs() as usize, "{told:?}");
        for (done, total) in &told {
            assert!(*total >= all && *total < all + 200.0, "{told:?}");
            assert!(*done > 0.0 && done < total, "{told:?}");
        }
        assert!(told.windows(2).all(|w| w[0].0 < w[1].0), "{told:?}");
        break;
    }
    // Nobody asked.
    for attempt in 0.. {
        assert!(
            attempt < 10,
            "it was never caught in the midst of its start-up"
        );
        if let Some(done) = held_up(&program, "warn", pause) {
            assert_eq!(done.regall_lines(), Vec::<&str>::new());
            break;
        }
    }
}

/// Memory that was populated piece by piece is one mapping, locked and resident, as it is
/// where nobody is told; and nothing is said oftener than once a second.
#[test]
fn what_was_populated_in_pieces_is_one_mapping() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = big(folder.path());
    for level in ["info", "warn"] {
        let watcher = Watcher::new(|point| {
            let all = procfs::smaps(point.pid).expect("smaps");
            let large: Vec<_> = all.iter().filter(|v| v.end - v.start > 32 << 20).collect();
            let [one] = large[..] else {
                return vec![format!("not one large mapping: {large:?}")];
            };
            let whole = one.end - one.start >= BYTES && one.rss == one.end - one.start;
            let bad = !whole || !one.has("lo");
            bad.then(|| format!("{one:?}")).into_iter().collect()
        });
        let mut command = Command::new(&program);
        Mode::Populate.apply(&mut command);
        command
            .env("REGALL_LOG", level)
            .env("QUIET_SOCKET", watcher.socket());
        let began = Instant::now();
        let done = child::run(&mut command, TIMEOUT);
        let seconds = began.elapsed().as_secs() as usize;
        let findings = watcher.finish();
        done.must_succeed();
        assert_eq!(findings.looks, 1);
        assert!(
            findings.problems.is_empty(),
            "{level}: {:?}",
            findings.problems
        );
        assert!(told(&done).len() <= seconds, "{}", done.stderr);
    }
}
