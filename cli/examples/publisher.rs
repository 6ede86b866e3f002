//! A stand-in for a process with the shim, for the tests of the command line:
//! publishes its own /proc/self/maps, then misbehaves as it is told.
//!
//! Reads one-letter commands from stdin and answers each with a line. Once it
//! has published it allocates nothing, so that its mappings stay as they are.

use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use regall_directory::addr::PageRange;
use regall_directory::layout::*;
use regall_directory::maps::{self, Lines, LINE_MAX};
use regall_directory::vocab::{Attr, Column, Flags, Kind, Prot, Reason};
use regall_directory::writer::{Backing, SlotRef, Writer};
use regall_reader::Process;

/// Maps `bytes`: of the file from `offset` on, or anonymous.
fn map(file: Option<i32>, offset: usize, bytes: usize) -> *mut libc::c_void {
    let flags = match file {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    };
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, which nothing else knows of.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            prot,
            flags,
            file.unwrap_or(-1),
            offset as i64,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    at
}

struct File(i32);

impl Backing for File {
    fn segment(&mut self, k: usize) -> Option<NonNull<Slot>> {
        let (offset, bytes) = (segment_offset(k), segment_bytes(k));
        // SAFETY: only allocates space in our own file.
        let done = unsafe { libc::posix_fallocate(self.0, offset as i64, bytes as i64) };
        assert_eq!(done, 0);
        NonNull::new(map(Some(self.0), offset, bytes).cast())
    }
    fn private(&mut self, bytes: usize) -> Option<NonNull<u32>> {
        NonNull::new(map(None, 0, bytes).cast())
    }
}

struct Publisher {
    writer: Writer,
    generation: u64,
    /// A mapping that the commands are about, apart from all others.
    victim: PageRange,
    slot: Option<SlotRef>,
    file: i32,
}

fn main() {
    let (file, us) = create();
    let mut backing = File(file);
    // SAFETY: only allocates space in our own file.
    let done = unsafe { libc::posix_fallocate(file, 0, HEADER_BYTES as i64) };
    assert_eq!(done, 0);
    let header = NonNull::new(map(Some(file), 0, HEADER_BYTES).cast::<Header>()).unwrap();
    let mut writer = Writer::new();
    // SAFETY: mapped, zeroed, never unmapped.
    unsafe { writer.attach(header) };
    let many = std::env::args().nth(1).map_or(0, |n| n.parse().unwrap());
    assert!(writer.reserve(&mut backing, 2 * many + 1000));
    // Neighbours of one protection would be one mapping.
    for n in 0..many {
        let at = map(None, 0, 4096);
        if n % 2 == 0 {
            // SAFETY: our own mapping, which nothing uses.
            unsafe { libc::mprotect(at, 4096, libc::PROT_READ) };
        }
    }
    let victim = map(None, 0, 3 << 20) as u64 + (1 << 20);
    // SAFETY: our own mapping; what lies round the victim goes.
    unsafe {
        libc::munmap((victim - (1 << 20)) as *mut _, 1 << 20);
        libc::munmap((victim + (1 << 20)) as *mut _, 1 << 20);
    }
    let mut publisher = Publisher {
        writer,
        generation: 1,
        victim: PageRange::new(victim, victim + (1 << 20)).unwrap(),
        slot: None,
        file,
    };
    publisher.fill_header(&us);
    publisher.publish_all();
    publisher.serve();
}

/// Creates this process's file; its descriptor, and who we are.
fn create() -> (i32, Process) {
    let us = Process::find(std::process::id()).unwrap();
    let folder = format!("/dev/shm/regall-{}", us.uids[0]);
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&folder);
    let path = format!("{folder}/{}.{}.{}", us.own_pid, us.start_time, us.namespace);
    let mut options = std::fs::OpenOptions::new();
    let options = options.read(true).write(true).create(true).mode(0o600);
    let file = options.open(path).unwrap();
    let fd = file.as_raw_fd();
    std::mem::forget(file);
    (fd, us)
}

fn attr(prot: Prot, kind: Kind, pin: Column) -> Attr {
    Attr {
        prot,
        kind,
        flags: Flags::EMPTY,
        pin,
        hca: Column::no(Reason::Off),
    }
}

impl Publisher {
    fn fill_header(&self, us: &Process) {
        let h = self.writer.header().unwrap();
        h.pid.store(us.own_pid.into(), Relaxed);
        h.start_time.store(us.start_time, Relaxed);
        h.pid_namespace.store(us.namespace, Relaxed);
        h.generation.store(1, Relaxed);
        h.settings.store(2 | SETTING_HCA_OFF, Relaxed);
        h.budget.store(u64::MAX, Relaxed);
        h.calls[Call::Mmap as usize].store(42, Relaxed);
        h.selftest_missed.store(1 << Call::Brk as u64, Relaxed);
        h.magic.store(MAGIC, Relaxed);
    }

