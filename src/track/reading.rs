//! Reading the kernel's own list into the ledger.

use super::lock::Guard;
use super::{flight, lock, State};
use crate::base::maps::in_range;
use crate::base::{counters, settings, unseen};
use crate::ledger::Origin;
use crate::mounts::{self, Mounted};
use crate::policy;
use crate::registrar::pin;
use crate::share;
use crate::sys::{self, file, file::Fd, file::Stat, Errno};
use crate::text::Text;
use core::sync::atomic::{
    AtomicBool, AtomicU64, AtomicU8,
    Ordering::{Relaxed, SeqCst},
};
use regall_directory::addr::{round_up, PageRange, PAGE};
use regall_directory::layout::Counter;
use regall_directory::maps::{self, Line, LineError, Lines};
use regall_directory::vocab::{Attr, Column, Flags, Kind, Reason};

/// How often the kernel's list has been read.
static READS: AtomicU64 = AtomicU64::new(0);

/// How often the kernel's list has been read. What a call has told the ledger before the kernel
/// does it is undone by who reads the list in between: it says so again if this has changed.
pub fn count() -> u64 {
    READS.load(SeqCst)
}

/// A page of the shim's own, to ask the kernel about.
static OWN: AtomicU8 = AtomicU8::new(0);

/// What the kernel shows of `range` becomes what the ledger says. `extra` goes
/// with everything that is new to it.
///
/// A mapping that the ledger does not know and that reaches further is taken in
/// whole (another thread's, perhaps, that is not yet entered: pinned only in
/// part it would be two mappings to the kernel, for good). Returns how far that was.
#[cold]
#[inline(never)]
pub fn read(guard: &mut Guard, range: PageRange, extra: Flags) -> PageRange {
    let mut reach = range;
    // What was read beyond the range may have been on its way out, by a call that was
    // over before it could be told: seen again, it is there, or the call was told.
    for _ in 0..PASSES {
        let before = reach;
        reach = read_once(guard, before, extra);
        if reach == before {
            break;
        }
    }
    reach
}

/// Passes of [`read`] at the most.
const PASSES: usize = 3;

/// Whether it could not be read when it was last wanted.
static UNREAD: AtomicBool = AtomicBool::new(false);

fn read_once(guard: &mut Guard, range: PageRange, extra: Flags) -> PageRange {
    counters::count(Counter::Resyncs);
    // Calls in progress there may be seen half-way: they look again when they are done.
    flight::disturb(range);
    READS.fetch_add(1, SeqCst);
    let (state, buffer) = guard.with_room();
    let mut from = range.start();
    let mut reach = range;
    let read = in_range(range, buffer, |line| {
        let Some(part) = line.range.intersection(range) else {
            return true;
        };
        if let Some(hole) = PageRange::new(from, part.start()) {
            state.forget(hole);
        }
        from = part.end();
        if state.agree(line.range, line, extra) {
            let start = reach.start().min(line.range.start());
            reach = PageRange::new(start, reach.end().max(line.range.end())).unwrap_or(reach);
            flight::disturb(line.range);
        }
        true
    });
    if let Err(errno) = read {
        // Once, until it can be read again: a filter may forbid it for good. What was not read is
        // left as the ledger has it.
        if !UNREAD.swap(true, Relaxed) {
            log::warn!("/proc/self/maps can't be read ({errno}): coverage of {range:?} from {from:#x} on is not checked");
        }
        return reach;
    }
    UNREAD.store(false, Relaxed);
    if let Some(hole) = PageRange::new(from, range.end()) {
        state.forget(hole);
    }
    reach
}

impl State {
    fn forget(&mut self, hole: PageRange) {
        // Not what the shim has mapped since the list was made.
        let mut from = hole.start();
        while let Some(entry) = self.ledger.next_from(from) {
            let Some(part) = entry.range.intersection(hole) else {
                return;
            };
            from = part.end();
            if entry.attr.kind != Kind::Shim {
                self.ready();
                self.remove(part, |_, _| ());
            }
            if from >= hole.end() {
                return;
            }
        }
    }

