//! Devices whose drivers are not in the kernel: the real one where there is one, else a stand-in
//! at the system calls (c-tests/bridge). With TESTS_DEVICES=real (`make test DEVICES=real`) the
//! real ones have to be there.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::build;
use crate::child::{self, Outcome};
use crate::mode::Mode;

/// A device, and the program that stands in for it.
pub struct Device {
    path: &'static str,
    standin: &'static str,
}

/// KNEM's.
pub const KNEM: Device = Device {
    path: "/dev/knem",
    standin: "bridge/knem_device",
};
/// XPMEM's.
pub const XPMEM: Device = Device {
    path: "/dev/xpmem",
    standin: "bridge/xpmem_device",
};

/// What a program has come to, and what the stand-in has counted; of a real device nothing.
pub struct Used {
    /// The program's.
    pub outcome: Outcome,
    /// As the stand-in writes it.
    pub counted: Option<String>,
}

impl Device {
    /// Whether it is a real one.
    pub fn is_real(&self) -> bool {
        let there = Path::new(self.path).exists();
        let wanted = std::env::var_os("TESTS_DEVICES").is_some_and(|d| d == "real");
        assert!(there || !wanted, "TESTS_DEVICES=real, and no {}", self.path);
        there
    }

    /// Runs a C program under the shim, with `options` for the stand-in; it must succeed.
    pub fn run(&self, mode: Mode, options: &[&str], copy: &str, program: &[&str]) -> Used {
        let counts = tempfile::NamedTempFile::new().expect("a temporary file");
        let mut command = match self.is_real() {
            true => Command::new("env"),
            false => {
                let mut command = Command::new(build::program(self.standin));
                command.arg("--count").arg(counts.path());
                command.args(options).arg("env");
                command
            }
        };
        // For the program alone: the stand-in is not under the shim.
        for (name, value) in mode.settings() {
            command.arg(format!("{name}={value}"));
        }
        command.arg(format!("REGALL_COPY={copy}"));
        command.arg(build::program(program[0])).args(&program[1..]);
        let outcome = child::run(&mut command, Duration::from_secs(100));
        outcome.must_succeed_at(format_args!("{program:?}, {options:?}, REGALL_COPY={copy}"));
        let counted = (!self.is_real())
            .then(|| std::fs::read_to_string(counts.path()).expect("what was counted"));
        Used { outcome, counted }
    }
}

impl Used {
    /// What the stand-in has counted as `name`; of a real device `otherwise`.
    pub fn count(&self, name: &str, otherwise: u64) -> u64 {
        let Some(counted) = &self.counted else {
            return otherwise;
        };
        let mut words = counted.split_whitespace();
        words
            .find(|word| *word == name)
            .and_then(|_| words.next()?.parse().ok())
            .unwrap_or_else(|| panic!("no {name} in {counted:?}"))
    }
}
