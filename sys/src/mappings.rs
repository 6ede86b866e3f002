//! The kernel's mappings, asked for by address: PROCMAP_QUERY of /proc/PID/maps (Linux 6.11). What
//! that costs does not depend on how many mappings there are.

use crate::errno::{Errno, Result};
use crate::file::Fd;
use crate::lasting::{IS_READ, MAPS};
use crate::signal::Undisturbed;
use core::sync::atomic::Ordering::*;

/// _IOWR('f', 17, struct procmap_query).
const PROCMAP_QUERY: u64 = 0xc068_6611;

const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;
/// The mapping at the address, or the next one above it.
const COVERING_OR_NEXT: u64 = 0x10;
/// Mappings of files alone.
const FILE_BACKED: u64 = 0x20;

/// struct procmap_query (linux/fs.h).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// One mapping.
#[derive(Debug)]
pub struct Mapping<'n> {
    /// Its addresses.
    pub start: u64,
    /// Behind the last of them.
    pub end: u64,
    /// Its protection, as mmap(2) takes it.
    pub prot: i32,
    /// Whether it is MAP_SHARED.
    pub shared: bool,
    /// Offset into the file, in bytes.
    pub offset: u64,
    /// Inode of the file; 0: there is none.
    pub inode: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// Path or name, as /proc/self/maps has it, but for newlines, which are themselves. Empty: there
    /// is none, or there is no room for it.
    pub name: &'n [u8],
}

/// Which mappings are looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// All mappings.
    Any,
    /// Mappings of files, and of what is a file to the kernel (System V segments).
    Files,
    /// The mapping that holds the address.
    Here,
}

impl Fd {
    /// Returns the first mapping that is `wanted` and ends above `addr`, where this is a process's
    /// list of mappings in /proc, with its name in `room`. `None`: there is none.
    ///
    /// # Errors
    /// ENOTTY: the kernel doesn't know the request, or was not asked.
    pub fn query(&self, addr: u64, wanted: Wanted, room: &mut [u8]) -> Result<Option<Query>> {
        match self.query_named(addr, wanted, room) {
            Err(Errno::NAMETOOLONG) => self.query_named(addr, wanted, &mut []),
            asked => asked,
        }
    }

