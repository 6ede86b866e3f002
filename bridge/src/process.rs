//! A process whose memory can be got at: who it is, and what its directory says.

use crate::find::{self, Found};
use crate::host::Host;
use crate::lock::{self, Lock};
use crate::snapshot::{self, Snapshot};
use crate::view::{Stamp, View};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::*};
use regall_directory::layout::{Generation, Header, SETTING_GAVE_UP};
use regall_sys::arch::ticks;
use regall_sys::file::{self, Fd};
use regall_sys::process::Identity;
use regall_sys::text::Text;
use regall_sys::{Errno, Result};

/// [`Process::seen`] of what has to be looked at before anything else is done.
const GONE: u64 = 0;

/// A process, and what is known of its memory.
pub struct Process {
    host: &'static dyn Host,
    found: Found,
    /// The process that has opened it: this one, or its parent.
    opener: u32,
    /// /proc/PID/mem: it stays with the memory that it was opened for, whoever is given
    /// the pid. -1 where that is not allowed.
    memory: AtomicI32,
    /// The name of that file.
    memory_path: Text<32>,
    /// Device and inode of that file: the application may have closed the descriptor, and opened another
    /// file by that number. As long as it is open, the file of that name on that device has another
    /// inode if the pid is another process's.
    memory_file: (u64, u64),
    /// When it was last seen to be who it is, in ticks; [`GONE`]: it was not.
    seen: AtomicU64,
    /// Of its directory.
    header: NonNull<Header>,
    known: Lock<Known>,
}

/// What is known of it.
struct Known {
    view: View,
    snapshot: Snapshot,
}

// SAFETY: what is not atomic is behind a lock; the pointers in it are to memory of the
// peer's alone.
unsafe impl Send for Known {}
// SAFETY: likewise; the header is atomics.
unsafe impl Sync for Process {}

impl Process {
    /// Opens `pid`. With `start` not 0 it must have started then (clock ticks since boot,
    /// field 22 of /proc/PID/stat).
    ///
    /// ESRCH: no such process; ENOENT: it runs without the shim; EXDEV: it is in another pid
    /// namespace; EACCES, EPERM: it belongs to somebody else; ENOEXEC: its directory is not
    /// of this version, or corrupt; EMFILE, ENFILE: no descriptor to look at it with; ENOMEM and
    /// other errors of open(2) and mmap(2).
    pub fn open(host: &'static dyn Host, pid: u32, start: u64) -> Result<Self> {
        if pid == 0 {
            return Err(Errno::INVAL);
        }
        lock::in_some_process();
        let mut found = find::process(pid)?;
        if start != 0 && found.identity.start != start {
            return Err(Errno::SRCH);
        }
        let mut view = View::open(host, &found)?;
        let mut maps_it = executes_the_same(pid, &view);
        if let (Ok(false), Some(other)) = (maps_it, find::another(&found)) {
            view.close(host);
            found = other;
            view = View::open(host, &found)?;
            maps_it = executes_the_same(pid, &view);
        }
        let header = view.header().map(NonNull::from).ok_or(Errno::NOENT)?;
        let memory_path = memory_path(pid);
        let memory = open_memory(&memory_path).unwrap_or(-1);
        // The pid may have gone to another process since it was looked up.
        let there = find::started(pid).map(|start| start == found.identity.start);
        let process = Self {
            host,
            found,
            opener: regall_sys::getpid(),
            memory: AtomicI32::new(memory),
            memory_path,
            memory_file: identity(memory),
            seen: AtomicU64::new(GONE),
            header,
            known: Lock::new(Known {
                view,
                snapshot: Snapshot::new(),
            }),
        };
        let why_not = match (there, maps_it) {
            (Ok(true), Ok(true)) => return Ok(process),
            // What is there is of a program that it executed before.
            (Ok(true), Ok(false)) => Errno::NOENT,
            (Ok(true), Err(e)) | (Err(e), _) => e,
            (Ok(false), _) => Errno::SRCH,
        };
        process.release();
        Err(why_not)
    }

    /// Whether its descriptors are ours to close: where there is one table of them, the parent's
    /// are not.
    pub fn is_ours(&self) -> bool {
        self.opener == regall_sys::getpid() || !file::are_inherited_shared()
    }

