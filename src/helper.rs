//! The helper thread: lets peers at our registered memory where the kernel does not.
//! [`regall_bridge::serve`] is what it does.

use crate::base::process::image;
use crate::base::{counters, launched, mode, phase, settings, withheld::withheld};
use crate::boxes;
use crate::config::Intercept;
use crate::rights;
use crate::sys::credentials::{self, Credentials, Namespace};
use crate::sys::file;
use crate::sys::process::{is_filtered, own_status};
use crate::sys::{self, process, signal, socket, time, Errno, Result};
use crate::text::Text;
use crate::threads::{self, Files, Thread};
use crate::track::{self, VIEW};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use regall_bridge::kind::Kind;
use regall_bridge::rights as rule;
use regall_bridge::serve::{self, Owner};
use regall_bridge::wire::BOUNCE;

/// The helper thread. It has descriptors of its own: programs that close what they find do not end
/// it, and
/// children don't hold its connections open.
pub static THREAD: Thread = Thread::new(c"regall-helper", Files::Own, run);

/// Whether it listens (1) or will not (2): whoever starts it waits for that, so that peers
/// find it as soon as they are told of anything.
static READY: AtomicU32 = AtomicU32::new(0);
const SOON: u32 = 0;
const LISTENS: u32 = 1;
const GAVE_UP: u32 = 2;
/// How long to wait, in nanoseconds.
const PATIENCE: u32 = 50_000_000;

/// Starts it where REGALL_COPY names it. With `auto` it starts only in a rank of a job and in a
/// program that uses the C interface ([`for_interface`]), and there only where peers can't, or may
/// not be able to, get at this process otherwise. A thread changes what a program sees of itself:
/// sandboxes count their threads, and unshare(2) fails with more than one.
pub fn start_if_needed() {
    let order = settings::config().copy;
    let has_peers = launched::rank().is_some() || INTERFACE.load(Relaxed);
    if order.has(Kind::Helper) && (!order.is_auto() || has_peers && needed()) {
        start();
    }
}

/// Whether this process has named a peer, or memory for peers, through the C interface.
static INTERFACE: AtomicBool = AtomicBool::new(false);

/// Starts it where it is needed, at the first use of the part of the C interface that is for peers.
pub fn for_interface() {
    if phase::tracking() && !INTERFACE.swap(true, Relaxed) {
        start_if_needed();
    }
}

/// What [`needed`] has said last, in this process or its parent.
static NEEDED: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
const NEEDLESS: u32 = 1;
const NEEDED_HERE: u32 = 2;

/// Whether peers need it. Under a seccomp filter that is not known: the filter may forbid
/// process_vm_readv to peers like us, and may kill whoever tries. A process that was started
/// under one has a helper, untried. One that has put itself under it later knows what it is
/// about: its children do as it has done.
fn needed() -> bool {
    let needed = match is_filtered() {
        true => NEEDED.load(Relaxed) != NEEDLESS,
        false => out_of_reach(),
    };
    let known = if needed { NEEDED_HERE } else { NEEDLESS };
    NEEDED.store(known, Relaxed);
    needed
}

/// Starts it, unless REGALL_COPY leaves it out, it runs, or nothing is to be lent.
pub fn start() {
    let wanted = phase::tracking() && settings::config().copy.has(Kind::Helper);
    if !wanted || THREAD.runs() || withheld() {
        return;
    }
    READY.store(SOON, Relaxed);
    match make_window().and_then(|()| THREAD.start(entry)) {
        // Peers that find nobody there take it that there is no helper.
        Ok(()) => THREAD.await_change(&READY, SOON),
        Err(e) => {
            log::warn!("no helper thread ({e}): peers can copy only where the kernel lets them")
        }
    }
}

/// Where the helper maps the bounce buffer of the peer that it serves: [`BOUNCE`] bytes, which are
/// the shim's in the ledger whatever is mapped there. 0: there are none in this process.
static WINDOW: AtomicU64 = AtomicU64::new(0);

fn make_window() -> Result<()> {
    if WINDOW.load(Relaxed) == 0 {
        WINDOW.store(threads::new_memory(BOUNCE, 0, true)?, Relaxed);
    }
    Ok(())
}

/// How many there are: one, or none.
pub fn count() -> u64 {
    u64::from(THREAD.exists())
}

/// A child of fork: nothing is being carried out there.
pub fn forget() {
    WINDOW.store(0, Relaxed);
    INTERFACE.store(false, Relaxed);
    GATE.store(OPEN, Relaxed);
}

