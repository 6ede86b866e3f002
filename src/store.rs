//! The directory's file: made at start-up, grown ahead of need, removed at the
//! end; what the dead left behind is swept up. No descriptor stays open.

mod sweep;

use crate::arena::Arena;
use crate::base::process;
use crate::base::withheld::withheld;
use crate::ledger::Memory;
use crate::sys::file::{self, Fd};
use crate::sys::folder::{self, Folder};
use crate::sys::process::{Identity, Stat};
use crate::sys::{self, Errno, Undisturbed};
use crate::text::{number, Text};
use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, Release};
use regall_bridge::wire;
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::layout::{
    segment_bytes, segment_offset, Call, Counter, Header, Slot, MAGIC, NAMELESS, SEGMENT0_SLOTS,
    SEGMENTS, UNPUBLISHED,
};
use regall_directory::writer::Backing;

/// The end of the name of the file of this process's regions, beside the directory.
pub const REGIONS: &str = "regions";
/// The end of the name of the pipe through which it is told that they were used.
pub const USES: &str = "uses";

/// This process's file and where it is mapped.
pub struct Store {
    folder: Folder,
    name: Text<96>,
    /// Whether there is a file; else the memory is private and nobody sees it.
    published: bool,
    /// Whether the file has no name, and all of it is mapped in one: root alone can open it,
    /// through /proc/PID/map_files.
    nameless: bool,
    /// Effective uid at the time it was made.
    uid: u32,
    header: Option<NonNull<Header>>,
    /// The page that tells readers why there is no file.
    mark: Option<PageRange>,
    mapped: [Option<PageRange>; SEGMENTS],
    announced: usize,
}

// SAFETY: the header is shared memory of atomics; the rest is plain data.
unsafe impl Send for Store {}

impl Default for Store {
    fn default() -> Self {
        Self::new()
    }
}

impl Store {
    /// No file yet.
    pub const fn new() -> Self {
        Self {
            folder: Folder { uid: 0, n: 0 },
            name: Text::new(),
            published: false,
            nameless: false,
            uid: 0,
            header: None,
            mark: None,
            mapped: [None; SEGMENTS],
            announced: 0,
        }
    }

    /// The header.
    pub fn header(&self) -> Option<NonNull<Header>> {
        self.header
    }

    /// Whether it is shared memory, which readers can find.
    pub fn shared(&self) -> bool {
        self.published || self.nameless
    }

    /// Parts that were mapped since the last call.
    pub fn fresh_part(&mut self) -> Option<PageRange> {
        let mut parts = self.mark.iter().chain(self.mapped.iter().flatten());
        let part = parts.nth(self.announced).copied();
        self.announced += usize::from(part.is_some());
        part
    }

    /// Bytes mapped.
    pub fn bytes(&self) -> u64 {
        let all: u64 = self.mapped.iter().flatten().map(|p| p.len()).sum();
        match self.nameless {
            // Of the first, which is all that there can be, no more than the others say.
            true => all - ALL + first_part() as u64,
            false => all,
        }
    }

    /// Announces every part again.
    pub fn announce_all(&mut self) {
        self.announced = 0;
    }

    /// Makes a new file for this process and forgets any former one (after
    /// fork that is the parent's, and not mapped here). Where that is not
    /// possible the directory is private memory and the error is returned.
    /// It is where its parent's was, if that is free: a call that a handler with a fork in it
    /// came upon still has the header's address.
    pub fn create(&mut self) -> Result<(), Errno> {
        let former = parts().next().map_or(0, |(at, _)| at);
        *self = Self::new();
        for part in &PARTS {
            part[1].store(0, Relaxed);
        }
        let made = match withheld() {
            true => self.create_nameless(former),
            false => self.create_named(former),
        };
        self.mark = made.err().and_then(mark);
        made
    }

    /// As [`Store::create`], where the user's processes can open it.
    fn create_named(&mut self, former: u64) -> Result<(), Errno> {
        let made = self.create_file(former);
        let base = match made {
            Ok(base) => base,
            Err(_) => private_part(former)?,
        };
        self.published = made.is_ok();
        self.header = NonNull::new(base as *mut Header);
        self.keep(0, base, first_part() as u64);
        made.map(drop)
    }

