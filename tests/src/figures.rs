//! What the shim says of a process, from outside.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::build;
use crate::child;

/// A few of the figures of `regall stats --json`, beside the kernel's.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Ranges in the ledger.
    pub ranges: u64,
    /// Bytes of the shim's own.
    pub own: u64,
    /// Sites in code that could not be patched, all in all.
    pub refused: u64,
    /// Lines of /proc/PID/maps.
    pub mappings: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

/// Those of process `pid`, which must have the shim on and be at rest.
pub fn of(pid: u32) -> Figures {
    let mut command = Command::new(build::regall());
    let done = child::run(
        command.args(["stats", "--json", &pid.to_string()]),
        Duration::from_secs(60),
    );
    done.must_succeed();
    let said: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let number = |group: &str, name: &str| {
        let value = said[group][name].as_u64();
        value.unwrap_or_else(|| panic!("no {name}: {}", done.stdout))
    };
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its maps");
    let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
    Figures {
        ranges: number("counters", "ranges"),
        own: number("counters", "shim_bytes"),
        refused: number("sites", "refused"),
        mappings: maps.lines().count() as u64,
        descriptors: open.count() as u64,
    }
}
