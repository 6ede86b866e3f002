//! /dev/shm: where directories are published, and MPI libraries have their own
//! memory between ranks.

use std::os::unix::fs::MetadataExt;

use regall_reader::FOLDER_ROOT;
use regall_sys::folder::{self, Folder, NAMES, ROOT};
use rustix::fs::{fallocate, open, statvfs, FallocateFlags, Mode, OFlags};

use super::attempt::{errno, in_child, text};
use super::finding::{Finding, Standing::*, Who};
use super::place::Place;
use super::shim::user;
use crate::units;

/// Room for a rank's directory with 16,000 ranges.
const A_RANK: u64 = 1 << 20;
/// Room for what else is there: MPI libraries' own segments.
const ENOUGH: u64 = 64 << 20;

/// Bytes that are free in the file system of `path`.
fn free_space(path: &str) -> Option<u64> {
    let answer = statvfs(path).ok()?;
    Some(answer.f_bavail.saturating_mul(answer.f_frsize))
}

/// Makes a file without a name there and has space allocated for it: 0, or the errno.
fn write(bytes: u64) -> i64 {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = open(FOLDER_ROOT, flags, Mode::RUSR | Mode::WUSR);
    errno(file.and_then(|file| fallocate(file, FallocateFlags::empty(), 0, bytes)))
}

pub fn memory(near: &Place) -> Finding {
    let name = FOLDER_ROOT;
    let lost = "directories can't be published: regall verify, top and maps see nothing";
    let Some(free) = free_space(name) else {
        return Finding::new(name, Limits, "not there").effect(lost).mend(
            Who::Administrator,
            "sudo mkdir -p /dev/shm && sudo mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
        );
    };
    let wanted = near.ranks.saturating_mul(A_RANK).saturating_add(ENOUGH);
    let need = format!(
        "{} ranks want {} (1 MiB each for 16,000 ranges, 64 MiB for MPI's own)",
        near.ranks,
        units::bytes(wanted)
    );
    let size = |f| {
        near.mend(
            f,
            &format!("--shm-size={}m", (wanted >> 20).next_multiple_of(1024)),
            "sudo mount -o remount,size=50% /dev/shm",
        )
    };
    let space = format!("{} free", units::bytes(free));
    match in_child(|| [write(A_RANK)]) {
        Ok([0]) if free >= wanted => {
            Finding::new(name, Good, format!("writable, {space}")).measured("free_bytes", free)
        }
        Ok([0]) => size(
            Finding::new(name, Limits, format!("writable, {space}"))
                .measured("free_bytes", free)
                .effect(need),
        ),
        Ok([no]) if no == i64::from(libc::ENOSPC) => {
            size(Finding::new(name, Limits, format!("full: {space}")).effect(lost))
        }
        Ok([no]) => Finding::new(name, Limits, format!("not writable: {}", text(no)))
            .effect(lost)
            .mend(
                Who::Administrator,
                "sudo mount -o remount,rw,mode=1777 /dev/shm",
            ),
        Err(why) => Finding::new(name, Unknown, why.to_string()),
    }
}

/// The user's own folder there, which must be nobody else's: the first one of these names that
/// is, or is still to be had; else one of a random name.
pub fn folder() -> Finding {
    let path = |folder: Folder| String::from_utf8_lossy(folder.path().as_bytes()).into_owned();
    let (uid, mut refused, mut free) = (user(), None, None);
    let mut own = Vec::new();
    folder::each(ROOT, uid, |_, folder| own.push(folder));
    for folder in (0..NAMES).map(|n| Folder { uid, n }) {
        let path = path(folder);
        let Ok(found) = std::fs::symlink_metadata(&path) else {
            free = free.or(Some(path));
            continue;
        };
        if own.contains(&folder) {
            break;
        }
        let what = if found.is_dir() {
            "a folder"
        } else {
            "no folder"
        };
        let (mode, owner) = (found.mode() & 0o7777, found.uid());
        refused.get_or_insert(format!("{path} is {what} of user {owner}, mode {mode:o}"));
    }
    let (found, taken) = match (own.first(), free) {
        (Some(folder), _) => (path(*folder), path(*folder)),
        (None, Some(free)) => (format!("{free} comes with the first process"), free),
        (None, None) => (
            "a folder comes with the first process".to_string(),
            "a random name".to_string(),
        ),
    };
    let finding = Finding::new("directories", Good, found);
    match refused {
        None => finding,
        Some(why) => finding.effect(format!(
            "{why}: the shim does not trust that, and takes {taken} instead"
        )),
    }
}