/// Between requests and the end: a request is carried out ([`BUSY`], [`WAITS`]), none will be
/// ([`SHUT`]).
static GATE: AtomicU32 = AtomicU32::new(OPEN);
const OPEN: u32 = 0;
const BUSY: u32 = 1;
const SHUT: u32 = 2;
/// Set while a request may be waiting for the ledger's lock.
const WAITS: u32 = 4;
/// How long the end waits for a request that is carried out, and for the thread to be gone, in
/// nanoseconds. One that waits for a page which does not come must not hold the program up.
const LAST: u64 = 1_000_000_000;
/// Between two looks at whether it is gone, in nanoseconds.
const GLANCE: u64 = 50_000;

/// The signal by which it is woken: one of libc's own, which is sent to threads alone. All are
/// blocked there, so it stays pending until the thread reads it ([`Us::wakeup`]).
const WAKE: i32 = 32;

/// Has it look what is wanted of it. This takes no descriptor of the application's.
fn wake() {
    if let tid @ 1.. = THREAD.id() {
        let _ = signal::send(tid, WAKE);
    }
}

/// Ends it for good. Nothing is served after this has returned, and nobody is connected.
#[cold]
pub fn end() {
    let mut state = GATE.fetch_or(SHUT, SeqCst) | SHUT;
    wake();
    // libc changes the other threads in a handler: this one may have been interrupted where it
    // holds the lock. A request that waits for it goes no further once it has it.
    let stuck = |state: u32| state & WAITS != 0 && track::is_locked_by_us();
    let since = time::now();
    while state & BUSY != 0 && !stuck(state) && time::now().saturating_sub(since) < LAST {
        sys::futex_wait(&GATE, state, PATIENCE);
        state = GATE.load(SeqCst);
    }
    let late = |since| time::now().saturating_sub(since) > u64::from(PATIENCE);
    let since = time::now();
    while THREAD.exists() && !stuck(GATE.load(SeqCst)) && !late(since) {
        sys::nap(GLANCE);
    }
}

/// What `take` does, which may wait for the ledger's lock, on the helper's thread. ESTALE: the
/// gate is shut, and so nothing is served any more.
fn with_lock(take: impl FnOnce()) -> Result<()> {
    let open = |before: u32| match before & SHUT {
        0 => Ok(()),
        _ => Err(Errno::STALE),
    };
    let before = GATE.fetch_or(WAITS, SeqCst);
    if open(before).is_ok() {
        take();
    }
    open(GATE.fetch_and(!WAITS, SeqCst))
}

/// As [`end`]; and the kernel does not count it among the process's threads any more.
#[cold]
pub fn leave() {
    let since = time::now();
    let tid = THREAD.id();
    end();
    // Its id is cleared a moment before it is gone.
    let counts = || signal::send(tid, 0).is_ok();
    while counts() && time::now().saturating_sub(since) < 2 * LAST {
        sys::nap(GLANCE);
    }
}

/// Whether process_vm_readv(2) from outside is bound to fail.
fn out_of_reach() -> bool {
    let (probe, mut byte) = (0u8, 0u8);
    // SAFETY: a byte of ours.
    let read = unsafe { sys::copy_checked(&raw const probe as u64, &raw mut byte, 1) };
    let forbidden = matches!(read, Err(Errno::PERM | Errno::NOSYS));
    forbidden
        || process::dumpable() != Ok(1)
        || !in_first_namespace()
        || yama() >= if settings::config().ptracer_any { 2 } else { 1 }
}

/// Whether this is the initial user namespace: the one in which all users are themselves.
fn in_first_namespace() -> bool {
    let mut buf = [0; 128];
    let Ok(map) = file::read_small(c"/proc/self/uid_map", &mut buf) else {
        // A kernel without user namespaces.
        return true;
    };
    let mut numbers = map
        .split(|b| b.is_ascii_whitespace())
        .filter(|w| !w.is_empty());
    [&b"0"[..], b"0", b"4294967295"]
        .iter()
        .all(|n| numbers.next() == Some(n))
        && numbers.next().is_none()
}

/// kernel.yama.ptrace_scope; 0 where there is none.
fn yama() -> u64 {
    let mut buf = [0; 8];
    let text = file::read_small(c"/proc/sys/kernel/yama/ptrace_scope", &mut buf);
    let digits = text.unwrap_or(b"0").split(|b| *b == b'\n').next();
    digits.and_then(crate::text::number).unwrap_or(0)
}

/// Whether that the credentials have not changed is not known until /proc is read. What changes
/// them unseen changes PR_GET_DUMPABLE from 1; where that is another value already, or libc's
/// functions alone are seen, it says nothing.
fn is_to_be_read() -> bool {
    mode::mode() == Intercept::Symbols || rights::dumpable() != Some(1)
}

extern "C" fn entry() -> ! {
    THREAD.live()
}

