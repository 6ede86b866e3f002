//! The ways in which a program is run.

use std::process::Command;
use std::time::Duration;

use crate::build;
use crate::child::{self, Outcome, Running};

/// A way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Without the shim: the measure of all others.
    Plain,
    /// The shim preloaded, REGALL not set.
    Inert,
    /// On, all defaults.
    Auto,
    /// Pinned and resident at once.
    Populate,
    /// Pinned on fault.
    OnFault,
    /// Tracked only.
    Off,
    /// As [`Self::Populate`], intercepted by symbols: coverage can't be complete.
    Symbols,
    /// As [`Self::Populate`], patched, and Syscall User Dispatch for the rest.
    Strict,
    /// Pinned and populated, and large private memory is a file's that peers can map.
    Heap,
}

impl Mode {
    /// Sets a command up to run in this mode, whatever our own environment says.
    pub fn apply(self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("REGALL") {
                command.env_remove(&name);
            }
        }
        if self == Self::Plain {
            return;
        }
        command.env("LD_PRELOAD", build::shim());
        if self == Self::Inert {
            return;
        }
        command.env("REGALL", "1");
        match self {
            Self::Auto => (),
            Self::OnFault => {
                command.envs([("REGALL_PIN", "onfault"), ("REGALL_HUGE", "advise")]);
            }
            Self::Off => drop(command.env("REGALL_PIN", "off")),
            _ => drop(command.env("REGALL_PIN", "populate")),
        }
        match self {
            Self::Symbols => command.env("REGALL_INTERCEPT", "symbols"),
            Self::Strict => command.env("REGALL_INTERCEPT", "strict"),
            Self::Heap => command.env("REGALL_SHARE", "always"),
            _ => command,
        };
    }

    /// What it sets, for programs that are given it by others (strace, perf).
    pub fn settings(self) -> Vec<(String, String)> {
        let mut command = Command::new("env");
        self.apply(&mut command);
        let text = |s: &std::ffi::OsStr| s.to_string_lossy().into_owned();
        let set = command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?)));
        set.map(|(name, value)| (text(name), text(value))).collect()
    }

    /// strace as it is told to do `what` to each call of a name, where it runs a program in this
    /// mode: the program is still to be named.
    pub fn under_strace(self, call: &str, what: &str) -> Command {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-q", "--output=/dev/null"]);
        strace.arg(format!("--trace={call}"));
        strace.arg(format!("--inject={call}:{what}"));
        for (name, value) in self.settings() {
            strace.arg(format!("--env={name}={value}"));
        }
        strace
    }

    /// Whether every byte must be accounted for at a quiet point.
    pub fn is_complete(self) -> bool {
        matches!(
            self,
            Self::Auto | Self::Populate | Self::OnFault | Self::Off | Self::Strict | Self::Heap
        )
    }

    /// Whether memory is pinned.
    pub fn pins(self) -> bool {
        matches!(
            self,
            Self::Auto | Self::Populate | Self::OnFault | Self::Strict | Self::Heap
        )
    }
}

/// What mpirun needs in its environment to start ranks for root.
pub const AS_ROOT: [(&str, &str); 2] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
];

/// Runs a launcher without the shim; what it starts may have it.
pub fn launch(command: &mut Command, timeout: Duration) -> Outcome {
    begin(command, timeout).finish()
}

/// Starts it.
pub fn begin(command: &mut Command, timeout: Duration) -> Running {
    Mode::Plain.apply(command);
    command.env_remove("LD_PRELOAD").envs(AS_ROOT);
    child::start(command, timeout)
}
