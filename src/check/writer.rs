//! Records on their way to REGALL_CHECK_FILE: each is put together in a scratch and appended by
//! one write(2), with signals held back, so that none is left half-way.

use super::area::{area, Saved, Taken, RECORD};
use super::stack;
use crate::arch;
use crate::base::{maps, settings};
use crate::logger::{open_named, with_names};
use crate::sys::file;
use crate::sys::{self, time, Errno, Undisturbed};
use crate::text::Text;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use regall_checking::record::{Head, Kind, HEAD_BYTES, REGISTERS};
use regall_checking::table::Registration;
use regall_directory::maps::Line;

/// Records of each kind and way that are written with their stacks.
const WHOLE: u32 = 64;
/// Records that are written without.
const BRIEF: u64 = 20_000;
/// Bytes of a mapping's line at the most; a longer one is left out.
const LINE_MAX: usize = 1024;

static WRITTEN: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];
static BRIEFS: AtomicU64 = AtomicU64::new(0);
static IDS: AtomicU64 = AtomicU64::new(0);
static DROPPED: AtomicU64 = AtomicU64::new(0);
static BEGUN: AtomicBool = AtomicBool::new(false);
/// Code has come or gone since it was listed last.
static NEW_CODE: AtomicBool = AtomicBool::new(true);

/// Records that were not written.
pub fn dropped() -> u64 {
    DROPPED.load(Relaxed)
}

/// The head of a record about a registration.
pub fn head(kind: Kind, of: &Registration) -> Head {
    Head {
        kind: kind as u64,
        start: of.start,
        end: of.end,
        addr: of.start,
        len: of.end - of.start,
        keys: of.keys,
        access: of.access,
        serial: of.serial,
        ..Head::default()
    }
}

/// Code has come or gone.
pub fn new_code() {
    NEW_CODE.store(true, Relaxed);
}

/// A child of fork begins a file of its own, if it has something to say.
pub fn child() {
    BEGUN.store(false, Relaxed);
    NEW_CODE.store(true, Relaxed);
    BRIEFS.store(0, Relaxed);
    DROPPED.store(0, Relaxed);
    for n in &WRITTEN {
        n.store(0, Relaxed);
    }
}

/// What a record has beside its head.
#[derive(Clone, Copy)]
pub struct Stacks<'a> {
    /// A stack that was kept.
    pub saved: Option<&'a Saved>,
    /// And that of this moment.
    pub here: bool,
}

impl Stacks<'_> {
    /// None.
    pub const NONE: Self = Self {
        saved: None,
        here: false,
    };
}

/// Appends a record: the kept stack first, then that of this moment. `still`: whether the kept
/// one is that of the registration, asked after it was copied. Returns its id; 0: it was not
/// written.
#[cold]
#[inline(never)]
pub fn write(head: Head, stacks: Stacks<'_>, still: &dyn Fn() -> bool) -> u64 {
    let wants = stacks.saved.is_some() || stacks.here;
    let class = (head.kind << 4 | head.how & 15) as usize;
    let whole = WRITTEN
        .get(class)
        .is_some_and(|n| n.load(Relaxed) < WHOLE && n.fetch_add(1, Relaxed) < WHOLE);
    if !whole && BRIEFS.fetch_add(1, Relaxed) >= BRIEF {
        DROPPED.fetch_add(1, Relaxed);
        return 0;
    }
    let here = arch::registers();
    let _undisturbed = Undisturbed::new();
    begin();
    if whole && wants && NEW_CODE.swap(false, Relaxed) {
        list_code();
    }
    let id = IDS.fetch_add(1, Relaxed) + 1;
    let mut head = Head { id, ..head };
    let Some(mut scratch) = area().and_then(|a| a.scratch()) else {
        DROPPED.fetch_add(1, Relaxed);
        return 0;
    };
    if whole {
        head = with_stacks(&mut scratch, head, stacks, here, still);
    } else {
        head.brief = u64::from(wants);
    }
    match append(&mut scratch, head) {
        true => id,
        false => 0,
    }
}

