//! A victim: a process without the shim, for which files in a /dev/shm of our own say whatever
//! an input wants them to say.

use std::any::Any;
use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};

/// Bytes of the memory that the victim has, all of them [`FILLED`].
pub const MEMORY: u64 = 64 << 10;
/// What its memory is full of.
pub const FILLED: u8 = 0xa5;

/// Has `play` on the scene, which is made when it is first needed and stays for all inputs.
pub fn with_scene<S: 'static>(new: fn() -> S, play: impl FnOnce(&mut S)) {
    thread_local! {
        static SCENE: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
    }
    SCENE.with_borrow_mut(|scene| {
        let scene = scene.get_or_insert_with(|| Box::new(new()));
        play(scene.downcast_mut().expect("a target has one"));
    });
}

/// A child that has `file` mapped, as who has a directory does, and waits while `us` is its parent.
fn waiting_child(us: u32, file: &File) -> u32 {
    use std::os::fd::AsRawFd;
    // SAFETY: the child calls nothing that allocates.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let (shared, fd) = (libc::MAP_SHARED, file.as_raw_fd());
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, shared, fd, 0);
            libc::alarm(0);
            while libc::getppid() == us as i32 {
                libc::sleep(1);
            }
            libc::_exit(0);
        }
        pid as u32
    }
}

/// The process and what is known of it.
pub struct Victim {
    /// Its pid.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start: u64,
    /// Inode number of its pid namespace.
    pub namespace: u64,
    /// Where its memory is.
    pub memory: u64,
    /// Its files are named so, with a kind behind.
    stem: String,
}

impl Victim {
    /// Starts one, which ends when we do.
    pub fn new() -> Self {
        private_shm();
        // SAFETY: a new private mapping, filled by us alone.
        let memory = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), MEMORY as usize, rights, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            std::ptr::write_bytes(at.cast::<u8>(), FILLED, MEMORY as usize);
            at as u64
        };
        // SAFETY: system calls without memory.
        let uid = unsafe { libc::geteuid() };
        let folder = format!("/dev/shm/regall-{uid}");
        let _ = fs::DirBuilder::new().mode(0o700).create(&folder);
        let us = std::process::id();
        let draft = format!("{folder}/draft.{us}");
        let file = open(&draft);
        file.set_len(8192 + 1024 * 64).expect("a file's size");
        let pid = waiting_child(us, &file);
        // The victim has it mapped; what it does to its memory is its own.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
        let rest = stat.rsplit_once(')').expect("a name").1;
        let start = rest.split_whitespace().nth(19).and_then(|s| s.parse().ok());
        let start = start.expect("a start time");
        let namespace = fs::metadata("/proc/self/ns/pid").expect("a namespace");
        let namespace = std::os::unix::fs::MetadataExt::ino(&namespace);
        let stem = format!("{folder}/{pid}.{start}.{namespace}");
        let mapped =
            || fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|m| m.contains("/draft."));
        while !mapped() {
            std::thread::yield_now();
        }
        fs::rename(&draft, &stem).expect("its name");
        Self {
            pid,
            start,
            namespace,
            memory,
            stem,
        }
    }

    /// Its directory.
    pub fn directory(&self) -> File {
        open(&self.stem)
    }

    /// Its regions' file.
    #[allow(dead_code)] // not every target has one
    pub fn regions(&self) -> File {
        open(&format!("{}.regions", self.stem))
    }

    /// A word that an input asks for: numbers that mean the same in every run.
    pub fn word(&self, kind: u8, value: u64, cookies: &[u64]) -> u64 {
        match kind % 8 {
            0 | 1 => value,
            2 => self.memory.wrapping_add(value),
            3 => self.memory.wrapping_add(value << 12),
            4 => cookies
                .get(value as usize % cookies.len().max(1))
                .copied()
                .unwrap_or(0),
            5 => !value,
            6 => 1 << (value % 64),
            _ => u64::from(self.pid).wrapping_add(value),
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // SAFETY: a system call without memory, to our own child.
        unsafe { libc::kill(self.pid as i32, libc::SIGKILL) };
    }
}

fn open(path: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    options.open(path).expect("a file under /dev/shm")
}

/// Writes words at an offset.
pub fn write(file: &File, offset: u64, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    file.write_all_at(&bytes, offset).expect("room in /dev/shm");
}

/// A /dev/shm that nobody else sees: others on this machine look at all directories there.
/// Without the right to that it is everybody's.
fn private_shm() {
    // SAFETY: system calls with C strings.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNS) != 0 {
            return;
        }
        let (none, root) = (c"none".as_ptr(), c"/".as_ptr());
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let null = std::ptr::null();
        assert_eq!(libc::mount(none, root, null, private, null.cast()), 0);
        let mode = c"mode=1777".as_ptr().cast();
        libc::mount(none, c"/dev/shm".as_ptr(), c"tmpfs".as_ptr(), 0, mode);
    }
}

/// Takes the first bytes of an input.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    /// One byte; 0 at the end.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A number of up to eight bytes: the first byte says how many.
    pub fn number(&mut self) -> u64 {
        let bytes = self.byte() % 9;
        (0..bytes).fold(0, |n, _| n << 8 | u64::from(self.byte()))
    }

    /// Whether there is more.
    #[allow(dead_code)] // not every target asks
    pub fn more(&self) -> bool {
        !self.0.is_empty()
    }
}
