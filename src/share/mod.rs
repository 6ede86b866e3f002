//! Private memory that peers can map (REGALL_SHARE=heap and always).
//!
//! New anonymous memory above a size is a memfd's, mapped shared in the place of what the
//! kernel had mapped there; to the application it is private memory like any other. A file
//! a mapping: its memory goes when nobody maps it any more, whoever that was, so nothing has
//! to be accounted for. The file is larger than memory will ever be and can't be cut short:
//! nothing of it is SIGBUS, and what is mapped can grow.
//!
//! *Frozen* memory is mapped privately from its file: what is written goes to copies, as
//! anywhere, and nobody writes to the file again. Making it so is one call, in which not a
//! byte changes, whoever else is writing. That is how fork leaves both sides with memory of
//! their own. A descriptor is kept as long as something is shared: peers of the same user
//! find it in /proc/PID/fd.
//!
//! What it does at each call is in [`crate::track::backed`].

pub mod marks;
mod place;
pub mod table;
pub mod worth;

use crate::base::claims::{Aside, Claim};
use crate::base::{counters, settings};
use crate::config::{Environment, Intercept, Share};
use crate::limits::{self, Company};
use crate::sys::file;
use crate::sys::{self, Errno, Result, Undisturbed};
use crate::text::hex;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use regall_bridge::window::mark;
use regall_directory::addr::PageRange;
use regall_directory::settings::Setting;
use table::{File, Part, Table};

pub use place::place;
pub use worth::LEAST;

/// What /proc/PID/maps calls it.
pub use regall_bridge::window::mark::NAME;

/// Whether new memory is shared.
static ON: AtomicBool = AtomicBool::new(false);
/// Whether there is, or was, any such memory in this process or its parent.
static ANY: AtomicBool = AtomicBool::new(false);
/// Forks in progress: what is mapped meanwhile stays private.
static FORKING: AtomicU32 = AtomicU32::new(0);
/// The device that memfds are of.
static DEVICE: AtomicU64 = AtomicU64::new(0);
/// Files at the most: a share of RLIMIT_NOFILE.
static FILES: AtomicUsize = AtomicUsize::new(0);

/// Which file is behind which memory. A part of what the ledger's lock guards.
pub struct Tables {
    /// The files' parts that are mapped.
    pub now: Table,
    /// What calls in progress have taken out of that, beyond what they remember themselves.
    aside: Aside<Table>,
}

impl Tables {
    /// A state in which nothing is shared.
    pub const fn new() -> Self {
        Self {
            now: Table::new(),
            aside: Aside::new(Table::new()),
        }
    }

    /// A call sets aside what it takes out of `range`.
    fn begin_aside(&mut self, range: PageRange) -> Claim {
        let now = &self.now;
        self.aside.begin(range, |aside, old| {
            while let Some(part) = aside.take(old) {
                if now.was_last(&part) {
                    close(part.file);
                }
            }
        })
    }

    /// Takes what is set aside under `claim`, a part at a time.
    pub fn next_aside(&mut self, claim: Claim) -> Option<Part> {
        let part = self.take_aside(claim)?;
        let last = self.now.was_last(&part);
        Some(Part { last, ..part })
    }

    /// As [`Self::next_aside`]; `last` is about what is set aside alone. The claim ends with
    /// the last part.
    fn take_aside(&mut self, claim: Claim) -> Option<Part> {
        let range = self.aside.range(claim)?;
        let part = self.aside.parts.take(range);
        if part.is_none() {
            self.aside.end(claim);
        }
        part
    }
}

impl Default for Tables {
    fn default() -> Self {
        Self::new()
    }
}

/// Learns whether memory can be shared as if it were private. At start-up; `mode` is how
/// calls are intercepted.
pub fn init(mode: Intercept, env: Environment) {
    let asked = settings::config().share;
    if asked == Share::Off {
        return;
    }
    let company = limits::company(env);
    if asked == Share::Heap && company == Company::Alone {
        return log::info!(
            "the only rank on its node: REGALL_SHARE=heap leaves its memory private"
        );
    }
    worth::begin(company);
    let mut buf = [0u8; 16];
    let dumped = file::read_small(c"/proc/self/coredump_filter", &mut buf)
        .ok()
        .and_then(|text| hex(text.trim_ascii()))
        .unwrap_or(0x33);
    if dumped & 1 != 0 && dumped & 2 == 0 {
        // To the kernel, it is shared memory.
        return log::warn!("coredump_filter leaves shared memory out: REGALL_SHARE does nothing");
    }
    let strict = file::read_small(c"/proc/sys/vm/overcommit_memory", &mut buf);
    if matches!(strict, Ok(text) if text.first() == Some(&b'2')) {
        // Private memory is promised when it is mapped, a file's when it is touched.
        return log::warn!("vm.overcommit_memory is 2: REGALL_SHARE does nothing");
    }
    if mode == Intercept::Symbols {
        // A fork that is not seen would share what it must not.
        return log::warn!("REGALL_SHARE needs REGALL_INTERCEPT=patch: it does nothing");
    }
    let files = match sys::rlimit(libc::RLIMIT_NOFILE) {
        Ok((soft, _)) => soft / 8,
        Err(_) => 0,
    };
    FILES.store(files.min(table::FILES as u64) as usize, Relaxed);
    ON.store(true, Relaxed);
}

