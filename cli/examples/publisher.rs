//! A stand-in for a process with the shim, for the tests of the command line:
//! publishes its own /proc/self/maps, then misbehaves as it is told.
//!
//! Reads one-letter commands from stdin and answers each with a line. Once it
//! has published it allocates nothing, so that its mappings stay as they are.
//!
//! Its primary domain is number 2. To begin with it has one region, which is the
//! victim, a mapping of 1 MiB.

use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use regall_directory::addr::PageRange;
use regall_directory::layout::*;
use regall_directory::maps::{self, Lines, LINE_MAX};
use regall_directory::vocab::{Access, Attr, Column, Flags, Kind, Prot, Reason};
use regall_directory::writer::{Backing, Region, Writer};
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
    generation: Generation,
    /// A mapping that the commands are about, apart from all others.
    victim: PageRange,
    slot: Option<SlotRef>,
    /// The primary domain's regions of the victim.
    regions: [Option<SlotRef>; 2],
    /// A region of what is not mapped.
    stray: Option<SlotRef>,
    /// Each range has a region of the primary domain.
    all_in_regions: bool,
    file: i32,
}

/// Domain words: two domains of one protection domain, and the primary one.
const LOCAL: u64 = 9 << 32 | 1;
const PRIMARY: u64 = 7 << 32 | 2;
const PEERS: u64 = 9 << 32 | 3;