    /// As [`Fd::query`]. ENAMETOOLONG: there is no room for the name.
    fn query_named(&self, addr: u64, wanted: Wanted, room: &mut [u8]) -> Result<Option<Query>> {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            flags: match wanted {
                Wanted::Any => COVERING_OR_NEXT,
                Wanted::Files => COVERING_OR_NEXT | FILE_BACKED,
                Wanted::Here => 0,
            },
            addr,
            name_size: room.len() as u32,
            // (The kernel takes no address where there is no room.)
            name_addr: match room.is_empty() {
                true => 0,
                false => room.as_mut_ptr() as u64,
            },
            ..Query::default()
        };
        // SAFETY: a struct procmap_query, and as much room for a name as it says.
        match unsafe { self.ioctl(PROCMAP_QUERY, &raw mut query) } {
            // (A filter can have the call return 0 without making it.)
            Ok(_) if query.end <= addr || query.end <= query.start => Err(Errno::NOTTY),
            Ok(_) => Ok(Some(query)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// The list of this process as text. It has one reader at a time: it goes on where it has ended, at an
/// address. A second reader of one open file would have the kernel count bytes from the start, which
/// tears lines where mappings come and go meanwhile.
pub struct Text {
    /// A file of its own, for who comes while another reads the one that stays open.
    own: Option<Fd>,
    at: u64,
    /// A handler that jumps away would leave the file open, or the other one taken.
    _undisturbed: Undisturbed,
}

impl Drop for Text {
    fn drop(&mut self) {
        if self.own.is_none() {
            IS_READ.store(false, Release);
        }
    }
}

impl Text {
    /// Opens it.
    ///
    /// # Errors
    /// open(2)'s.
    pub fn open() -> Result<Self> {
        let _undisturbed = Undisturbed::new();
        let is_ours = MAPS.there().is_some() && !IS_READ.swap(true, Acquire);
        let own = match is_ours {
            true => None,
            false => Some(MAPS.open()?),
        };
        Ok(Self {
            own,
            at: 0,
            _undisturbed,
        })
    }

    /// Reads what comes next into `buf`.
    ///
    /// # Errors
    /// read(2)'s.
    pub fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        let at = self.at;
        let n = match &self.own {
            Some(own) => own.read_at(buf, at),
            None => MAPS.ask(&mut |list| list.read_at(buf, at)),
        }?;
        self.at += n as u64;
        Ok(n)
    }
}

/// The list of this process, to be asked.
pub struct List(());

impl List {
    /// Returns the list.
    ///
    /// # Errors
    /// open(2)'s.
    pub fn open() -> Result<Self> {
        MAPS.is_readable().map(Self)
    }

    /// Asks it as [`Fd::query`] does.
    ///
    /// # Errors
    /// ENOTTY: the kernel doesn't know the request; open(2)'s.
    pub fn query(&self, addr: u64, wanted: Wanted, room: &mut [u8]) -> Result<Option<Query>> {
        MAPS.ask(&mut |list| list.query(addr, wanted, room))
    }

    /// Calls `each` with every mapping that is `wanted` and ends above `addr`, in their order, until it
    /// says false. They are read some ahead, with their names in `room`. Returns from which address on
    /// the kernel could not be asked for one mapping, which is to be read as text.
    pub fn each_from(
        &self,
        addr: u64,
        wanted: Wanted,
        room: &mut [u8],
        mut each: impl FnMut(&Mapping<'_>) -> bool,
    ) -> Option<u64> {
        let (mut from, mut most) = (addr, 1);
        loop {
            let mut batch = Batch::new(from, wanted, most);
            if MAPS.ask(&mut |list| batch.fill(list, room)).is_err() {
                return Some(from);
            }
            for query in batch.found() {
                if !each(&query.mapping(room)) {
                    return None;
                }
            }
            if batch.is_last {
                return None;
            }
            (from, most) = (batch.next, (most * 2).min(BATCH));
        }
    }
}

/// Mappings that are read ahead at the most: the file is looked at before and after.
const BATCH: usize = 8;

/// Mappings that follow one another, as the kernel has said.
struct Batch {
    from: u64,
    wanted: Wanted,
    most: usize,
    queries: [Query; BATCH],
    count: usize,
    /// Behind the last of them.
    next: u64,
    /// There are no more.
    is_last: bool,
}

impl Batch {
    fn new(from: u64, wanted: Wanted, most: usize) -> Self {
        Self {
            from,
            wanted,
            most,
            queries: [Query::default(); BATCH],
            count: 0,
            next: from,
            is_last: false,
        }
    }

    fn found(&self) -> &[Query] {
        self.queries.get(..self.count).unwrap_or(&[])
    }

    /// Asks for them, from the first on. What fails behind that one is asked once more, as a first.
    fn fill(&mut self, list: &Fd, room: &mut [u8]) -> Result<()> {
        let mut used = 0;
        (self.count, self.next, self.is_last) = (0, self.from, false);
        let places = self.queries.iter_mut().take(self.most);
        for place in places {
            let rest = room.get_mut(used..).unwrap_or(&mut []);
            if rest.is_empty() && self.count > 0 {
                break;
            }
            let asked = match used {
                0 => list.query(self.next, self.wanted, rest),
                _ => list.query_named(self.next, self.wanted, rest),
            };
            match asked {
                Ok(Some(query)) => {
                    (self.next, *place) = (query.end, query);
                    used += query.name_size as usize;
                    self.count += 1;
                }
                Ok(None) if self.count == 0 => {
                    // (A filter may say so, too.)
                    let own = &raw const OWN as u64;
                    let is_told = list.query(own, Wanted::Here, &mut [])?.is_some();
                    self.is_last = true;
                    return is_told.then_some(()).ok_or(Errno::NOENT);
                }
                Err(errno) if self.count == 0 => return Err(errno),
                Ok(None) | Err(_) => break,
            }
        }
        Ok(())
    }
}

/// Lies in a mapping of ours.
static OWN: u8 = 0;

impl Query {
    /// Returns what the kernel has said, with the name that it has put somewhere into `room`.
    pub fn mapping<'n>(&self, room: &'n [u8]) -> Mapping<'n> {
        let at = self.name_addr.wrapping_sub(room.as_ptr() as u64) as usize;
        let end = at.wrapping_add(self.name_size as usize);
        let name = room.get(at..end).unwrap_or(&[]);
        let has = |right| self.rights & right != 0;
        let right = |right, prot| if has(right) { prot } else { 0 };
        Mapping {
            start: self.start,
            end: self.end,
            prot: right(READABLE, libc::PROT_READ)
                | right(WRITABLE, libc::PROT_WRITE)
                | right(EXECUTABLE, libc::PROT_EXEC),
            shared: has(SHARED),
            offset: self.offset,
            inode: self.inode,
            device: (self.dev_major, self.dev_minor),
            name: name.strip_suffix(b"\0").unwrap_or(name),
        }
    }
}

/// Returns whether the list `own` shows a page that is mapped after it was opened.
///
/// # Errors
/// mmap(2)'s and pread(2)'s.
pub fn is_live(own: &Fd) -> Result<bool> {
    let page = crate::memory::map_private(crate::memory::PAGE as usize)?.as_ptr() as u64;
    let shown = shows(own, page);
    // SAFETY: mapped above; nobody else knows of it.
    let _ = unsafe { crate::memory::unmap(page, crate::memory::PAGE) };
    shown
}

fn shows(own: &Fd, page: u64) -> Result<bool> {
    let here = own.query(page, Wanted::Here, &mut []);
    if here.is_ok() {
        return here.map(|found| found.is_some());
    }
    let (mut buffer, mut used, mut at) = ([0u8; 1024], 0, 0);
    loop {
        let room = buffer.get_mut(used..).filter(|room| !room.is_empty());
        let n = own.read_at(room.ok_or(Errno::INVAL)?, at)?;
        if n == 0 {
            return Ok(false);
        }
        (at, used) = (at + n as u64, used + n);
        let text = buffer.get(..used).unwrap_or(&[]);
        if text
            .split_inclusive(|b| *b == b'\n')
            .any(|line| holds(line, page))
        {
            return Ok(true);
        }
        // The rest of a line, unless that is longer than any that is looked for.
        let begun = text.iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
        let begun = if begun == 0 { used } else { begun };
        buffer.copy_within(begun..used, 0);
        used -= begun;
    }
}

/// Returns whether `line` is of a mapping with `page`.
fn holds(line: &[u8], page: u64) -> bool {
    let mut ends = line.split(|b| matches!(b, b'-' | b' ')).map(|digits| {
        let text = core::str::from_utf8(digits).ok()?;
        u64::from_str_radix(text, 16).ok()
    });
    match (ends.next().flatten(), ends.next().flatten()) {
        (Some(start), Some(end)) => start <= page && page < end,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps() -> Fd {
        Fd::open(c"/proc/self/maps", libc::O_RDONLY, 0).unwrap()
    }

    /// Whether the kernel knows the request.
    fn is_known(maps: &Fd) -> bool {
        maps.query(0, Wanted::Any, &mut [0; 16]).err() != Some(Errno::NOTTY)
    }

    #[test]
    fn the_kernel_says_what_its_list_says() {
        let maps = maps();
        if !is_known(&maps) {
            eprintln!("skipped: no PROCMAP_QUERY before Linux 6.11");
            return;
        }
        let mut room = [0; 4096];
        let list = std::fs::read_to_string("/proc/self/maps").unwrap();
        let own = maps.query(is_known as *const () as u64, Wanted::Any, &mut room);
        let own = own.unwrap().unwrap().mapping(&room);
        let line = format!("{:x}-{:x} r-xp {:08x} ", own.start, own.end, own.offset);
        let line = list.lines().find(|l| l.starts_with(&line)).unwrap();
        let name = core::str::from_utf8(own.name).unwrap();
        assert!(line.ends_with(name) && name.starts_with('/'), "{line}");
        assert!(line.contains(&format!(" {} ", own.inode)));
        assert_eq!(own.prot, libc::PROT_READ | libc::PROT_EXEC);
        assert!(!own.shared);
    }

    #[test]
    fn of_files_alone() {
        let maps = maps();
        if !is_known(&maps) {
            eprintln!("skipped: no PROCMAP_QUERY before Linux 6.11");
            return;
        }
        let (local, mut room) = (0u64, [0; 16]);
        let at = &raw const local as u64;
        let next = maps.query(at, Wanted::Files, &mut room).unwrap();
        assert!(next.is_none_or(|file| file.start > at && file.inode != 0));
        // A name that there is no room for is no error.
        let here = maps.query(is_known as *const () as u64, Wanted::Any, &mut room);
        assert_eq!(here.unwrap().unwrap().mapping(&room).name, b"");
        assert!(matches!(
            maps.query(1 << 62, Wanted::Any, &mut []),
            Ok(None)
        ));
    }
}