fn with_stacks(
    scratch: &mut Taken,
    head: Head,
    stacks: Stacks<'_>,
    here: [u64; REGISTERS],
    still: &dyn Fn() -> bool,
) -> Head {
    let mut head = head;
    let at = scratch.bytes().as_mut_ptr();
    let mut offset = HEAD_BYTES;
    if let Some(saved) = stacks.saved {
        let bytes = saved.bytes.load(Relaxed);
        let room = Head::stack_room(bytes) as usize;
        // SAFETY: a record has room for two stacks behind its head, and no more than one is kept.
        let copied = unsafe { sys::copy_checked(saved.room() as u64, at.add(offset), room) };
        if bytes != 0 && copied == Ok(room) && still() {
            head = head.with_stack(0, bytes as u32);
            offset += room;
        }
    }
    if stacks.here {
        // SAFETY: likewise for the second.
        let bytes = stack::copy(here, unsafe { at.add(offset) });
        head = head.with_stack(1, bytes as u32);
    }
    head
}

/// The first record of a program image: its path.
#[cold]
pub fn begin() {
    if BEGUN.swap(true, Relaxed) {
        return;
    }
    let Some(mut scratch) = area().and_then(|a| a.scratch()) else {
        return;
    };
    let room = scratch.bytes().get_mut(HEAD_BYTES..).unwrap_or(&mut []);
    let text = match file::read_link(c"/proc/self/exe", room) {
        Ok(path) => path.len() as u64,
        Err(_) => 0,
    };
    let head = Head {
        kind: Kind::Begin as u64,
        id: IDS.fetch_add(1, Relaxed) + 1,
        text,
        ..Head::default()
    };
    append(&mut scratch, head);
}

/// Lists what is executable, in as many records as it takes.
fn list_code() {
    let area = area();
    let both = area.and_then(|a| Some((a.scratch()?, a.scratch()?)));
    let Some((mut read, scratch)) = both else {
        NEW_CODE.store(true, Relaxed);
        return;
    };
    let mut list = List {
        scratch,
        used: 0,
        more: 0,
    };
    let _ = maps::lines(read.bytes(), |line| {
        if line.prot.executable() {
            list.line(line);
        }
        true
    });
    list.flush();
}

/// A list of mappings on its way.
struct List {
    scratch: Taken,
    used: usize,
    /// 1: a record of the same list has been written.
    more: u64,
}

impl List {
    fn line(&mut self, line: &Line<'_>) {
        let (start, end) = (line.range.start(), line.range.end());
        let mut text: Text<{ LINE_MAX }> = Text::new();
        let _ = write!(text, "{start:x} {end:x} {:x} ", line.offset);
        text.push(line.name);
        text.push(b"\n");
        if text.was_cut() {
            return;
        }
        let text = text.as_bytes();
        if self.used + text.len() > RECORD - HEAD_BYTES {
            self.flush();
        }
        let at = HEAD_BYTES + self.used;
        if let Some(to) = self.scratch.bytes().get_mut(at..at + text.len()) {
            to.copy_from_slice(text);
            self.used += text.len();
        }
    }

    fn flush(&mut self) {
        let head = Head {
            kind: Kind::Maps as u64,
            id: IDS.fetch_add(1, Relaxed) + 1,
            text: self.used as u64,
            brief: self.more,
            ..Head::default()
        };
        append(&mut self.scratch, head);
        (self.used, self.more) = (0, 1);
    }
}

/// Writes what is in the scratch behind `head`. Whether it is in the file.
fn append(scratch: &mut Taken, head: Head) -> bool {
    let mut head = Head {
        pid: sys::getpid().into(),
        tid: sys::gettid().into(),
        time: time::now(),
        ..head
    };
    let payload = head.payload().unwrap_or(0);
    head.bytes = HEAD_BYTES as u64 + payload;
    let bytes = scratch.bytes();
    for (to, word) in bytes.chunks_exact_mut(8).zip(head.words()) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    let path: Text<1100> = with_names(settings::config().check_file.as_bytes());
    let written = path.as_cstr().ok_or(Errno::INVAL).and_then(|path| {
        // (Stacks hold data: not into a file that somebody else has put there.)
        let fd = open_named(path, libc::O_APPEND, 0o600)?;
        fd.write_all(bytes.get(..head.bytes as usize).unwrap_or(&[]))
    });
    if let Err(errno) = written {
        if DROPPED.fetch_add(1, Relaxed) == 0 {
            log::warn!("REGALL_CHECK_FILE can't be written: {errno}");
        }
    }
    written.is_ok()
}