    /// The kernel says `line` of `part`. Whether that was news.
    fn agree(&mut self, part: PageRange, line: &Line, extra: Flags) -> bool {
        // Parts that the ledger knows keep what the kernel does not show; parts
        // that it does not know are described from the line.
        let mut at = part.start();
        let mut described = None;
        while at < part.end() {
            self.ready();
            let rest = PageRange::new(at, part.end());
            let known = self
                .ledger
                .next_from(at)
                .filter(|e| e.range.start() < part.end());
            let (piece, attr) = match (known, rest) {
                (_, None) => break,
                (Some(e), Some(rest)) if e.range.start() <= at => {
                    (rest.before(e.range.end()), Some(e.attr))
                }
                (Some(e), Some(rest)) => (rest.before(e.range.start()), None),
                (None, Some(rest)) => (Some(rest), None),
            };
            let Some(piece) = piece else {
                break;
            };
            at = piece.end();
            match attr {
                Some(attr) => self.correct(piece, attr, line),
                None => {
                    let new = *described.get_or_insert_with(|| describe(line, extra));
                    self.enter_described(piece, line, new);
                }
            }
        }
        described.is_some()
    }

    fn correct(&mut self, piece: PageRange, attr: Attr, line: &Line) {
        let known = plausible(attr.kind, line) && attr.prot.shared() == line.prot.shared();
        if known && attr.prot == line.prot {
            return;
        }
        if !known {
            // Another mapping than the one that the ledger knows.
            let new = describe(line, Flags::EMPTY);
            return self.enter_described(piece, line, new);
        }
        let mut new = Attr {
            prot: line.prot,
            ..attr
        };
        unseen::memory(new);
        if attr.pin.reason == Reason::NoAccess && !new.prot.is_none() {
            new.pin = Column::no(Reason::Off);
        }
        let new = policy::described(new, pin::holding());
        self.update(piece, |_, _| new);
    }

    fn enter_described(&mut self, piece: PageRange, line: &Line, new: Described) {
        let end = new.file_end.unwrap_or(u64::MAX);
        let (at, device) = (line.range.start(), (line.dev_major, line.dev_minor));
        let of_file = new.attr.kind == Kind::File && line.inode != 0;
        let origin = of_file.then(|| Origin::of_file(device, line.inode, line.offset, at));
        if let Some(head) = piece.before(end.max(line.range.start())) {
            self.insert_part(head, new.attr, origin);
        }
        if let Some(tail) = piece.after(end) {
            let flags = new.attr.flags.with(Flags::TAIL);
            let attr = Attr { flags, ..new.attr };
            self.insert_part(tail, policy::described(attr, pin::holding()), origin);
        }
    }
}

/// Whether a mapping of `kind` can look like `line`.
fn plausible(kind: Kind, line: &Line) -> bool {
    match kind {
        Kind::Anon | Kind::ThreadStack | Kind::ShadowStack => {
            line.inode == 0 && !line.name.starts_with(b"[heap]") || line.prot.shared()
        }
        Kind::Heap => line.inode == 0,
        Kind::Stack | Kind::Kernel => line.inode == 0,
        Kind::File | Kind::Shm | Kind::Huge | Kind::Device | Kind::Managed | Kind::Special => {
            line.inode != 0
        }
        Kind::Shim => true,
    }
}

/// A mapping as the kernel's list has it.
#[derive(Clone, Copy)]
struct Described {
    attr: Attr,
    /// Where the file ends, if that is within the mapping.
    file_end: Option<u64>,
}

