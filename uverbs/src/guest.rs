//! Against a real device: these run where there is an `rxe0` (`scripts/rdma-vm`)
//! and say that they were skipped anywhere else.

use super::device::Device;
use super::{ibdev_of, wire, Channel, Driver, PdHandle};
use crate::abi;
use core::ffi::{c_char, c_void, CStr};
use regall_directory::vocab::Access;
use regall_sys::file::close;
use regall_sys::{Errno, Result};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// What only the adapter's own process may read.
const RO: Access = Access::NONE;
const RW: Access = Access::LOCAL_WRITE
    .with(Access::REMOTE_READ)
    .with(Access::REMOTE_WRITE);
/// Optional, and without a meaning yet.
const UNKNOWN: Access = Access::as_asked(1 << 29);
const NOENT: Errno = Errno::NOENT;

fn rxe0() -> Option<Device> {
    match Device::open(b"rxe0") {
        Ok(device) => Some(device),
        Err(Errno::NODEV) => {
            println!("skipped: no rxe0 here");
            None
        }
        Err(e) => panic!("rxe0 can't be opened: {e}"),
    }
}

/// A second channel to rxe0, with a context, that goes by write(2).
fn old_rxe0() -> Channel {
    // SAFETY: a path with its NUL.
    let fd = unsafe { libc::open(c"/dev/infiniband/uverbs0".as_ptr(), libc::O_RDWR) };
    assert_eq!(ibdev_of(fd, &mut [0; 64]), Ok(&b"rxe0"[..]));
    let channel = Channel::by_write(fd).unwrap();
    channel.get_context().unwrap();
    channel
}

struct Memory {
    at: u64,
    bytes: u64,
}

