//! Core dumps: whether memory that REGALL_SHARE=heap shares would be in them. To the kernel
//! that is shared memory, which has a bit of its own in coredump_filter (core(5)).

use std::fs::{self, DirBuilder};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use super::attempt::{in_child, map, Failure};
use super::place::{read, Who};
use super::shim::sharing;
use super::{Finding, Standing::*};

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
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
fn crash(folder: &std::ffi::CStr, seeds: [u64; 2]) -> [i64; 1] {
    // SAFETY: a NUL-terminated path.
    if unsafe { libc::chdir(folder.as_ptr()) } != 0 {
        return [1];
    }
    // SAFETY: a NUL-terminated name.
    let fd = unsafe { libc::memfd_create(c"regall-doctor".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: no memory.
    unsafe { libc::ftruncate(fd, PAGE as i64) };
    let (flags, none) = (libc::MAP_SHARED, std::ptr::null_mut());
    // SAFETY: new memory, at an address of the kernel's choosing.
    let shared = unsafe { libc::mmap(none, PAGE, READ_WRITE, flags, fd, 0) };
    let Some(private) = map(PAGE, READ_WRITE, 0).filter(|_| shared != libc::MAP_FAILED) else {
        return [1];
    };
    for (at, seed) in [private, shared.cast()].into_iter().zip(seeds) {
        // SAFETY: a page, which begins where any number can.
        unsafe { at.cast::<[u64; PAGE / 8]>().write(marked(seed)) };
    }
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: room for the answer.
    unsafe { libc::getrlimit(libc::RLIMIT_CORE, &mut limit) };
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: a structure that outlives the call.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) };
    // SAFETY: ends this child.
    unsafe { libc::abort() }
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
    let path = std::ffi::CString::new(folder.0.as_os_str().as_bytes()).ok()?;
    // Numbers that this program's own pages do not hold in a row.
    let seeds = [
        u64::from(pid) << 32 | 1 << 16,
        u64::from(pid) << 32 | 2 << 16,
    ];
    match in_child(|| crash(&path, seeds)) {
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
