//! The kernel's mappings, asked for by address: PROCMAP_QUERY of /proc/PID/maps (Linux 6.11). What
//! that costs does not depend on how many mappings there are.

use crate::file::Fd;
use crate::{Errno, Result};

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
#[derive(Default)]
struct Query {
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
    /// ENOTTY: the kernel doesn't know the request.
    pub fn mapping_from<'n>(
        &self,
        addr: u64,
        wanted: Wanted,
        room: &'n mut [u8],
    ) -> Result<Option<Mapping<'n>>> {
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
        let mut asked = unsafe { self.ioctl(PROCMAP_QUERY, &raw mut query) };
        if asked == Err(Errno::NAMETOOLONG) {
            (query.name_size, query.name_addr) = (0, 0);
            // SAFETY: the same without a name.
            asked = unsafe { self.ioctl(PROCMAP_QUERY, &raw mut query) };
        }
        match asked {
            Ok(_) => (),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let name = room.get(..query.name_size as usize).unwrap_or(&[]);
        let has = |right| query.rights & right != 0;
        let right = |right, prot| if has(right) { prot } else { 0 };
        Ok(Some(Mapping {
            start: query.start,
            end: query.end,
            prot: right(READABLE, libc::PROT_READ)
                | right(WRITABLE, libc::PROT_WRITE)
                | right(EXECUTABLE, libc::PROT_EXEC),
            shared: has(SHARED),
            offset: query.offset,
            inode: query.inode,
            device: (query.dev_major, query.dev_minor),
            name: name.strip_suffix(b"\0").unwrap_or(name),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the kernel knows the request.
    fn is_known(maps: &Fd) -> bool {
        maps.mapping_from(0, Wanted::Any, &mut [0; 16]) != Err(Errno::NOTTY)
    }

    impl PartialEq for Mapping<'_> {
        fn eq(&self, other: &Self) -> bool {
            (self.start, self.end, self.name) == (other.start, other.end, other.name)
        }
    }

    #[test]
    fn the_kernel_says_what_its_list_says() {
        let maps = Fd::open_maps().unwrap();
        if !is_known(&maps) {
            eprintln!("skipped: no PROCMAP_QUERY before Linux 6.11");
            return;
        }
        let mut room = [0; 4096];
        let list = std::fs::read_to_string("/proc/self/maps").unwrap();
        let own = maps.mapping_from(is_known as *const () as u64, Wanted::Any, &mut room);
        let own = own.unwrap().unwrap();
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
        let maps = Fd::open_maps().unwrap();
        if !is_known(&maps) {
            eprintln!("skipped: no PROCMAP_QUERY before Linux 6.11");
            return;
        }
        let (local, mut room) = (0u64, [0; 16]);
        let at = &raw const local as u64;
        let next = maps.mapping_from(at, Wanted::Files, &mut room).unwrap();
        assert!(next.is_none_or(|file| file.start > at && file.inode != 0));
        // A name that there is no room for is no error.
        let here = maps.mapping_from(is_known as *const () as u64, Wanted::Any, &mut room);
        assert_eq!(here.unwrap().unwrap().name, b"");
        assert_eq!(maps.mapping_from(1 << 62, Wanted::Any, &mut []), Ok(None));
    }
}