fn main() {
    // What is published as pinned is.
    let all = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // SAFETY: no memory is read or written.
    let locked = unsafe { libc::mlockall(all) };
    assert_eq!(locked, 0, "RLIMIT_MEMLOCK has to let all memory be locked");
    let (file, us) = create();
    let mut backing = File(file);
    // SAFETY: only allocates space in our own file.
    let done = unsafe { libc::posix_fallocate(file, 0, HEADER_BYTES as i64) };
    assert_eq!(done, 0);
    let header = NonNull::new(map(Some(file), 0, HEADER_BYTES).cast::<Header>()).unwrap();
    let mut writer = Writer::new();
    // SAFETY: mapped, zeroed, never unmapped.
    unsafe { writer.attach(header) };
    // (Its own name need not be text.)
    let mut given = std::env::args_os().skip(1);
    let many = given
        .next()
        .map_or(0, |n| n.to_str().unwrap().parse().unwrap());
    let all_in_regions = given.next().is_some();
    assert!(writer.reserve(&mut backing, 3 * many + 1000));
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
        generation: Generation::from_raw(1),
        victim: PageRange::new(victim, victim + (1 << 20)).unwrap(),
        slot: None,
        regions: [None; 2],
        stray: None,
        all_in_regions,
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
        hca: Column::no(Reason::OptedOut),
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
        h.primary.store(PRIMARY & 0xffff_ffff, Relaxed);
        h.counters[Counter::Domains as usize].store(3, Relaxed);
        h.counters[Counter::RetiredBytes as usize].store(8192, Relaxed);
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
            let ours = line.range == self.victim;
            if ours || self.all_in_regions && attr.pin.held() {
                attr.hca = Column::YES;
            }
            let slot = self.writer.publish(self.generation, line.range, attr, 1);
            if ours {
                self.slot = slot;
            } else if attr.hca.held() {
                self.region(line.range, Access::LOCAL_WRITE, PRIMARY, 0x55);
            }
        }
        assert!(self.slot.is_some());
        self.regions[0] = self.region(self.victim, Access::LOCAL_WRITE, PRIMARY, 0x11);
        // SAFETY: our own descriptor.
        unsafe { libc::close(fd) };
    }

    /// Publishes a region with the keys `key` and `key` * 2.
    fn region(&mut self, at: PageRange, access: Access, domain: u64, key: u64) -> Option<SlotRef> {
        let region = Region {
            domain,
            keys: (key * 2) << 32 | key,
        };
        let slot = self
            .writer
            .publish_region(self.generation, at, access, key, region);
        assert!(slot.is_some());
        slot
    }

    /// Instead of the victim's region of the primary domain two, with so many
    /// pages between them that no region holds.
    fn split(&mut self, hole: u64) {
        self.generation = self.generation.next();
        let (start, end) = (self.victim.start(), self.victim.end());
        let part = |start, end| PageRange::new(start, end).unwrap();
        let low = self.region(
            part(start, start + (64 << 12)),
            Access::LOCAL_WRITE,
            PRIMARY,
            0x33,
        );
        let high = self.region(
            part(start + ((64 + hole) << 12), end),
            Access::LOCAL_WRITE,
            PRIMARY,
            0x44,
        );
        let old = std::mem::replace(&mut self.regions, [low, high]);
        for slot in old.into_iter().flatten() {
            self.writer.retire(slot);
        }
        self.header()
            .generation
            .store(self.generation.get(), Relaxed);
    }

    /// Regions of two other domains.
    fn others(&mut self) {
        self.generation = self.generation.next();
        let half = PageRange::new(self.victim.start(), self.victim.start() + (1 << 19)).unwrap();
        self.region(self.victim, Access::NONE, LOCAL, 0x66);
        let all = Access::as_asked(1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 20);
        self.region(half, all, PEERS, 0x77);
        self.header()
            .generation
            .store(self.generation.get(), Relaxed);
    }

    /// A region of a domain that reaches a page beyond the victim, or not.
    fn stray(&mut self, yes: bool, domain: u64) {
        self.generation = self.generation.next();
        let end = self.victim.end();
        if let Some(old) = self.stray.take() {
            self.writer.retire(old);
        }
        if yes {
            let range = PageRange::new(end - 4096, end + 4096).unwrap();
            self.stray = self.region(range, Access::LOCAL_WRITE, domain, 0x88);
        }
        self.header()
            .generation
            .store(self.generation.get(), Relaxed);
    }

    /// Says something else of the victim, or nothing.
    fn replace(&mut self, with: Option<(Prot, Column)>) {
        self.generation = self.generation.next();
        let old = self.slot.take();
        if let Some((prot, pin)) = with {
            let attr = attr(prot, Kind::Anon, pin);
            self.slot = self.writer.publish(self.generation, self.victim, attr, 1);
        }
        if let Some(old) = old {
            self.writer.retire(old);
        }
        self.header()
            .generation
            .store(self.generation.get(), Relaxed);
    }

    fn header(&self) -> &Header {
        self.writer.header().unwrap()
    }

    /// Maps and unmaps without a pause, published in the right order.
    fn churn(&mut self) {
        loop {
            self.busy(true);
            self.generation = self.generation.next();
            let at = map(None, 0, 1 << 16) as u64;
            let range = PageRange::new(at, at + (1 << 16)).unwrap();
            let says = attr(Prot::from_call(3, false), Kind::Anon, Column::YES);
            let slot = self.writer.publish(self.generation, range, says, 1);
            self.header()
                .generation
                .store(self.generation.get(), Relaxed);
            self.busy(false);
            self.busy(true);
            self.generation = self.generation.next();
            self.writer.retire(slot.unwrap());
            // SAFETY: mapped just now.
            unsafe { libc::munmap(at as *mut _, 1 << 16) };
            self.header()
                .generation
                .store(self.generation.get(), Relaxed);
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
                b'2' => self.split(0),
                b'h' => self.split(5),
                b'd' => self.others(),
                b'm' => self.stray(true, PEERS),
                b'n' => self.stray(true, PRIMARY),
                b'M' => self.stray(false, PEERS),
                b'b' => self.busy(true),
                b'B' => self.busy(false),
                b'u' => self.header().unpublished.store(3, Relaxed),
                b'G' => drop(self.header().settings.fetch_or(SETTING_GAVE_UP, Relaxed)),
                b'A' => {
                    let slot = self.writer.segments().next().unwrap().first().unwrap();
                    slot.domain.store(5 << 32, Relaxed);
                    slot.attr.store(1, Relaxed);
                }
                b'a' => {
                    let slot = self.writer.segments().next().unwrap().first().unwrap();
                    slot.attr.store(u64::MAX, Relaxed);
                }
                // SAFETY: our own file, whose pages we don't touch any more.
                b't' => drop(unsafe { libc::ftruncate(self.file, 100) }),
                // SAFETY: four pages of our own mapping.
                b'k' => drop(unsafe { libc::munlock(self.victim.start() as *const _, 4 << 12) }),
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