impl Memory {
    fn new(bytes: u64, prot: i32) -> Self {
        Self::map(bytes, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    fn map(bytes: u64, prot: i32, flags: i32, fd: i32) -> Self {
        let flags = flags | libc::MAP_NORESERVE;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), bytes as usize, prot, flags, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self {
            at: at as u64,
            bytes,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { libc::munmap(self.at as *mut c_void, self.bytes as usize) };
    }
}

const READ: i32 = libc::PROT_READ;
const WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The value of a line of /proc/meminfo or /proc/self/status.
fn kibibytes(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find(|l| l.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn pinned() -> u64 {
    kibibytes("/proc/self/status", "VmPin")
}

fn says<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => "ok".into(),
        Err(Errno(n)) => std::io::Error::from_raw_os_error(n).to_string(),
    }
}

fn life_of_a_registration(channel: Channel, name: &str) {
    let pd = channel.alloc_pd().unwrap();
    let memory = Memory::new(4 * PAGE, WRITE);
    let before = pinned();
    let mr = channel.reg_mr(pd, memory.at, 4 * PAGE, RW).unwrap();
    let over = channel.reg_mr(pd, memory.at, PAGE, RO).unwrap();
    println!(
        "{name}: pd {pd:?} {mr:?} {over:?} VmPin +{} KiB",
        pinned() - before
    );
    assert_eq!(
        pinned() - before,
        20,
        "overlapping registrations count twice"
    );
    assert_ne!(mr.lkey, over.lkey);
    assert_eq!(channel.dealloc_pd(pd), Err(Errno::BUSY));
    channel.dereg_mr(mr.handle).unwrap();
    assert_eq!(channel.dereg_mr(mr.handle), Err(NOENT));
    channel.dereg_mr(over.handle).unwrap();
    assert_eq!(pinned(), before);
    let no_pd = PdHandle(pd.0 + 77);
    for (pd, start, length, flags) in [
        (no_pd, memory.at, PAGE, RW),
        (pd, memory.at, 0, RW),
        (pd, memory.at, u64::MAX, RW),
        (pd, memory.at, PAGE, Access::REMOTE_WRITE),
        (pd, memory.at, PAGE, Access::as_asked(1 << 15)),
        (pd, memory.at, 1 << 46, RW),
        (pd, 1 << 46, PAGE, RW),
        (pd, memory.at, PAGE, RW.with(Access::ON_DEMAND)),
        (pd, 0, u64::MAX, RW.with(Access::ON_DEMAND)),
        (pd, memory.at, PAGE, RW.with(Access::RELAXED_ORDERING)),
        (pd, memory.at, PAGE, RW.with(UNKNOWN)),
    ] {
        let said = says(channel.try_reg(pd, start, length, flags));
        println!("{name}: pd {pd:?} {start:#x}+{length:#x} access {flags}: {said}");
    }
    let relaxed = RW.with(Access::RELAXED_ORDERING).with(UNKNOWN);
    assert_eq!(channel.try_reg(pd, memory.at, PAGE, relaxed), Ok(()));
    let refused = channel.try_reg(no_pd, memory.at, PAGE, RW);
    assert!(matches!(refused, Err(NOENT | Errno::INVAL)), "{refused:?}");
    assert_eq!(channel.try_reg(pd, 1 << 46, PAGE, RW), Err(Errno::FAULT));
    channel.dealloc_pd(pd).unwrap();
    println!("{name}: dealloc_pd twice: {}", says(channel.dealloc_pd(pd)));
    assert!(channel.dealloc_pd(pd).is_err());
}

#[test]
fn registers_by_ioctl_and_by_write() {
    let Some(device) = rxe0() else { return };
    assert_eq!(device.channel().driver(), Driver::RXE);
    let limits = device.channel().query_device().unwrap();
    println!("{limits:?} {:?}", device.channel());
    assert!(limits.max_mr > 1000 && limits.max_mr_size > 1 << 40);
    assert!(limits.page_size_cap & 4096 != 0);
    let old = old_rxe0();
    let plain = old.query_device().unwrap();
    assert_eq!(
        (plain.max_mr, plain.max_mr_size),
        (limits.max_mr, limits.max_mr_size)
    );
    assert!(old.get_context().is_err(), "a file has one context");
    life_of_a_registration(device.channel(), "ioctl");
    life_of_a_registration(old, "write");
    close(old.fd());
    device.close();
}

#[test]
fn what_the_kernel_takes() {
    let Some(device) = rxe0() else { return };
    let channel = device.channel();
    let pd = channel.alloc_pd().unwrap();
    let odp = channel.query_device().unwrap().odp();
    let text = (what_the_kernel_takes as fn() as usize as u64) & !(PAGE - 1);
    let data = std::fs::File::open("/proc/self/exe").unwrap();
    let exe = std::os::fd::AsRawFd::as_raw_fd(&data);
    // SAFETY: a name with its NUL.
    let memfd = unsafe { libc::memfd_create(c"guest".as_ptr(), 0) };
    // SAFETY: the size of a new file.
    let grown = unsafe { libc::ftruncate(memfd, PAGE as i64) };
    assert_eq!(grown, 0);
    let anonymous = Memory::new(PAGE, WRITE);
    let readable = Memory::new(PAGE, READ);
    let none = Memory::new(PAGE, libc::PROT_NONE);
    let file = Memory::map(PAGE, READ, libc::MAP_PRIVATE, exe);
    let file_rw = Memory::map(PAGE, WRITE, libc::MAP_PRIVATE, exe);
    let shared = Memory::map(PAGE, WRITE, libc::MAP_SHARED, memfd);
    let shared_r = Memory::map(PAGE, READ, libc::MAP_SHARED, memfd);
    let beyond = Memory::map(2 * PAGE, WRITE, libc::MAP_SHARED, memfd);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = |name: &str| {
        let line = maps.lines().find(|l| l.ends_with(name)).unwrap();
        u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()
    };
    for (name, at) in [
        ("rw-p anonymous", anonymous.at),
        ("r--p anonymous", readable.at),
        ("---p anonymous", none.at),
        ("r-xp text", text),
        ("r--p file", file.at),
        ("rw-p file", file_rw.at),
        ("rw-s memfd", shared.at),
        ("r--s memfd", shared_r.at),
        ("beyond the end", beyond.at + PAGE),
        ("vdso", line("[vdso]")),
        ("vvar", line("[vvar]")),
    ] {
        let with = |flags| says(channel.try_reg(pd, at, PAGE, flags));
        let (ro, rw) = (with(RO), with(RW));
        print!("{name:16} ro: {ro:16} rw: {rw:16}");
        if odp {
            let (ro, rw) = (with(Access::ON_DEMAND), with(RW.with(Access::ON_DEMAND)));
            print!(" odp ro: {ro:16} odp rw: {rw:16}");
        }
        println!();
    }
    assert_eq!(channel.try_reg(pd, anonymous.at, PAGE, RW), Ok(()));
    assert_eq!(channel.try_reg(pd, anonymous.at, PAGE, RO), Ok(()));
    assert_eq!(channel.try_reg(pd, text, PAGE, RO), Ok(()));
    assert_eq!(channel.try_reg(pd, text, PAGE, RW), Err(Errno::FAULT));
    assert_eq!(channel.try_reg(pd, none.at, PAGE, RW), Err(Errno::FAULT));
    let wanted = if odp { Ok(()) } else { Err(Errno::INVAL) };
    let flags = RW.with(Access::ON_DEMAND);
    assert_eq!(channel.try_reg(pd, anonymous.at, PAGE, flags), wanted);
    device.close();
}

/// The line of `rdma -d res show mr` about `length` bytes, if any. By its pid it
/// can't be found: that is the thread's that allocated the PD.
fn listed(length: u64) -> Option<String> {
    let mut command = Command::new("rdma");
    let out = command.args(["-d", "res", "show", "mr"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let wanted = format!("mrlen {length} ");
    let mut lines = text.lines().filter(|l| l.contains(&wanted));
    lines.next().map(String::from)
}

#[test]
fn rdma_lists_what_is_registered() {
    let Some(device) = rxe0() else { return };
    let channel = device.channel();
    let pd = channel.alloc_pd().unwrap();
    // A length that no other test has.
    let length = 13 * PAGE;
    let memory = Memory::new(length, WRITE);
    let mr = channel.reg_mr(pd, memory.at, length, RW).unwrap();
    let shown = listed(length).unwrap();
    println!("process {}: {shown}", std::process::id());
    assert!(shown.contains(&format!("rkey {:#x}", mr.rkey)), "{shown}");
    channel.dereg_mr(mr.handle).unwrap();
    assert_eq!(listed(length), None);
    let _left = channel.reg_mr(pd, memory.at, length, RW).unwrap();
    assert!(listed(length).is_some());
    let before = pinned();
    device.close();
    println!("after close: VmPin {before} -> {} KiB", pinned());
    assert_eq!(listed(length), None, "closing gives everything back");
}

#[test]
fn a_gibibyte() {
    let Some(device) = rxe0() else { return };
    let free = kibibytes("/proc/meminfo", "MemAvailable");
    if free < 3 << 19 {
        println!("skipped: {free} KiB are not enough memory");
        return;
    }
    let channel = device.channel();
    let pd = channel.alloc_pd().unwrap();
    let memory = Memory::new(1 << 30, WRITE);
    let start = Instant::now();
    let mr = channel.reg_mr(pd, memory.at, 1 << 30, RW);
    let took = start.elapsed();
    println!("1 GiB untouched: {} in {took:?}", says(mr));
    let mr = mr.unwrap();
    assert!(pinned() >= 1 << 20);
    let start = Instant::now();
    channel.dereg_mr(mr.handle).unwrap();
    println!("dereg 1 GiB: {:?}", start.elapsed());
    let start = Instant::now();
    let said = says(channel.try_reg(pd, memory.at, 1 << 30, RW));
    println!("1 GiB touched, both: {said} in {:?}", start.elapsed());
    device.close();
}

/// Calls `f` in this test binary again, as nobody, with `bytes` of RLIMIT_MEMLOCK.
fn as_nobody(test: &str, bytes: u64) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let module = module_path!()
        .split_once("::")
        .map_or("", |(_, module)| module);
    let filter = format!("{module}::{test}");
    command.args(["--exact", &filter, "--nocapture"]);
    command.env("GUEST_LIMIT", bytes.to_string());
    command.uid(65534).gid(65534);
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: one system call.
    unsafe {
        command.pre_exec(move || {
            assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
            Ok(())
        })
    };
    let out = command.output().unwrap();
    assert!(out.status.success(), "{out:?}");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(said.contains("1 passed"), "{filter}: {said}");
    said
}

#[test]
fn the_limit_of_locked_memory() {
    if let Ok(limit) = std::env::var("GUEST_LIMIT") {
        let device = rxe0().unwrap();
        let channel = device.channel();
        let pd = channel.alloc_pd().unwrap();
        let memory = Memory::new(64 * PAGE, WRITE);
        let first = channel.try_reg(pd, memory.at, 16 * PAGE, RW);
        let second = channel.try_reg(pd, memory.at, 17 * PAGE, RW);
        println!("limit {limit}: {first:?} {second:?}");
        return;
    }
    let Some(device) = rxe0() else { return };
    device.close();
    let some = as_nobody("the_limit_of_locked_memory", 16 * PAGE);
    let none = as_nobody("the_limit_of_locked_memory", 0);
    assert!(some.contains("limit 65536: Ok(()) Err(errno 12)"), "{some}");
    assert!(
        none.contains("limit 0: Err(errno 1) Err(errno 1)"),
        "{none}"
    );
    println!("{some}{none}");
}

#[test]
fn a_child_shares_its_parents_channel() {
    let Some(device) = rxe0() else { return };
    let channel = device.channel();
    let pd = channel.alloc_pd().unwrap();
    let memory = Memory::new(PAGE, WRITE);
    let mr = channel.reg_mr(pd, memory.at, PAGE, RW).unwrap();
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = match channel.dereg_mr(mr.handle) {
            Ok(()) => 0,
            Err(Errno(n)) => n,
        };
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: our child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    let child = libc::WEXITSTATUS(status);
    let parent = channel.dereg_mr(mr.handle);
    println!(
        "dereg in the child: {child}, then in the parent: {}",
        says(parent)
    );
    assert!((child == 0) != parent.is_ok(), "one of them destroyed it");
    device.close();
}

/// The entry points of libibverbs that a program calls.
struct Library {
    get_device_list: extern "C" fn(*mut i32) -> *mut *mut c_void,
    get_device_name: extern "C" fn(*mut c_void) -> *const c_char,
    open_device: extern "C" fn(*mut c_void) -> *mut c_void,
    close_device: extern "C" fn(*mut c_void) -> i32,
    alloc_pd: extern "C" fn(*mut c_void) -> *mut c_void,
    dealloc_pd: extern "C" fn(*mut c_void) -> i32,
    reg_mr: extern "C" fn(*mut c_void, *mut c_void, usize, u64, u32) -> *mut c_void,
    dereg_mr: extern "C" fn(*mut c_void) -> i32,
}

/// # Safety
/// `found` is a function of the type `F`.
unsafe fn entry<F: Copy>(found: *mut c_void) -> F {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    // SAFETY: by the contract above.
    unsafe { core::mem::transmute_copy(&found) }
}

fn library() -> Library {
    // SAFETY: constants, and the types are those of verbs.h.
    unsafe {
        let lib = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW);
        assert!(!lib.is_null());
        let get = |name: &CStr| {
            let f = libc::dlsym(lib, name.as_ptr());
            assert!(!f.is_null(), "{name:?}");
            f
        };
        Library {
            get_device_list: entry(get(c"ibv_get_device_list")),
            get_device_name: entry(get(c"ibv_get_device_name")),
            open_device: entry(get(c"ibv_open_device")),
            close_device: entry(get(c"ibv_close_device")),
            alloc_pd: entry(get(c"ibv_alloc_pd")),
            dealloc_pd: entry(get(c"ibv_dealloc_pd")),
            reg_mr: entry(get(c"ibv_reg_mr_iova2")),
            dereg_mr: entry(get(c"ibv_dereg_mr")),
        }
    }
}

impl Library {
    fn open_rxe0(&self) -> *mut c_void {
        let mut count = 0;
        let list = (self.get_device_list)(&mut count);
        // SAFETY: a list of `count` devices, and their names.
        let found = unsafe { core::slice::from_raw_parts(list, count as usize) }
            .iter()
            .find(|d| unsafe { CStr::from_ptr((self.get_device_name)(**d)) } == c"rxe0");
        (self.open_device)(*found.unwrap())
    }
}

#[test]
fn in_the_applications_context() {
    let Some(own) = rxe0() else { return };
    own.close();
    let lib = library();
    let context = lib.open_rxe0();
    let pd = (lib.alloc_pd)(context);
    // SAFETY: libibverbs just made them.
    let (fd, handle) = unsafe { (abi::fd_of(context).unwrap(), abi::handle_of(pd).unwrap()) };
    // SAFETY: as above.
    let whose = unsafe { abi::context_of(pd) };
    assert_eq!(whose, context.cast_const());
    let channel = Channel::adopt(fd).unwrap();
    println!("{channel:?} pd {handle:?}");
    assert_eq!(channel.driver(), Driver::RXE);
    let memory = Memory::new(2 * PAGE, WRITE);
    let mr = channel.reg_mr(handle, memory.at, PAGE, RW).unwrap();

    let flags = RW.with(Access::RELAXED_ORDERING);
    let at = memory.at as *mut c_void;
    let theirs = (lib.reg_mr)(pd, at, 2 * PAGE as usize, memory.at, flags.bits());
    // SAFETY: a `struct ibv_mr *`, which rxe's provider has in a `struct verbs_mr`.
    let seen = unsafe { *theirs.cast::<abi::VerbsMr>() };
    println!("{mr:?} beside {seen:?}");
    assert_eq!((seen.mr.addr, seen.mr.length), (at, 2 * PAGE as usize));
    assert_eq!((seen.mr.pd.cast(), seen.mr.context.cast()), (pd, context));
    assert_eq!((seen.kind, seen.access as u32), (0, flags.bits()));
    assert_ne!((seen.mr.handle, seen.mr.lkey), (mr.handle, mr.lkey));
    assert_eq!((lib.dereg_mr)(theirs), 0);

    assert_eq!((lib.dealloc_pd)(pd), libc::EBUSY);
    channel.dereg_mr(mr.handle).unwrap();
    assert_eq!((lib.dealloc_pd)(pd), 0);
    assert_eq!((lib.close_device)(context), 0);
    // Its number is free now, or another file's.
    assert_eq!(
        channel.reg_mr(handle, memory.at, PAGE, RW),
        Err(Errno::BADF)
    );
}

/// The median of `rounds` calls of `f`, which says how long it took.
fn median(rounds: usize, mut f: impl FnMut() -> (Duration, Duration)) -> (Duration, Duration) {
    let mut first = Vec::new();
    let mut second = Vec::new();
    for _ in 0..rounds {
        let (a, b) = f();
        first.push(a);
        second.push(b);
    }
    first.sort();
    second.sort();
    (first[rounds / 2], second[rounds / 2])
}

fn timed<R>(f: impl FnOnce() -> R) -> (Duration, R) {
    let start = Instant::now();
    let r = f();
    (start.elapsed(), r)
}

#[test]
fn how_long_it_takes() {
    let Some(device) = rxe0() else { return };
    let lib = library();
    let context = lib.open_rxe0();
    let pd = (lib.alloc_pd)(context);
    // SAFETY: libibverbs just made it.
    let (fd, handle) = unsafe { (abi::fd_of(context).unwrap(), abi::handle_of(pd).unwrap()) };
    let (adopt, channel) = timed(|| Channel::adopt(fd).unwrap());
    println!("adopt: {adopt:?}");
    let old = old_rxe0();
    let old_pd = old.alloc_pd().unwrap();
    for bytes in [PAGE, 64 * PAGE, 256 * PAGE] {
        let memory = Memory::new(bytes, WRITE);
        let pair = |channel: Channel, pd: PdHandle, at: u64, flags: Access| {
            let (reg, mr) = timed(|| channel.reg_mr(pd, at, bytes, flags).unwrap());
            let (dereg, ()) = timed(|| channel.dereg_mr(mr.handle).unwrap());
            (reg, dereg)
        };
        println!(
            "{bytes} B ioctl {:?}",
            median(301, || pair(channel, handle, memory.at, RW))
        );
        println!(
            "{bytes} B write {:?}",
            median(301, || pair(old, old_pd, memory.at, RW))
        );
        let theirs = median(301, || {
            let at = memory.at as *mut c_void;
            let (reg, mr) = timed(|| (lib.reg_mr)(pd, at, bytes as usize, memory.at, RW.bits()));
            (reg, timed(|| (lib.dereg_mr)(mr)).0)
        });
        println!("{bytes} B libibverbs {theirs:?}");
        let fresh = median(31, || {
            let fresh = Memory::new(bytes, WRITE);
            pair(channel, handle, fresh.at, RW)
        });
        println!("{bytes} B untouched {fresh:?}");
        if channel.query_device().unwrap().odp() {
            let odp = median(101, || {
                pair(channel, handle, memory.at, RW.with(Access::ON_DEMAND))
            });
            println!("{bytes} B odp {odp:?}");
        }
    }
    let (refused, _) = median(101, || {
        let (time, said) = timed(|| channel.reg_mr(handle, 1 << 46, PAGE, RW));
        assert_eq!(said, Err(Errno::FAULT));
        (time, time)
    });
    println!("refused: {refused:?}");
    close(old.fd());
    device.close();
}

#[test]
fn wrong_drivers_are_told_apart() {
    let Some(device) = rxe0() else { return };
    let fd = device.channel().fd();
    let answers: Vec<Errno> = (0..20).map(|n| wire::greet(fd, n)).collect();
    println!("{answers:?}");
    for (number, answer) in answers.into_iter().enumerate() {
        let right = number as u32 == Driver::RXE.0;
        assert_eq!(answer, if right { wire::NOSPC } else { Errno::INVAL });
    }
    device.close();
}