/// The helper's life, on its thread.
fn run() {
    let listener = listen();
    let state = match &listener {
        Ok(_) => LISTENS,
        Err(_) => GAVE_UP,
    };
    READY.store(state, Release);
    sys::futex_wake(&READY);
    if let Ok(listener) = listener {
        serve::serve(&Us::new(), &listener);
    }
}

fn listen() -> Result<file::Fd> {
    let path: Text<108> = track::lock().ok_or(Errno::BUSY)?.helper_address();
    let path = path.as_cstr().filter(|p| !p.is_empty());
    let path = path.ok_or(Errno::NOENT)?;
    // One from before an exec.
    let _ = file::unlink(path);
    socket::listen(path, serve::BACKLOG)
}

/// A descriptor that can be read when [`WAKE`] has been sent to this thread.
fn wakeup() -> Option<file::Fd> {
    file::of_signals(1 << (WAKE - 1)).ok()
}

/// The owner's side of the helper: this process.
struct Us {
    /// Capabilities that this thread may have. It uses them to look at peers alone.
    permitted: u64,
    /// Our user namespace. It stays what it is: no process with two threads can change it.
    namespace: Option<Namespace>,
    /// Whether /proc has our numbers, as it was when a peer was looked at last.
    proc_is_ours: Cell<bool>,
    /// The process has other credentials by now.
    changed: Cell<bool>,
    /// Device and inode of the bounce buffer in the window; 0: there is none.
    mapped: Cell<(u64, u64)>,
    /// By it the thread learns of [`WAKE`]. Without it, it looks from time to time.
    wakeup: Option<file::Fd>,
}

impl Us {
    fn new() -> Self {
        let us = Self {
            // (Who has none need not ask, which a seccomp filter may forbid.)
            permitted: own_status(b"CapPrm:").unwrap_or(u64::MAX),
            namespace: credentials::user_namespace(0).ok(),
            proc_is_ours: Cell::new(false),
            changed: Cell::new(false),
            mapped: Cell::new(NONE),
            wakeup: wakeup(),
        };
        us.use_capabilities(0);
        us
    }

    /// Has this thread these of the capabilities that it may have.
    fn use_capabilities(&self, these: u64) {
        if self.permitted != 0 {
            let _ = credentials::set_capabilities(these & self.permitted, self.permitted);
        }
    }

    /// The process's credentials, as /proc has them: this thread's own stay what they were.
    /// `None`: they have changed, or it can't be told whether they have.
    fn credentials(&self) -> Option<Credentials> {
        // (By that name it is this process in whatever /proc, if it is there at all.)
        let own = match Credentials::read(c"/proc/self/status") {
            Some(own) => {
                self.changed
                    .set(self.changed.get() || !rights::unchanged(&own));
                Some(own)
            }
            None => (!is_to_be_read()).then(rights::first),
        };
        own.filter(|_| !self.changed.get() && !withheld())
    }

    /// Whether the process is seen to have other credentials than it began with. A call that
    /// changes them says so itself; this is for those that no hook has seen. Most change what
    /// the kernel says of all of the process's memory, at the price of one system call.
    fn is_changed(&self) -> bool {
        self.changed.get() || is_to_be_read() && self.credentials().is_none()
    }

    /// Who we are, and whose our capabilities are.
    fn owner(&self, credentials: Credentials) -> rule::Owner {
        let confined = || {
            let whose = credentials::owner_of_namespace();
            !in_first_namespace() && whose == Ok(credentials.uid())
        };
        rule::Owner {
            credentials,
            namespace: self.namespace,
            confined: credentials.permitted != 0 && confined(),
        }
    }

    /// The user namespace of a peer. Only who has no fewer capabilities than it may look.
    fn namespace_of(&self, pid: u32) -> Option<Namespace> {
        self.use_capabilities(self.permitted);
        let found = credentials::user_namespace(pid);
        self.use_capabilities(0);
        found.ok()
    }
}

impl Us {
    /// The entry that holds `addr`, and its end; `open`: it need not be registered. ESTALE: there is none; EFAULT: it is not
    /// registered; EACCES: its protection says no.
    fn registered(&self, addr: u64, write: bool, open: bool) -> Result<(u64, u64)> {
        let found = VIEW.lookup(addr).or_else(|_| {
            // A writer was at it. Once it is done, so are we.
            with_lock(|| drop(track::lock())).map_err(drop)?;
            VIEW.lookup(addr).map_err(drop)
        });
        let stale = Errno::STALE;
        let found = found.map_err(|()| stale)?.ok_or(stale)?;
        let attr = found.attr();
        let permitted = match write {
            true => attr.prot.writable(),
            false => attr.prot.readable(),
        };
        let registered = attr.registered() || open && attr.is_open();
        match (phase::tracking(), registered, permitted) {
            (false, ..) => Err(stale),
            (_, false, _) => Err(Errno::FAULT),
            (.., false) => Err(Errno::ACCES),
            _ => Ok((found.id, found.end)),
        }
    }
}

