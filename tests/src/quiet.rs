//! Listens for programs that have come to a quiet point (c-tests/quiet.h) and
//! looks at each before it may go on.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::coverage::{self, Claim, Expected};
use crate::{build, child};

/// A process that waits at a quiet point.
pub struct Point {
    /// Its pid.
    pub pid: u32,
    /// What it calls the point.
    pub label: String,
    /// What it says of its ranges.
    pub claims: Vec<Claim>,
}

/// What the looks have brought.
#[derive(Default, Debug)]
pub struct Findings {
    /// How many.
    pub looks: usize,
    /// What was wrong, each with the point's label.
    pub problems: Vec<String>,
}

/// Waits for quiet points in a thread of its own.
pub struct Watcher {
    folder: tempfile::TempDir,
    thread: JoinHandle<()>,
    findings: Arc<Mutex<Findings>>,
}

impl Watcher {
    /// Starts one that calls `look` at each point, for a list of what is wrong.
    pub fn new(look: impl Fn(&Point) -> Vec<String> + Send + 'static) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("quiet");
        let listener = UnixListener::bind(&path).expect("a socket");
        // Programs that have given up root come here too.
        for path in [folder.path(), &path] {
            fs::set_permissions(path, Permissions::from_mode(0o777)).expect("permissions");
        }
        let findings = Arc::new(Mutex::new(Findings::default()));
        let theirs = Arc::clone(&findings);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                match read(&stream) {
                    Some(point) => {
                        let problems = look(&point);
                        let mut all = theirs.lock().expect("findings");
                        all.looks += 1;
                        let place = format!("{} (pid {})", point.label, point.pid);
                        all.problems
                            .extend(problems.iter().map(|p| format!("{place}: {p}")));
                    }
                    None => break,
                }
                let _ = (&stream).write_all(b"k");
            }
        });
        Self {
            folder,
            thread,
            findings,
        }
    }

    /// One that checks coverage in every way there is.
    pub fn of_coverage(expected: Expected) -> Self {
        Self::new(move |point| look(point, &expected))
    }

    /// The socket, for QUIET_SOCKET.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("quiet")
    }

    /// Stops and says what was found.
    pub fn finish(self) -> Findings {
        let stop = UnixStream::connect(self.socket()).and_then(|mut s| s.write_all(b"stop\n"));
        stop.expect("the watcher's socket");
        self.thread.join().expect("the watcher");
        let mut findings = self.findings.lock().expect("findings");
        std::mem::take(&mut *findings)
    }
}

/// `None`: it is time to stop.
fn read(stream: &UnixStream) -> Option<Point> {
    let mut claims = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line.ok()?;
        if line == "stop" {
            return None;
        }
        if let Some(claim) = line.strip_prefix("claim ") {
            claims.extend(parse_claim(claim));
            continue;
        }
        let (pid, label) = line.split_once(' ')?;
        return Some(Point {
            pid: pid.parse().ok()?,
            label: label.into(),
            claims,
        });
    }
    // It went away without a word; that is for its own test to notice.
    Some(Point {
        pid: 0,
        label: "nobody".into(),
        claims,
    })
}

fn parse_claim(text: &str) -> Option<Claim> {
    let (range, word) = text.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    Some(Claim {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        word: word.into(),
    })
}

/// Our own check, the command line's and the shell's.
pub fn look(point: &Point, expected: &Expected) -> Vec<String> {
    let mut problems = coverage::check(point.pid, &point.claims, expected);
    for (name, mut command) in lookers(point.pid) {
        let done = child::run(&mut command, Duration::from_secs(60));
        if done.end() != "exit 0" {
            let said: Vec<_> = done
                .stdout
                .lines()
                .chain(done.stderr.lines())
                .take(4)
                .collect();
            problems.push(format!("{name}: {}: {}", done.end(), said.join(" | ")));
        }
    }
    problems
}

/// The commands that check the coverage of process `pid`, with their names.
pub fn lookers(pid: u32) -> [(&'static str, Command); 2] {
    let pid = pid.to_string();
    let mut verify = Command::new(build::regall());
    verify.args(["verify", &pid]);
    let mut script = Command::new(build::script("verify-maps.sh"));
    script.arg(&pid).arg(build::regall());
    [("regall verify", verify), ("verify-maps.sh", script)]
}
