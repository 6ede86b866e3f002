//! What kind of file system a mapping's file is on.
//!
//! The kernel's list of mappings gives each file's device, and the list of mounts each device's
//! file system. No file is asked for by its name: a server that is gone never answers that.

use crate::sys::file::Fd;
use crate::sys::{time, with_own_table};
use crate::text::number;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use regall_directory::maps::{LineError, Lines};

/// A kind of file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mounted {
    /// The file system's files are memory.
    Memory,
    /// The file system is of this machine.
    Local,
    /// Somebody else answers for it, perhaps never.
    Remote,
    /// The device is not in the list: the kernel's own, or out of this process's sight.
    Unlisted,
}

const MEMORY: [&[u8]; 3] = [b"tmpfs", b"hugetlbfs", b"devtmpfs"];
/// 9p and virtiofs are a virtual machine's: what answers for them is what runs it.
const LOCAL: [&[u8]; 16] = [
    b"ext2",
    b"ext3",
    b"ext4",
    b"xfs",
    b"btrfs",
    b"overlay",
    b"f2fs",
    b"zfs",
    b"bcachefs",
    b"squashfs",
    b"erofs",
    b"iso9660",
    b"vfat",
    b"ramfs",
    b"9p",
    b"virtiofs",
];

/// Devices that are remembered.
const DEVICES: usize = 16;
/// How long they are: a device's number is used again after an unmount.
const TICK_BITS: u32 = 30; // of nanoseconds: about a second
/// A device's number, the tick, and what it is, in one word; 0: nothing.
static KNOWN: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];

/// The file system of the device with this number.
#[cold]
#[inline(never)]
pub fn of_device(major: u32, minor: u32) -> Mounted {
    let tick = (time::now() >> TICK_BITS) & 0xff_ffff;
    // 12 and 20 bits, as the kernel has them (MINORBITS).
    let key = (u64::from(major & 0xfff) << 20 | u64::from(minor & 0xf_ffff)) << 32 | tick << 8;
    let place = KNOWN.get((major ^ minor) as usize % DEVICES);
    let known = place.map_or(0, |p| p.load(Relaxed));
    match known ^ key {
        1 => return Mounted::Memory,
        2 => return Mounted::Local,
        3 => return Mounted::Remote,
        4 => return Mounted::Unlisted,
        _ => (),
    }
    let found = look_up(major, minor);
    let word = match found {
        Mounted::Memory => 1,
        Mounted::Local => 2,
        Mounted::Remote => 3,
        Mounted::Unlisted => 4,
    };
    if let Some(place) = place {
        place.store(key | word, Relaxed);
    }
    found
}

fn look_up(major: u32, minor: u32) -> Mounted {
    with_own_table(|| look_in_the_list(major, minor))
}

fn look_in_the_list(major: u32, minor: u32) -> Mounted {
    let Ok(fd) = Fd::open(c"/proc/self/mountinfo", libc::O_RDONLY, 0) else {
        return Mounted::Unlisted;
    };
    let (mut buffer, mut at) = ([0u8; 4608], 0);
    let mut lines = Lines::new(&mut buffer, |b: &mut [u8]| fd.read_on(&mut at, b));
    while let Some(line) = lines.next_line() {
        let line = match line {
            Ok(line) => line,
            Err(LineError::TooLong) => continue,
            // It may fail each time.
            Err(LineError::Read(_)) => break,
        };
        match parse(line) {
            Some((device, kind)) if device == (u64::from(major), u64::from(minor)) => return kind,
            _ => (),
        }
    }
    Mounted::Unlisted
}

/// The device in a line of /proc/PID/mountinfo, and what it is.
fn parse(line: &[u8]) -> Option<((u64, u64), Mounted)> {
    let mut words = line.split(|b| *b == b' ');
    let mut device = words.nth(2)?.split(|b| *b == b':');
    let device = (number(device.next()?)?, number(device.next()?)?);
    // Any number of optional fields end with a lone "-".
    let kind = words.skip_while(|w| *w != b"-").nth(1)?;
    let kind = match kind {
        _ if MEMORY.contains(&kind) => Mounted::Memory,
        _ if LOCAL.contains(&kind) => Mounted::Local,
        _ => Mounted::Remote,
    };
    Some((device, kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn lines_of_mounts() {
        let kind = |line: &[u8]| parse(line);
        assert_eq!(
            kind(b"25 30 0:23 / /dev/shm rw,nosuid shared:4 master:7 - tmpfs tmpfs rw"),
            Some(((0, 23), Mounted::Memory))
        );
        assert_eq!(
            kind(b"30 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n"),
            Some(((254, 1), Mounted::Local))
        );
        assert_eq!(
            kind(b"9 1 0:50 /a\\040b /nfs rw - nfs4 server:/x rw,vers=4.2"),
            Some(((0, 50), Mounted::Remote))
        );
        for bad in [
            &b""[..],
            b"1 2 3:4 / / rw",
            b"1 2 x:4 / / rw - ext4 a b",
            b"1 2 3 / / -",
        ] {
            assert_eq!(kind(bad), None);
        }
    }

    #[test]
    fn what_is_mounted_here() {
        let device = |path| {
            let dev = std::fs::metadata(path).expect(path).dev();
            (libc::major(dev), libc::minor(dev))
        };
        let (major, minor) = device("/dev/shm");
        for _ in 0..2 {
            assert_eq!(of_device(major, minor), Mounted::Memory);
        }
        assert_eq!(of_device(0xfff, 0xf_fffe), Mounted::Unlisted);
    }
}