    /// As [`Store::create`], for root alone: what the kernel tells others of this user nothing
    /// of must not stand in their folder.
    fn create_nameless(&mut self, former: u64) -> Result<(), Errno> {
        self.remove_former();
        let made = Identity::own().and_then(|me| Ok((me, map_nameless(former)?)));
        let (base, bytes) = match &made {
            Ok((_, base)) => (*base, ALL),
            Err(_) => (private_part(former)?, first_part() as u64),
        };
        self.nameless = made.is_ok();
        self.header = NonNull::new(base as *mut Header);
        self.keep(0, base, bytes);
        let (me, base) = made?;
        process::known_as(&me);
        // SAFETY: freshly mapped, zeroed, large enough and page-aligned.
        fill_header(unsafe { &*(base as *const Header) }, &me);
        Ok(())
    }

    /// Removes what an image before exec, which lent, has left in the folder of this user's.
    fn remove_former(&mut self) {
        let _undisturbed = Undisturbed::new();
        let Ok(me) = Identity::own() else { return };
        let uid = sys::geteuid();
        self.name = Text::of(format_args!("{}.{}.{}", me.pid, me.start, me.namespace));
        folder::each(folder::ROOT, uid, |folder, which| {
            let removed = self.name.as_cstr().map(|name| folder.unlink(name));
            if let Some(Ok(())) = removed {
                let socket: Text<108> = with_kind(self.name.as_bytes(), wire::SOCKET);
                let _ = socket.as_cstr().map(|name| folder.unlink(name));
                self.remove_what_lies_beside(&folder);
                which.leave(folder::ROOT);
            }
        });
    }

    fn keep(&mut self, k: usize, base: u64, bytes: u64) {
        // A child of fork must not write into its parent's directory, not even
        // by mistake: it does not get the mapping.
        // SAFETY: it makes a directory of its own, or has other memory there (`stand_in`).
        let _ = unsafe { sys::advise_any(base, bytes, libc::MADV_DONTFORK) };
        if let Some(place) = self.mapped.get_mut(k) {
            *place = PageRange::new(base, base + bytes);
        }
        if let Some([at, len]) = PARTS.get(k) {
            at.store(base, Relaxed);
            len.store(bytes, Relaxed);
        }
    }

    fn create_file(&mut self, former: u64) -> Result<u64, Errno> {
        self.uid = sys::geteuid();
        let me = Identity::own()?;
        process::known_as(&me);
        self.name = Text::of(format_args!("{}.{}.{}", me.pid, me.start, me.namespace));
        let (folder, fd, another) = self.file_in_folder(&me)?;
        let name = self.name.as_cstr().ok_or(Errno::INVAL)?;
        if another {
            self.remove_what_lies_beside(&folder);
        }
        let base = fd
            .allocate(0, first_part() as u64)
            .and_then(|()| map_first(&fd, former, first_part() as u64))
            .inspect_err(|_| {
                let _ = folder.unlink(name);
            })?;
        // SAFETY: freshly mapped, zeroed, large enough and page-aligned.
        let header = unsafe { &*(base as *const Header) };
        fill_header(header, &me);
        Ok(base)
    }

    /// Makes the file, and says whether there was one of that name.
    fn file_in_folder(&mut self, me: &Identity) -> Result<(Fd, Fd, bool), Errno> {
        folder::in_own(folder::ROOT, self.uid, |folder, which| {
            self.folder = which;
            OWN.store(which.n, Relaxed);
            sweep::all(&folder, me);
            if which.is_random() {
                sweep::others(which, me);
            }
            let name = self.name.as_cstr().ok_or(Errno::INVAL)?;
            create_exclusive(&folder, name).map(|(fd, another)| (folder, fd, another))
        })
    }

    fn folder(&self) -> Result<Fd, Errno> {
        let path = self.folder.path();
        folder::open(path.as_cstr().ok_or(Errno::INVAL)?, self.uid)
    }

    /// Opens a file beside it, whose name ends in `.kind`; with O_CREAT it is made anew.
    /// ENOENT if nobody can see the directory.
    pub fn open_beside(&self, kind: &str, flags: i32) -> Result<Fd, Errno> {
        let (folder, name) = self.beside(kind)?;
        let name = name.as_cstr().ok_or(Errno::INVAL)?;
        match flags & libc::O_CREAT != 0 {
            true => create_exclusive(&folder, name).map(|(fd, _)| fd),
            false => Fd::open_in(&folder, name, flags | libc::O_NOFOLLOW, 0),
        }
    }

