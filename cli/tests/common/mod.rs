//! A process that publishes itself, and the checks that look at it.
#![allow(dead_code)] // no test file uses all of it

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

pub const REGALL: &str = env!("CARGO_BIN_EXE_regall");

pub struct Publisher {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Publisher {
    pub fn new() -> Self {
        Self::with(0)
    }

    /// With so many more mappings.
    pub fn with(mappings: usize) -> Self {
        Self::start(&[&mappings.to_string()])
    }

    /// The same, and each range has a memory region.
    pub fn with_regions(mappings: usize) -> Self {
        Self::start(&[&mappings.to_string(), "regions"])
    }

    fn start(arguments: &[&str]) -> Self {
        Self::executed(&publisher(), arguments)
    }

    /// As a rank of a batch job.
    pub fn of_job(job: &str, rank: u32) -> Self {
        let mut command = Command::new(publisher());
        command.arg("0").env("SLURM_JOB_ID", job);
        Self::started(command.env("OMPI_COMM_WORLD_RANK", rank.to_string()))
    }

    /// Under another name.
    pub fn called(name: &OsStr) -> Self {
        let folder = std::env::temp_dir().join(format!("regall-called-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        std::fs::copy(publisher(), &path).unwrap();
        let this = Self::executed(&path, &["0"]);
        std::fs::remove_dir_all(&folder).unwrap();
        this
    }

    fn executed(path: &Path, arguments: &[&str]) -> Self {
        Self::started(Command::new(path).args(arguments))
    }

    fn started(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cargo test builds it");
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut this = Self {
            child,
            stdin,
            stdout,
        };
        this.answer();
        this
    }

    fn answer(&mut self) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert_eq!(line, ".\n");
    }

    pub fn tell(&mut self, command: &str) -> &mut Self {
        self.stdin.write_all(command.as_bytes()).unwrap();
        self.answer();
        self
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: our own child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
        std::thread::sleep(Duration::from_millis(20));
    }

    pub fn verify(&self, arguments: &[&str]) -> (i32, String) {
        let pid = self.pid();
        regall(&[&["verify", &pid], arguments].concat())
    }

    /// The same check in shell and awk.
    pub fn script(&self) -> i32 {
        let out = Command::new("sh")
            .args([script(), PathBuf::from(self.pid()), REGALL.into()])
            .output()
            .unwrap();
        let said = text(&out);
        assert!(!said.contains("rror"), "{said}");
        out.status.code().unwrap()
    }

    /// Both checks must say `code`.
    pub fn both_say(&self, code: i32) -> String {
        let (said, text) = self.verify(&[]);
        assert_eq!(said, code, "{text}");
        assert_eq!(self.script(), code, "the script");
        text
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // What a dead process left is its heirs' to remove; there are none here.
        let start = format!("{}.", self.child.id());
        // SAFETY: no arguments, can't fail.
        let folder = format!("/dev/shm/regall-{}", unsafe { libc::geteuid() });
        for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with(&start) {
                let _ = std::fs::remove_file(file.path());
            }
        }
    }
}

fn publisher() -> PathBuf {
    let path = Path::new(REGALL).with_file_name("examples");
    path.join("publisher")
}

pub fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/verify-maps.sh")
}

pub fn text(out: &Output) -> String {
    let both = [out.stdout.as_slice(), out.stderr.as_slice()].concat();
    String::from_utf8(both).unwrap()
}

/// Exit code, and both outputs.
pub fn regall(arguments: &[&str]) -> (i32, String) {
    let out = Command::new(REGALL).args(arguments).output().unwrap();
    let text = text(&out);
    assert!(!text.contains("panicked"), "{text}");
    (out.status.code().expect("no signal"), text)
}