    /// Gives back what was opened and mapped. Nobody uses it any more.
    pub fn release(&self) {
        let memory = self.memory.swap(-1, Relaxed);
        if self.is_ours() && identity(memory) == self.memory_file {
            file::close(memory);
        }
        let mut known = self.known.lock();
        known.snapshot.release(self.host);
        known.view.close(self.host);
    }

    /// Its pid, as we see it.
    pub fn pid(&self) -> u32 {
        self.found.pid
    }

    /// Which process it is: pid, start time and namespace.
    pub fn identity(&self) -> &Identity {
        &self.found.identity
    }

    /// Whose its files are.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// [`regall_directory::layout::Header::image`] of its directory.
    pub fn image(&self) -> u64 {
        self.header().image.load(Relaxed)
    }

    /// Its directory's header.
    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: mapped until the peer is closed.
        unsafe { self.header.as_ref() }
    }

    /// Memory and accounts.
    pub fn host(&self) -> &'static dyn Host {
        self.host
    }

    /// The number of the XPMEM segment that it has published.
    pub fn offers_xpmem(&self) -> Option<u64> {
        let segment = self.header().xpmem.load(Acquire);
        (segment != 0).then_some(segment)
    }

    /// Where it has its box, as it says.
    pub fn box_address(&self) -> Option<u64> {
        let at = self.header().boxes.load(Acquire);
        (at != 0).then_some(at)
    }

    /// Its memory as a file, if that can be had.
    #[inline]
    pub fn memory(&self) -> Option<i32> {
        let fd = self.memory.load(Relaxed);
        (fd >= 0).then_some(fd)
    }

    /// Looks `addr` up: the end of the entry that holds it, and its stamp. EFAULT: it is
    /// not registered; EACCES: its protection says no; ESRCH, ESTALE: as [`Process::check`].
    #[inline]
    pub fn look(&self, addr: u64, write: bool) -> Result<(u64, Stamp)> {
        let found = self.known_at(addr).and_then(|(entry, stamp)| {
            entry.permits(write)?;
            Ok((entry.end, stamp))
        });
        found.map_err(|e| self.or_gone(e))
    }

    /// Why something is not to be had, where `e` may be because the process is gone.
    #[cold]
    #[inline(never)]
    pub fn or_gone(&self, e: Errno) -> Errno {
        match self.check(ticks()) {
            Err(gone @ (Errno::SRCH | Errno::STALE)) => gone,
            _ => e,
        }
    }

    /// The entry that holds `addr`, as it is now. EFAULT: there is none.
    #[inline]
    pub fn known_at(&self, addr: u64) -> Result<(snapshot::Known, Stamp)> {
        let mut known = self.known.lock();
        let abandoned = known.abandoned();
        let Known { view, snapshot } = &mut *known;
        if abandoned {
            snapshot.forget();
        }
        snapshot.at(self.host, view, addr)
    }

    /// As [`Process::look`], with the entry's number in the owner's ledger; `open`: it need not
    /// be registered. ESTALE: it is changing at this moment.
    pub fn entry(&self, addr: u64, write: bool, open: bool) -> Result<(u64, u64)> {
        let (entry, stamp) = self.known_at(addr)?;
        if !(open && entry.is_open(write)) {
            entry.permits(write)?;
        }
        // SAFETY: the view is mapped until the peer is closed.
        let id = unsafe { stamp.id() };
        id.map(|id| (entry.end, id)).ok_or(Errno::STALE)
    }

    /// Whether the entry in `slot` still is the one of `generation`.
    pub fn publishes(&self, slot: u32, generation: Generation) -> bool {
        let known = self.known.lock();
        let slot = known.view.slot(slot as usize);
        // SAFETY: the view is here.
        slot.is_some_and(|slot| unsafe { Stamp::of(slot, generation).holds() })
    }

    /// Whether it tracks its memory no longer: then its directory is right no longer.
    #[inline]
    pub fn gave_up(&self) -> bool {
        self.header().settings.load(Acquire) & SETTING_GAVE_UP != 0
    }

    /// Whether it still is the process, and the image of it, that was opened, at this moment.
    /// ESRCH: it is gone; ESTALE: it executes another program; EMFILE, ENFILE, ENOMEM: it can't
    /// be looked at.
    #[inline(never)]
    pub fn check(&self, now: u64) -> Result<()> {
        if !self.has_memory() {
            return self.check_otherwise(now);
        }
        match self.has_pid() {
            Some(true) => {
                self.seen.store(now, Relaxed);
                Ok(())
            }
            Some(false) => self.is_gone(),
            None => self.check_otherwise(now),
        }
    }

    /// As [`Process::check`], where the short way does not say that all is well.
    #[cold]
    #[inline(never)]
    fn check_otherwise(&self, now: u64) -> Result<()> {
        let ours = |fd: &i32| identity(*fd) == self.memory_file;
        let memory = self.memory().filter(ours);
        if memory.is_none() {
            self.memory.store(-1, Relaxed);
        }
        let started = match find::started(self.found.pid) {
            Err(e) if find::is_shortage(e) => return Err(e),
            found => found == Ok(self.found.identity.start),
        };
        // Its memory can outlive it, in a process that shares it, and it its memory, when it
        // executes another program.
        match started && memory.is_none_or(has_memory) {
            true => {
                self.seen.store(now, Relaxed);
                Ok(())
            }
            false => self.is_gone(),
        }
    }

    #[cold]
    fn is_gone(&self) -> Result<()> {
        self.seen.store(GONE, Relaxed);
        Err(self.gone())
    }

    /// Whether the pid is the process's still, by one system call; while its memory is open. `None`:
    /// that can't be seen, because what is at /proc is another file system by now, for example.
    fn has_pid(&self) -> Option<bool> {
        let found = file::stat_path(self.memory_path.as_cstr()?, false).ok()?;
        let (device, inode) = self.memory_file;
        (found.dev == device).then_some(found.inode == inode)
    }

    /// When it was last seen to be who it is, in ticks; 0: it was not, or is gone.
    #[inline]
    pub fn seen(&self) -> u64 {
        self.seen.load(Relaxed)
    }

    /// Whether the memory that was opened is seen to be there at this moment, by one system
    /// call. If not, that may also be because it can't be looked at so: [`Process::check`].
    #[inline]
    pub fn has_memory(&self) -> bool {
        // Nothing is mapped at address 0, which is EIO; what is gone has an end there, and a
        // descriptor that is another file's by now says anything else.
        self.memory()
            .is_some_and(|fd| file::borrow(fd).read_at(&mut [0], 0) == Err(Errno::IO))
    }

    /// Requests that its helper has answered.
    pub fn answered(&self) -> u64 {
        self.header().answered.load(Relaxed)
    }

    /// What is to be said when its memory is not there any more.
    pub fn gone(&self) -> Errno {
        match find::stat(self.found.pid) {
            Ok(stat) if stat.start == self.found.identity.start && !stat.exiting => Errno::STALE,
            Err(e) if find::is_shortage(e) => e,
            _ => Errno::SRCH,
        }
    }
}