#[cold]
#[inline(never)]
fn describe(line: &Line, extra: Flags) -> Described {
    let config = settings::config();
    let mut flags = extra;
    let mut file_end = None;
    let kind = match line.name {
        b"[stack]" => {
            flags = flags.with(Flags::GROWSDOWN).with(Flags::GROWABLE);
            Kind::Stack
        }
        b"[heap]" => Kind::Heap,
        b"[vdso]" | b"[vsyscall]" | b"[uprobes]" | b"[sigpage]" => Kind::Kernel,
        name if name.starts_with(b"[vvar") => Kind::Kernel,
        name if name.starts_with(b"/SYSV") => Kind::Shm,
        name if name.starts_with(b"/anon_hugepage") => Kind::Huge,
        // (No disk's: it has no name of its own in any folder.)
        b"/secretmem" | b"/secretmem (deleted)" if line.dev_major == 0 => Kind::Special,
        _ if is_managed_line(line) => Kind::Managed,
        name if odd_name(name) => special_in_smaps(line.range.start()).unwrap_or(Kind::File),
        share::NAME => {
            flags = flags.with(Flags::BACKED);
            Kind::File
        }
        _ if line.inode != 0 => {
            if !line.prot.shared() && !line.prot.writable() {
                flags = flags.with(Flags::TEXT);
            }
            if is_cache(line) {
                flags = flags.with(Flags::CACHE);
            }
            file_end = end_of_file(line);
            Kind::File
        }
        _ => Kind::Anon,
    };
    let shown: &[u8] = if line.name.is_empty() {
        b"[anon]"
    } else {
        line.name
    };
    if crate::glob::matches_any(
        config.exclude.as_bytes(),
        shown.strip_suffix(b" (deleted)").unwrap_or(shown),
    ) {
        flags = flags.with(Flags::EXCLUDED);
    }
    let attr = policy::described(policy::fresh(line.prot, kind, flags), pin::holding());
    Described { attr, file_end }
}

/// A new mapping as the kernel lists it.
pub struct Listed {
    /// What it is.
    pub attr: Attr,
    /// Device and inode of its file.
    pub file: ((u32, u32), u64),
    /// Where the file ends, if that is known to be within the mapping.
    pub file_end: Option<u64>,
}

/// Returns what the kernel lists where `range` begins, with `extra`. `None`: that can't be asked here.
#[cold]
#[inline(never)]
pub fn listed(range: PageRange, extra: Flags) -> Option<Listed> {
    let first = PageRange::covering(range.start(), 1)?;
    let mut guard = lock()?;
    let (_, buffer) = guard.with_room();
    let mut found = None;
    in_range(first, buffer, |line| {
        let described = describe(line, extra);
        found = Some(Listed {
            attr: described.attr,
            file: ((line.dev_major, line.dev_minor), line.inode),
            file_end: described.file_end.filter(|end| *end >= range.start()),
        });
        false
    })
    .ok()?;
    found
}

/// Whether memory is mapped from the device `name`, which is `status`, whose driver moves it between
/// host and device. nvidia-uvm has VM_MIXEDMAP mappings and puts other pages there whenever it likes
/// (`uvm_mmap` of kernel-open/nvidia-uvm/uvm.c), so an adapter would go on with pages that are left.
/// Its number differs from boot to boot: it is known by its name, wherever its node lies.
pub fn is_managed(name: &[u8], status: &Stat) -> bool {
    name.ends_with(b"/nvidia-uvm") && status.is_character_device()
}

/// As [`is_managed`], of a mapping that is there already.
#[cold]
#[inline(never)]
fn is_managed_line(line: &Line) -> bool {
    // (The name first: the rest costs.)
    if !line.name.ends_with(b"/nvidia-uvm")
        || mounts::of_device(line.dev_major, line.dev_minor) == Mounted::Remote
    {
        return false;
    }
    let mut path = Text::<1024>::new();
    path.push(line.name);
    let status = path.as_cstr().map(|path| file::stat_path(path, false));
    matches!(status, Some(Ok(status)) if is_managed(line.name, &status))
}

/// Names behind which there may be something else than a file's pages.
fn odd_name(name: &[u8]) -> bool {
    let device = name.starts_with(b"/dev/")
        && ![&b"/dev/shm/"[..], b"/dev/zero", b"/dev/hugepages"]
            .iter()
            .any(|p| name.starts_with(p));
    device
        || name.starts_with(b"anon_inode:")
        || name.starts_with(b"socket:")
        || name.starts_with(b"/[aio]")
}

/// Whether the pages of the file behind `line` are page cache, which the kernel can have back.
#[cold]
#[inline(never)]
fn is_cache(line: &Line) -> bool {
    let memory = [&b"/memfd:"[..], b"/dev/zero", b"/dev/shm/"];
    let known = memory.iter().any(|memory| line.name.starts_with(memory));
    !known && mounts::of_device(line.dev_major, line.dev_minor) != Mounted::Memory
}