    fn publish_all(&mut self) {
        let mut buffer = [0; LINE_MAX];
        // SAFETY: a C string.
        let fd = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY) };
        let mut lines = Lines::new(&mut buffer, |into: &mut [u8]| {
            // SAFETY: a slice of that length.
            match unsafe { libc::read(fd, into.as_mut_ptr().cast(), into.len()) } {
                n if n >= 0 => Ok(n as usize),
                _ => Err(()),
            }
        });
        while let Some(line) = lines.next_line() {
            let line = maps::parse(line.unwrap()).unwrap();
            let kernel = matches!(line.name, b"[vdso]" | b"[vvar]" | b"[vsyscall]")
                || line.name.starts_with(b"[vvar");
            let mut attr = match (kernel, line.prot.is_none()) {
                (true, _) => attr(line.prot, Kind::Kernel, Column::no(Reason::Kernel)),
                (_, true) => attr(line.prot, Kind::Anon, Column::no(Reason::NoAccess)),
                _ => attr(line.prot, Kind::Anon, Column::YES),
            };
            if line.name == b"[stack]" {
                attr.flags = Flags::GROWABLE;
                attr.kind = Kind::Stack;
                let floor = line.range.start() - (4 << 20);
                self.writer
                    .header()
                    .unwrap()
                    .stack_floor
                    .store(floor, Relaxed);
            }
            let keys = if line.range == self.victim {
                0x22_0000_0011
            } else {
                0
            };
            let slot = self.writer.publish(1, line.range, attr, 1, keys);
            if line.range == self.victim {
                self.slot = slot;
            }
        }
        assert!(self.slot.is_some());
        // SAFETY: our own descriptor.
        unsafe { libc::close(fd) };
    }

    /// Says something else of the victim, or nothing.
    fn replace(&mut self, with: Option<(Prot, Column)>) {
        self.generation += 1;
        let old = self.slot.take();
        if let Some((prot, pin)) = with {
            let attr = attr(prot, Kind::Anon, pin);
            self.slot = self
                .writer
                .publish(self.generation, self.victim, attr, 1, 0);
        }
        if let Some(old) = old {
            self.writer.retire(old);
        }
        self.header().generation.store(self.generation, Relaxed);
    }

    fn header(&self) -> &Header {
        self.writer.header().unwrap()
    }

    /// Maps and unmaps without a pause, published in the right order.
    fn churn(&mut self) {
        loop {
            self.busy(true);
            self.generation += 1;
            let at = map(None, 0, 1 << 16) as u64;
            let range = PageRange::new(at, at + (1 << 16)).unwrap();
            let says = attr(Prot::from_call(3, false), Kind::Anon, Column::YES);
            let slot = self.writer.publish(self.generation, range, says, 1, 0);
            self.header().generation.store(self.generation, Relaxed);
            self.busy(false);
            self.busy(true);
            self.generation += 1;
            self.writer.retire(slot.unwrap());
            // SAFETY: mapped just now.
            unsafe { libc::munmap(at as *mut _, 1 << 16) };
            self.header().generation.store(self.generation, Relaxed);
            self.busy(false);
        }
    }

    fn busy(&self, yes: bool) {
        // SAFETY: no arguments; the first thread's tid is the pid.
        let tid = unsafe { libc::getpid() } as u64;
        self.header().inflight[0].store(u64::from(yes) * tid, Relaxed);
    }

    fn serve(&mut self) {
        answer();
        let rw = Prot::from_call(3, false);
        loop {
            let mut command = 0u8;
            // SAFETY: room for one byte.
            if unsafe { libc::read(0, (&raw mut command).cast(), 1) } != 1 {
                return;
            }
            match command {
                b'-' => self.replace(None),
                b'+' => self.replace(Some((rw, Column::YES))),
                b'r' => self.replace(Some((Prot::from_call(1, false), Column::YES))),
                b'l' => self.replace(Some((rw, Column::no(Reason::Limit)))),
                b'b' => self.busy(true),
                b'B' => self.busy(false),
                b'u' => self.header().unpublished.store(3, Relaxed),
                b'G' => drop(self.header().settings.fetch_or(SETTING_GAVE_UP, Relaxed)),
                b'a' => {
                    let slot = self.writer.segments().next().unwrap().first().unwrap();
                    slot.attr.store(u64::MAX, Relaxed);
                }
                // SAFETY: our own file, whose pages we don't touch any more.
                b't' => drop(unsafe { libc::ftruncate(self.file, 100) }),
                b's' => drop(grow(64)),
                b'C' => {
                    answer();
                    self.churn();
                }
                b'x' => {
                    use std::os::unix::process::CommandExt;
                    answer();
                    let e = std::process::Command::new("sleep").arg("100").exec();
                    panic!("{e}");
                }
                _ => continue,
            }
            answer();
        }
    }
}

fn answer() {
    // SAFETY: two bytes of a literal.
    unsafe { libc::write(1, c".\n".as_ptr().cast(), 2) };
}

/// Uses 16 KiB of stack, so many times over.
#[inline(never)]
fn grow(depth: u32) -> u64 {
    let page = std::hint::black_box([depth as u64; 2048]);
    match depth {
        0 => page[0],
        _ => grow(depth - 1) + page[17],
    }
}