/// Whether new memory is shared.
#[inline]
pub fn on() -> bool {
    ON.load(Relaxed)
}

/// No new memory is shared from now on, and the directory says so. Whether some was until now.
pub fn stop() -> bool {
    if let Some(h) = counters::header() {
        h.settings
            .fetch_and(!Setting::SHARE.bits(u64::MAX), Relaxed);
    }
    ON.swap(false, Relaxed)
}

/// Whether some memory may be a file's behind the application's back.
#[inline]
pub fn any() -> bool {
    ANY.load(Relaxed)
}

/// A fork begins: from here on, what is mapped stays private.
pub fn fork_begins() {
    FORKING.fetch_add(1, SeqCst);
}

/// A fork is over on this side: what is mapped may be shared again.
pub fn fork_ends() {
    FORKING.fetch_sub(1, SeqCst);
}

/// In a child of fork, before it has a directory. It is no rank that peers could know of.
pub fn child_begins() {
    FORKING.store(0, Relaxed);
    if worth::is_choosy() {
        ON.store(false, Relaxed);
    }
}

/// In a child of fork: descriptors that peers of the parent use are closed, and of the table
/// is left what says of frozen memory what was asked for it. What is shared is found in the
/// kernel's list. `backed`: whether the ledger says so of an address.
pub fn child(tables: &mut Tables, backed: impl Fn(u64) -> bool) {
    tables.aside.parts.inherit(close, |_| false);
    tables.aside.forget_claims();
    tables.now.inherit(close, backed);
}

/// Whether a limit holds that a file's memory would get around.
fn limited() -> bool {
    [libc::RLIMIT_DATA, libc::RLIMIT_FSIZE]
        .iter()
        .any(|r| !matches!(sys::rlimit(*r), Ok((u64::MAX, _))))
}

/// Puts a file behind `range`, which has just been mapped with `prot` and which nobody
/// knows as yet. `None`: it stays private.
#[cold]
#[inline(never)]
pub fn back(range: PageRange, prot: u64) -> Option<File> {
    if range.len() < LEAST || FORKING.load(SeqCst) != 0 || limited() {
        return None;
    }
    if worth::is_choosy() && !worth::sharing(range.len()) {
        return None;
    }
    ANY.store(true, Relaxed);
    let file = create().ok()?;
    match place(range, prot, libc::MAP_SHARED, file.fd, 0) {
        Ok(()) => Some(file),
        Err(_) => {
            close(file);
            None
        }
    }
}

/// More of `file`, from its first byte that was never mapped on, behind `range`.
#[cold]
#[inline(never)]
pub fn back_more(range: PageRange, prot: u64, file: &File) -> bool {
    let usable = FORKING.load(SeqCst) == 0 && file.used + range.len() <= mark::AT;
    usable
        && !limited()
        && is_open(file)
        && place(range, prot, libc::MAP_SHARED, file.fd, file.used).is_ok()
}

/// How many files there may be.
pub fn most_files() -> usize {
    FILES.load(Relaxed)
}

fn create() -> Result<File> {
    // Executable by mmap as anonymous memory is, and not by execve (Linux 6.3).
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let make = |flags| file::in_memory(c"regall-heap", flags);
    let fd = make(flags | libc::MFD_NOEXEC_SEAL).or_else(|_| make(flags))?;
    let fd = fd.high()?;
    fd.truncate(mark::FILE_BYTES)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    fd.seal(seals)?;
    let stat = fd.stat()?;
    DEVICE.store(stat.dev, Relaxed);
    Ok(File::new(fd.leak(), stat.inode))
}

/// The next bytes of `file` in `from..to` that are there, as offsets.
pub fn next_data(file: &File, from: u64, to: u64) -> Result<Option<(u64, u64)>> {
    let file = file::borrow(file.fd);
    let data = match file.next_data(from) {
        Err(Errno::NXIO) => return Ok(None),
        other => other?,
    };
    let hole = file.next_hole(data)?;
    Ok((data < to).then_some((data, hole.min(to))))
}

/// Returns whether what `stat` is of is `file`.
fn is_of(file: &File, stat: &file::Stat) -> bool {
    // Files of other kinds may have the same number.
    stat.inode == file.inode && stat.dev == DEVICE.load(Relaxed)
}