    /// Removes a file beside it.
    pub fn remove_beside(&self, kind: &str) {
        if let Ok((folder, name)) = self.beside(kind) {
            let _ = name.as_cstr().map(|name| folder.unlink(name));
        }
    }

    /// What the image before exec left beside its directory.
    fn remove_what_lies_beside(&self, folder: &Fd) {
        for kind in [REGIONS, USES] {
            let name = self.name_beside(kind);
            let _ = name.as_cstr().map(|name| folder.unlink(name));
        }
    }

    /// Makes a pipe beside it, and opens both of its ends as one.
    pub fn pipe_beside(&self, kind: &str) -> Result<Fd, Errno> {
        let (folder, name) = self.beside(kind)?;
        let name = name.as_cstr().ok_or(Errno::INVAL)?;
        let _ = folder.unlink(name);
        folder.make_pipe(name, 0o600)?;
        let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_NOFOLLOW;
        Fd::open_in(&folder, name, flags, 0)
    }

    fn beside(&self, kind: &str) -> Result<(Fd, Text<128>), Errno> {
        if !self.published {
            return Err(Errno::NOENT);
        }
        Ok((self.folder()?, self.name_beside(kind)))
    }

    fn name_beside(&self, kind: &str) -> Text<128> {
        let mut name: Text<128> = Text::new();
        name.push(self.name.as_bytes());
        name.push(b".");
        name.push(kind.as_bytes());
        name
    }

    /// Removes the file; the mapping stays until the process ends.
    pub fn remove(&self) {
        if !self.published {
            return;
        }
        sys::with_own_table(|| {
            if let (Ok(folder), Some(name)) = (self.folder(), self.name.as_cstr()) {
                let _ = folder.unlink(name);
                let socket: Text<108> = with_kind(self.name.as_bytes(), wire::SOCKET);
                if let Some(name) = socket.as_cstr() {
                    let _ = folder.unlink(name);
                }
            }
            self.folder.leave(folder::ROOT);
        });
    }

    /// Where a helper is to listen; empty if nobody can see the directory.
    pub fn helper_address(&self) -> Text<108> {
        match self.published {
            true => wire::socket_path(self.folder.path().as_bytes(), self.name.as_bytes()),
            false => Text::new(),
        }
    }

    /// Makes every entry invisible; the parts stay mapped.
    pub fn clear(&mut self) {
        for k in 0..SEGMENTS {
            let Some(base) = self.part_of(k) else {
                break;
            };
            for i in 0..SEGMENT0_SLOTS << k {
                // SAFETY: a mapped segment has this many slots, all atomics.
                unsafe { base.add(i).as_ref() }.generation.store(0, Release);
            }
        }
    }

    /// Segment `k`, if it is mapped.
    fn part_of(&self, k: usize) -> Option<NonNull<Slot>> {
        let part = (*self.mapped.get(k)?)?;
        // The header and segment 0 are mapped as one.
        let base = if k == 0 {
            part.start() + segment_offset(0) as u64
        } else {
            part.start()
        };
        NonNull::new(base as *mut Slot)
    }

    fn grow(&mut self, k: usize) -> Result<u64, Errno> {
        // A handler that jumps away would leave what is mapped without an owner.
        let _undisturbed = Undisturbed::new();
        let bytes = segment_bytes(k) as u64;
        let base = if self.published {
            sys::with_own_table(|| {
                let folder = self.folder()?;
                let name = self.name.as_cstr().ok_or(Errno::INVAL)?;
                let fd = Fd::open_in(&folder, name, libc::O_RDWR | libc::O_NOFOLLOW, 0)?;
                let offset = segment_offset(k) as u64;
                fd.allocate(offset, bytes)?;
                fd.map_apart(offset, bytes)
            })?
        } else if let (true, Some(header)) = (self.nameless, self.header) {
            let base = header.as_ptr() as u64 + segment_offset(k) as u64;
            // Readers don't believe in what has no pages.
            sys::advise(base, bytes, libc::MADV_POPULATE_WRITE)?;
            base
        } else {
            sys::map_private(bytes as usize)?.as_ptr() as u64
        };
        self.keep(k, base, bytes);
        Ok(base)
    }
}

