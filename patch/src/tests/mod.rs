//! Tests of the patcher: golden pairs assembled by gcc, the C library that this
//! machine has against objdump's opinion of it, random bytes, and patched code
//! that is run.

use super::apply::Patches;
use super::decode::{boundary, Boundary, Effect, Flow, Insn, RAX};
use super::discover::{inspect, inspect_in, next_syscall, Text, Verdict};
use super::elf::{Bounds, Module};
use super::function::{Function, Numbers, Room};
use super::modules::{groups, is_libc, Group, Origin, BUFFER_BYTES};
use super::plan::{kind_of, Entry, Kind, Plan, ZoneLayout, TRAMPOLINE_BYTES};
use super::write::Writer;
use super::*;
use crate::trampoline::{site_of_end, END_BYTES};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

mod bytes;
mod decoding;
mod golden;
mod in_use;
mod libraries;
mod probed;
mod rig;
mod running;

pub use rig::{alone, with_test_entry};

const BASE: u64 = 0x10000;
const ZONE: u64 = BASE + 0x1000;
const TRAMPOLINE: usize = 0x1400;
const LAYOUT: ZoneLayout = ZoneLayout {
    call_slot: ZONE,
    full_slot: ZONE + 8,
    table: ZONE + 64,
};

fn room() -> Box<Room> {
    Box::new(Room::new())
}

fn insn(bytes: &[u8]) -> Insn {
    Insn::decode(bytes).unwrap()
}

fn run(command: &mut Command) -> String {
    let out = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        out.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

fn group_named(stem: &str) -> (Group, PathBuf) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps
        .lines()
        .find(|l| l.contains(stem) && l.contains(" 00000000 "))
        .unwrap();
    let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let path = PathBuf::from(&line[line.find('/').unwrap()..]);
    let mut found = None;
    groups(&mut [0; BUFFER_BYTES], |group| {
        if group.segments().any(|s| s.range.start() == start) {
            found = Some(*group);
        }
        true
    })
    .unwrap();
    (found.unwrap(), path)
}