/// Where the file behind `line` ends, if it ends within the mapping. What may take for ever to
/// answer is not asked: there the pin set finds it.
#[cold]
#[inline(never)]
fn end_of_file(line: &Line) -> Option<u64> {
    if mounts::of_device(line.dev_major, line.dev_minor) == Mounted::Remote {
        return None;
    }
    let mut path = Text::<1024>::new();
    path.push(line.name);
    let stat = file::stat_path(path.as_cstr()?, false).ok()?;
    if stat.inode != line.inode {
        return None;
    }
    let backed = round_up(stat.size.saturating_sub(line.offset))?;
    let end = line.range.start().checked_add(backed)?;
    (end < line.range.end()).then_some(end)
}

/// What the new mapping that begins at `start` is, if it is one that can't be registered. Asked
/// of the kernel by two pieces of advice on its first page, which cost less than a
/// microsecond; smaps, which adds up every page of the process, is for what they leave open.
#[cold]
#[inline(never)]
pub fn special_kind(start: u64) -> Option<Kind> {
    // EINVAL for VM_SPECIAL: VM_IO, VM_PFNMAP, VM_DONTEXPAND or VM_MIXEDMAP (mm/madvise.c).
    // Elsewhere it does nothing: the mapping is new, nobody has given it MADV_DONTDUMP.
    match sys::advise(start, PAGE, libc::MADV_DODUMP) {
        Ok(()) => return None,
        Err(Errno::INVAL) => (),
        Err(_) => return special_in_smaps(start),
    }
    // EINVAL for VM_IO and VM_PFNMAP, from kernels that know it (Linux 5.14): the others'
    // pages are memory, and are there afterwards.
    match sys::advise(start, PAGE, libc::MADV_POPULATE_READ) {
        Ok(()) => Some(Kind::Special),
        Err(Errno::INVAL) if knows_populate() => Some(Kind::Device),
        Err(_) => special_in_smaps(start),
    }
}

/// Returns whether the kernel knows MADV_POPULATE_READ and MADV_POPULATE_WRITE (Linux 5.14).
pub fn knows_populate() -> bool {
    let own = OWN.as_ptr() as u64 & !(PAGE - 1);
    sys::advise(own, PAGE, libc::MADV_POPULATE_READ).is_ok()
}

/// What smaps says of the mapping that begins at `start`.
#[cold]
#[inline(never)]
fn special_in_smaps(start: u64) -> Option<Kind> {
    sys::with_own_table(|| look_in_smaps(start))
}

fn look_in_smaps(start: u64) -> Option<Kind> {
    let fd = Fd::open(c"/proc/self/smaps", libc::O_RDONLY, 0).ok()?;
    let (mut buffer, mut at) = ([0u8; 4608], 0);
    let mut lines = Lines::new(&mut buffer, |b: &mut [u8]| fd.read_on(&mut at, b));
    let mut here = false;
    while let Some(line) = lines.next_line() {
        let line = match line {
            Ok(line) => line,
            Err(LineError::TooLong) => continue,
            Err(LineError::Read(_)) => return None,
        };
        if let Some(head) = maps::parse(line) {
            here = head.range.start() == start;
        } else if let (true, Some(flags)) = (here, line.strip_prefix(b"VmFlags:")) {
            let has = |f: &[u8]| flags.split(|b| *b == b' ').any(|w| w == f);
            return if has(b"io") || has(b"pf") {
                Some(Kind::Device)
            } else if has(b"de") || has(b"mm") {
                Some(Kind::Special)
            } else {
                None
            };
        }
    }
    None
}

/// Every address, the kernel's own included: `[vsyscall]` is listed, too.
pub fn everything() -> Option<PageRange> {
    PageRange::new(0, !(PAGE - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_memory_is_known_by_its_device() {
        let device = file::stat_path(c"/dev/zero", false).unwrap();
        assert!(is_managed(b"/dev/nvidia-uvm", &device));
        assert!(is_managed(b"/somewhere/dev/nvidia-uvm", &device));
        assert!(!is_managed(b"/dev/nvidia-uvm-tools", &device));
        assert!(!is_managed(b"/dev/not-nvidia-uvm", &device));
        let regular = file::stat_path(c"/proc/self/maps", false).unwrap();
        assert!(!is_managed(b"/tmp/nvidia-uvm", &regular));
    }
}