/// Which of its user's folders this process's directory is in.
static OWN: AtomicU64 = AtomicU64::new(0);

/// Where the directory's parts are mapped and how long they are, for who can't have the store:
/// a handler on top of who changes it.
static PARTS: [[AtomicU64; 2]; SEGMENTS] = [const { [const { AtomicU64::new(0) }; 2] }; SEGMENTS];

fn parts() -> impl Iterator<Item = (u64, u64)> {
    let of = |[at, len]: &[AtomicU64; 2]| (at.load(Relaxed), len.load(Relaxed));
    PARTS.iter().map(of).filter(|(_, len)| *len != 0)
}

/// In a child of fork: ordinary memory where the parent's directory is, which is not mapped here.
/// A change of the ledger that the fork came upon goes on in the child, and writes there.
pub fn stand_in() {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    parts().for_each(|(at, len)| {
        let _ = sys::map_at(at, len, prot);
    });
}

/// Takes away what [`stand_in`] has mapped.
pub fn end_stand_in() {
    parts().for_each(|(at, len)| {
        // SAFETY: the change that went on there is done.
        let _ = unsafe { sys::unmap(at, len) };
    });
}

/// Bytes of the header and segment 0, which are mapped as one.
const fn first_part() -> usize {
    segment_offset(0) + segment_bytes(0)
}

/// Bytes of all segments that there can be.
const ALL: u64 = segment_offset(SEGMENTS) as u64;

/// Maps the first `bytes` of the file, at `former` if there was a directory before and its place
/// is free.
fn map_first(fd: &Fd, former: u64, bytes: u64) -> Result<u64, Errno> {
    match former {
        0 => fd.map_apart(0, bytes),
        at => fd.map_shared_near(at, 0, bytes),
    }
}

/// Memory in place of a file's first part.
fn private_part(former: u64) -> Result<u64, Errno> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    if former != 0 {
        if let Ok(made) = sys::map_at(former, first_part() as u64, prot) {
            return Ok(made);
        }
    }
    let made = sys::map_private(first_part()).map_err(|_| Errno::NOMEM)?;
    Ok(made.as_ptr() as u64)
}

/// Maps a page of an empty file whose name tells readers why there is no directory.
fn mark(why: Errno) -> Option<PageRange> {
    let _undisturbed = Undisturbed::new();
    let name: Text<48> = Text::of(format_args!("{UNPUBLISHED}{}", why.0));
    let name = name.as_cstr()?;
    let make = |flags| file::in_memory(name, libc::MFD_CLOEXEC | flags);
    // (Linux 6.3; some systems insist on it.)
    let fd = make(libc::MFD_NOEXEC_SEAL).or_else(|_| make(0)).ok()?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: without MAP_FIXED nothing is replaced.
    let at = unsafe { sys::map(sys::apart(PAGE), PAGE, prot, libc::MAP_PRIVATE, fd.raw(), 0) };
    let at = at.ok()?;
    // SAFETY: nobody reads the page. A child of fork has a directory, or a mark, of its own.
    let _ = unsafe { sys::advise_any(at, PAGE, libc::MADV_DONTFORK) };
    PageRange::new(at, at + PAGE)
}

/// Maps a file without a name that is as long as a directory can be.
fn map_nameless(former: u64) -> Result<u64, Errno> {
    let _undisturbed = Undisturbed::new();
    let fd = file::in_memory(NAMELESS, libc::MFD_CLOEXEC)?;
    fd.truncate(ALL)?;
    fd.allocate(0, first_part() as u64)?;
    map_first(&fd, former, ALL)
}

/// The writer's memory.
pub struct Room<'a> {
    /// The file.
    pub store: &'a mut Store,
    /// Private memory.
    pub arena: &'a mut Arena,
}

impl Backing for Room<'_> {
    fn segment(&mut self, k: usize) -> Option<NonNull<Slot>> {
        match self.store.part_of(k) {
            Some(base) => Some(base),
            None => NonNull::new(self.store.grow(k).ok()? as *mut Slot),
        }
    }

    fn private(&mut self, bytes: usize) -> Option<NonNull<u32>> {
        self.arena.alloc(bytes).map(NonNull::cast)
    }
}

