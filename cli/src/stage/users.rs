//! Who uses a copy.

use std::fs;
use std::io::ErrorKind::{FileTooLarge, PermissionDenied};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use regall_reader::procfs;

/// Whether a process of this user's has it mapped, or has it among what is preloaded into the
/// programs that it starts. One that can't be looked at counts if it runs with the shim on: most
/// nodes have some that nobody can look at, and that have nothing to do with it.
pub fn any(copy: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    let with_shim = regall_reader::search(Some(uid), None).unwrap_or_default();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = pids.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let (own, copy) = (std::process::id(), copy.as_os_str().as_bytes());
    pids.any(|pid| {
        let others = pid != own && is_of(pid, uid);
        others
            && uses(pid, copy).unwrap_or_else(|| with_shim.seen.iter().any(|seen| seen.pid == pid))
    })
}

fn is_of(pid: u32, uid: u32) -> bool {
    let text = procfs::text(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("Uid:"));
    let uids = line.unwrap_or_default().split_whitespace();
    uids.filter_map(|n| n.parse::<u32>().ok()).any(|n| n == uid)
}

/// None: it can't be looked at.
fn uses(pid: u32, copy: &[u8]) -> Option<bool> {
    let has = |text: &[u8]| text.windows(copy.len()).any(|w| w == copy);
    let file = |name| format!("/proc/{pid}/{name}");
    let environ = procfs::whole(file("environ")).map(|text| has(&text));
    let mut mapped = false;
    let listed = procfs::each_line(file("maps"), procfs::most_mappings(), |line| {
        mapped = has(line);
        match mapped {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    for uses in [environ, listed.map(|_| mapped)] {
        match uses {
            Ok(true) => return Some(true),
            Err(e) if matches!(e.kind(), PermissionDenied | FileTooLarge) => return None,
            // One that has ended meanwhile uses nothing.
            _ => (),
        }
    }
    Some(false)
}