fn memory_path(pid: u32) -> Text<32> {
    Text::of(format_args!("/proc/{pid}/mem"))
}

fn open_memory(path: &Text<32>) -> Result<i32> {
    let fd = Fd::open(path.as_cstr().ok_or(Errno::SRCH)?, libc::O_RDONLY, 0)?;
    file::duplicate_high(fd.raw())
}

/// Device and inode of an open descriptor, or zeroes.
fn identity(fd: i32) -> (u64, u64) {
    file::stat_fd(fd).map_or((0, 0), |s| (s.dev, s.inode))
}

/// Whether the memory behind /proc/PID/mem is still there: reading ends at once if not.
/// Address 0 is mapped nowhere, so else it is an error.
fn has_memory(fd: i32) -> bool {
    file::borrow(fd).read_at(&mut [0], 0) != Ok(0)
}

/// Whether the directory is mapped by `pid`: if not, it is what an earlier image of the
/// process left. One whose maps are not for us is taken at its word.
fn executes_the_same(pid: u32, view: &View) -> Result<bool> {
    let path: Text<32> = Text::of(format_args!("/proc/{pid}/maps"));
    let Some(path) = path.as_cstr() else {
        return Ok(false);
    };
    match crate::maps::any(path, |line| {
        line.inode == view.file().inode
            && line.dev_major == view.file().dev_major()
            && line.dev_minor == view.file().dev_minor()
    }) {
        Err(e) if find::is_shortage(e) => Err(e),
        Err(e) => Ok(e == Errno::ACCES || e == Errno::PERM),
        found => found,
    }
}