/// Makes a file anew; and whether there was one of that name.
fn create_exclusive(folder: &Fd, name: &CStr) -> Result<(Fd, bool), Errno> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    match Fd::open_in(folder, name, flags, 0o600) {
        // Our own, from before an exec.
        Err(Errno::EXIST) => {
            // Somebody may sweep it up just now.
            match folder.unlink(name) {
                Ok(()) | Err(Errno::NOENT) => (),
                Err(e) => return Err(e),
            }
            Ok((Fd::open_in(folder, name, flags, 0o600)?, true))
        }
        other => Ok((other?, false)),
    }
}

fn fill_header(header: &Header, me: &Identity) {
    header.pid.store(u64::from(me.pid), Relaxed);
    header.start_time.store(me.start, Relaxed);
    header.image.store(process::new_image(), Relaxed);
    header.pid_namespace.store(me.namespace, Relaxed);
    header.uid.store(u64::from(sys::geteuid()), Relaxed);
    write_exe(header);
    // Whoever finds it before it is filled shall see that somebody is about it.
    if let Some(place) = header.inflight.last() {
        place.store(Call::Fork.in_flight(sys::gettid()), Relaxed);
    }
    header.magic.store(MAGIC, Release);
}

fn write_exe(header: &Header) {
    let mut buf = [0u8; 256];
    let Ok(path) = file::read_link(c"/proc/self/exe", &mut buf[..255]) else {
        return;
    };
    write_text(&header.exe, path);
}

/// Puts `text` into words of the header, whose rest is 0.
pub fn write_text(words: &[AtomicU64], text: &[u8]) {
    for (word, bytes) in words.iter().zip(text.chunks(8)) {
        let mut b = [0u8; 8];
        for (to, from) in b.iter_mut().zip(bytes) {
            *to = *from;
        }
        word.store(u64::from_ne_bytes(b), Relaxed);
    }
}

/// The name of the file beside the directory `name` that is of that kind.
fn with_kind<const N: usize>(name: &[u8], kind: &str) -> Text<N> {
    let mut text = Text::new();
    for part in [name, b".", kind.as_bytes()] {
        text.push(part);
    }
    text
}

/// Calls `f` with the pid of each other process of this user's with the shim on, and
/// how many bytes it has locked, that count, and that may become resident yet. A file that
/// nobody has any more counts nothing, and what one claims no more than is mapped.
pub fn each_other(mut f: impl FnMut(u64, u64)) {
    let Ok(me) = Identity::own() else { return };
    let uid = sys::geteuid();
    let own = Folder {
        uid,
        n: OWN.load(Relaxed),
    };
    let path = own.path();
    match path.as_cstr().map(|path| folder::open_existing(path, uid)) {
        Some(Ok(folder)) => others_in(&folder, &me, &mut f),
        _ => folder::each(folder::ROOT, uid, |folder, _| {
            others_in(&folder, &me, &mut f);
        }),
    }
}

fn others_in(folder: &Fd, me: &Identity, f: &mut impl FnMut(u64, u64)) {
    let _ = folder.each_entry(sweep::MOST, |name| {
        let mut fields = name.split(|b| *b == b'.').map(number);
        let (pid, start, space) = (fields.next(), fields.next(), fields.next());
        let (Some(Some(pid)), Some(Some(start)), Some(Some(space)), None) =
            (pid, start, space, fields.next())
        else {
            return true;
        };
        if space != me.namespace || pid == u64::from(me.pid) {
            return true;
        }
        match Stat::of(pid) {
            Ok(it) if it.start == start && !it.over() => {
                f(pid, held_by(folder, name).min(it.absent));
            }
            _ => (),
        }
        true
    });
}

/// [`Counter::LazyBytes`] in the directory `name`.
fn held_by(folder: &Fd, name: &[u8]) -> u64 {
    let at = core::mem::offset_of!(Header, counters) + 8 * Counter::LazyBytes as usize;
    let mut path: Text<96> = Text::new();
    path.push(name);
    let mut word = [0u8; 8];
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let read = path
        .as_cstr()
        .and_then(|path| Fd::open_in(folder, path, flags, 0).ok())
        .map(|fd| fd.read_at(&mut word, at as u64));
    match read {
        Some(Ok(8)) => u64::from_ne_bytes(word),
        _ => 0,
    }
}
