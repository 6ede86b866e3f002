//! Core dumps: whether memory that REGALL_SHARE=heap shares would be in them. To the kernel
//! that is shared memory, which has a bit of its own in coredump_filter (core(5)).

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::ptr;

use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::io;
use rustix::mm::{mmap, MapFlags};
use rustix::process::{chdir, setrlimit, Resource, Rlimit};

use super::attempt::{in_child, map, Failure, READ_WRITE};
use super::finding::{Finding, Standing::*, Who};
use super::place::{limits, read};
use super::shim::sharing;

const FILTER: &str = "/proc/self/coredump_filter";
const PATTERN: &str = "/proc/sys/kernel/core_pattern";
const PRIVATE: u64 = 1;
const SHARED: u64 = 2;
const PAGE: usize = 4096;

/// A page that is nowhere else.
fn marked(seed: u64) -> [u64; PAGE / 8] {
    std::array::from_fn(|n| (seed + n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// In a child: a private and a shared page, and the end.
fn crash(folder: &Path, seeds: [u64; 2], core: Rlimit) -> [i64; 1] {
    let Ok(pages) = pages(folder) else {
        return [1];
    };
    for (at, seed) in pages.into_iter().zip(seeds) {
        // SAFETY: a page, which begins where any number can.
        unsafe { at.cast::<[u64; PAGE / 8]>().write(marked(seed)) };
    }
    let _ = setrlimit(Resource::Core, core);
    std::process::abort()
}

/// The two, in a process whose core goes into `folder`.
fn pages(folder: &Path) -> io::Result<[*mut u8; 2]> {
    chdir(folder)?;
    let file = memfd_create("regall-doctor", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, PAGE as u64)?;
    let none = ptr::null_mut();
    // SAFETY: new memory, at an address of the kernel's choosing.
    let shared = unsafe { mmap(none, PAGE, READ_WRITE, MapFlags::SHARED, &file, 0) }?;
    Ok([map(PAGE, READ_WRITE, MapFlags::empty())?, shared.cast()])
}

/// The most that this process may ask for.
fn as_long_as_may_be() -> Option<Rlimit> {
    let (_, hard) = limits("Max core file size")?;
    let most = hard.parse().ok();
    Some(Rlimit {
        current: most,
        maximum: most,
    })
}

/// Whether a private and a shared page are in a core that is really written; `None` where
/// none is to be had: cores go to a program or another folder, or RLIMIT_CORE forbids them.
fn tried() -> Option<[bool; 2]> {
    let pattern = read(PATTERN)?;
    if pattern.is_empty() || pattern.contains(['/', '|']) {
        return None;
    }
    let pid = std::process::id();
    let folder = Folder::new(std::env::temp_dir().join(format!("regall-doctor-{pid}")))?;
    let core = as_long_as_may_be()?;
    // Numbers that this program's own pages do not hold in a row.
    let seeds = [
        u64::from(pid) << 32 | 1 << 16,
        u64::from(pid) << 32 | 2 << 16,
    ];
    match in_child(|| crash(&folder.0, seeds, core)) {
        Err(Failure::Killed(libc::SIGABRT)) => (),
        _ => return None,
    }
    let core = fs::read_dir(&folder.0).ok()?.flatten().next()?;
    let core = fs::read(core.path()).ok()?;
    // Segments begin at a page's border in the file as well.
    let has = |seed: u64| {
        let page: Vec<u8> = marked(seed).iter().flat_map(|w| w.to_ne_bytes()).collect();
        core.chunks_exact(PAGE).any(|c| c == page)
    };
    Some(seeds.map(has))
}

/// A folder that goes with what is in it.
struct Folder(PathBuf);

impl Folder {
    fn new(path: PathBuf) -> Option<Self> {
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.ok().map(|()| Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What of these two is meant.
fn kinds([private, shared]: [bool; 2]) -> &'static str {
    match (private, shared) {
        (true, true) => "private and shared memory",
        (true, false) => "private memory, and no shared memory",
        (false, true) => "shared memory, and no private memory",
        (false, false) => "neither private nor shared memory",
    }
}

pub fn dumps() -> Finding {
    let name = "core dumps";
    let filter = read(FILTER).and_then(|text| u64::from_str_radix(&text, 16).ok());
    let Some(filter) = filter else {
        return Finding::new(name, Absent, "this kernel writes none");
    };
    let said = [filter & PRIVATE != 0, filter & SHARED != 0];
    let tried = tried();
    let how = match tried {
        Some(_) => "tried: a core holds",
        None => "cores are to hold",
    };
    let is = tried.unwrap_or(said);
    let found = format!("coredump_filter {filter:#x}; {how} {}", kinds(is));
    let finding = |standing| {
        let finding = Finding::new(name, standing, found.clone()).measured("filter", filter);
        match tried {
            Some([private, shared]) => finding
                .measured("private_in_core", private)
                .measured("shared_in_core", shared),
            None => finding,
        }
    };
    match is {
        [true, true] => {
            finding(Good).effect("memory that REGALL_SHARE=heap shares is in core dumps, too")
        }
        [false, false] => finding(Good),
        [false, true] => finding(Good).effect(
            "what REGALL_SHARE=heap shares would be in them, though private memory is not wanted \
             there",
        ),
        [true, false] => {
            let said = sharing().unwrap_or("it does nothing".into());
            let line = format!("echo {:#x} >/proc/$$/coredump_filter", filter | SHARED);
            finding(Limits)
                .effect(format!("REGALL_SHARE=heap: {said}"))
                .mend(
                    Who::You,
                    format!("{line} # in the shell that starts the job"),
                )
        }
    }
}