/// No file, in [`Us::mapped`].
const NONE: (u64, u64) = (0, 0);
/// Some file.
const UNKNOWN_FILE: (u64, u64) = (u64::MAX, u64::MAX);

/// Maps a file in the window, or memory with MAP_ANONYMOUS among `flags`; the window's address.
fn map_at_window(fd: i32, flags: i32) -> Result<u64> {
    let at = WINDOW.load(Relaxed);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | flags;
    // SAFETY: the window is for this alone, and the helper is the only one to use it.
    let made = unsafe { sys::map(at, BOUNCE, prot, flags, fd, 0) }?;
    // A child that is made in between finds it among its mappings, and leaves it alone.
    // SAFETY: likewise; a child has no such thread.
    unsafe { sys::advise_any(at, BOUNCE, libc::MADV_DONTFORK) }?;
    Ok(made)
}

impl Owner for Us {
    fn image(&self) -> u64 {
        image()
    }

    fn entry(&self, addr: u64, id: u64, write: bool, open: bool) -> Result<u64> {
        match self.registered(addr, write, open) {
            Ok((found, end)) if found == id => Ok(end),
            Err(e @ (Errno::FAULT | Errno::ACCES)) => Err(e),
            _ => Err(Errno::STALE),
        }
    }

    fn admits(&self, who: &socket::Credentials) -> bool {
        let Some(own) = self.credentials() else {
            return false;
        };
        // Elsewhere its number is another process's.
        self.proc_is_ours.set(credentials::is_proc_ours());
        let (pid, seen) = (who.pid, who.pid != 0 && self.proc_is_ours.get());
        let namespace = || self.namespace_of(pid);
        let caller = rule::Caller {
            connected: (who.uid, who.gid),
            credentials: seen.then(|| Credentials::of(pid).ok()).flatten(),
            // Nobody asks where it does not matter.
            namespace: (seen && own.permitted != 0).then(namespace).flatten(),
        };
        rule::may_reach(&self.owner(own), &caller)
    }

    fn still_admits(&self, who: &socket::Credentials) -> bool {
        let own = rights::first().permitted;
        // The short way to what the rule comes to where capabilities count.
        let no_fewer = || credentials::permitted(who.pid).is_ok_and(|theirs| own & !theirs == 0);
        let together = || self.namespace.is_some() && self.namespace_of(who.pid) == self.namespace;
        let seen = who.pid != 0 && self.proc_is_ours.get();
        own == 0 || seen && no_fewer() && together() || self.admits(who)
    }

    fn enter(&self) -> bool {
        if GATE.fetch_or(BUSY, SeqCst) & SHUT == 0 && !withheld() && !self.is_changed() {
            return true;
        }
        self.leave();
        false
    }

    fn leave(&self) {
        if let Some(header) = counters::header() {
            header.answered.fetch_add(1, Relaxed);
        }
        if GATE.fetch_and(!BUSY, SeqCst) & SHUT != 0 {
            sys::futex_wake(&GATE);
        }
    }

    fn goes_on(&self) -> bool {
        GATE.load(SeqCst) & SHUT == 0 && !withheld()
    }

    fn map_bounce(&self, bounce: &file::Fd) -> Result<u64> {
        let stat = bounce.stat()?;
        let which = (stat.dev, stat.inode);
        if self.mapped.get() == which {
            return Ok(WINDOW.load(Relaxed));
        }
        // If it fails, what is mapped is not known.
        self.mapped.set(UNKNOWN_FILE);
        let at = map_at_window(bounce.raw(), 0)?;
        self.mapped.set(which);
        Ok(at)
    }

    fn unmap_bounce(&self) {
        // A file that its peer cuts short is not to stay among this process's memory.
        if self.mapped.replace(NONE) != NONE {
            let _ = map_at_window(-1, libc::MAP_ANONYMOUS);
        }
    }

    fn wakeup(&self) -> i32 {
        self.wakeup.as_ref().map_or(-1, file::Fd::raw)
    }

    fn heard(&self) {
        // struct signalfd_siginfo: ours is taken before one that was sent to the process.
        let mut signal = [0u8; 128];
        if let Some(wakeup) = &self.wakeup {
            let _ = wakeup.read(&mut signal);
        }
    }

    fn lives(&self) -> bool {
        !threads::alone()
    }

    fn of_box(&self, event: bool) -> Result<file::Fd> {
        boxes::file(event)
    }

    fn wanted(&self) -> bool {
        phase::tracking() && !self.changed.get() && !withheld()
    }
}