/// Returns whether the descriptor still is that file's.
pub fn is_open(file: &File) -> bool {
    file.fd >= 0 && file::stat_fd(file.fd).is_ok_and(|stat| is_of(file, &stat))
}

/// Closes the descriptor, if it still is that file's.
pub fn close(file: File) {
    if is_open(&file) {
        file::close(file.fd);
    }
}

/// Nothing is mapped any more of the file that `part` was the last of.
fn file_ends(part: &Part) {
    if is_open(&part.file) {
        worth::learn(part, part.file.used);
        file::close(part.file.fd);
    }
}

/// Gives the memory of `part` back; its bytes are zeroes from now on. EBADF if its
/// descriptor is gone.
pub fn punch(part: &Part) -> Result<()> {
    if part.frozen || !is_open(&part.file) {
        return Err(Errno::BADF);
    }
    let _undisturbed = Undisturbed::new();
    // Another thread's fork may close the descriptor by now, and its number be another file's: what
    // is punched is a duplicate, whose number nobody else has.
    let (offset, len) = (part.offset, part.range.len());
    match file::borrow(part.file.fd).duplicate_high() {
        Ok(own) if is_of(&part.file, &own.stat()?) => own.punch(offset, len),
        Ok(_) => Err(Errno::BADF),
        // The program has taken all numbers.
        Err(_) => file::borrow(part.file.fd).punch(offset, len),
    }
}

/// What is in `range` now is none of the files' of the table.
#[cold]
#[inline(never)]
pub fn forget(tables: &mut Tables, range: PageRange) {
    while let Some(part) = tables.now.take(range) {
        if part.last {
            close(part.file);
        }
    }
}

/// Parts that one call takes out, in case it fails.
#[derive(Default)]
pub struct Left {
    parts: [Option<Part>; 4],
    /// Of those that there is no place for here: they are set aside.
    rest: Option<Claim>,
}

impl Left {
    /// A list without parts.
    pub const fn new() -> Self {
        Self {
            parts: [None; 4],
            rest: None,
        }
    }

    /// Takes what of `range` is a file's out of the table.
    #[cold]
    #[inline(never)]
    pub fn take(&mut self, tables: &mut Tables, range: PageRange) {
        for place in self.parts.iter_mut().filter(|p| p.is_none()) {
            match tables.now.take(range) {
                Some(part) => *place = Some(part),
                None => return,
            }
        }
        while let Some(part) = tables.now.take(range) {
            if self.rest.is_none() {
                self.rest = Some(tables.begin_aside(range));
            }
            // Without room its memory goes with the last mapping.
            let aside = &mut tables.aside.parts;
            if !aside.put(&part) && aside.was_last(&part) {
                close(part.file);
            }
        }
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(Option::is_none)
    }

    /// The one part, if there is one.
    pub fn only(&self) -> Option<Part> {
        let mut parts = self.parts.iter().flatten();
        let part = parts.next()?;
        parts.next().is_none().then_some(*part)
    }

    /// Moves the parts to another address, by as much as `from` is from `to`.
    pub fn moved(&mut self, tables: &mut Tables, from: u64, to: u64) {
        self.put_all(tables, |range| {
            let start = to + (range.start() - from);
            PageRange::from_call(start, range.len())
        });
    }

    /// The call failed.
    pub fn restore(&self, tables: &mut Tables) {
        self.put_all(tables, Some);
    }

    /// Puts each part `there`.
    fn put_all(&self, tables: &mut Tables, there: impl Fn(PageRange) -> Option<PageRange>) {
        let put = |tables: &mut Tables, part: &Part| {
            if let Some(range) = there(part.range) {
                tables.now.put(&Part { range, ..*part });
            }
        };
        for part in self.parts.iter().flatten() {
            put(tables, part);
        }
        while let Some(part) = self.rest.and_then(|rest| tables.take_aside(rest)) {
            put(tables, &part);
        }
    }

    /// The call has been made: their memory is given back. `next_aside`: as
    /// [`Tables::next_aside`].
    #[inline]
    pub fn done(&mut self, next_aside: fn(Claim) -> Option<Part>) {
        if any() {
            self.give_back(next_aside);
        }
    }

    #[cold]
    fn give_back(&mut self, next_aside: fn(Claim) -> Option<Part>) {
        for part in self.parts.iter_mut().filter_map(Option::take) {
            give_back(&part);
        }
        while let Some(part) = self.rest.and_then(next_aside) {
            give_back(&part);
        }
        self.rest = None;
    }
}

/// The memory of `part` is not needed any more.
fn give_back(part: &Part) {
    if part.last {
        file_ends(part);
    } else if punch(part).is_ok() && part.range.len() >= LEAST {
        worth::learn(part, part.range.len());
    }
}
