//! Cookies: scattered segments of a process's memory under a 64-bit number, in the manner
//! of KNEM's.
//!
//! An owner keeps what it has given cookies to in a file beside its directory ([`layout`],
//! [`owner`]). A cookie says whose it is; who has it finds the file ([`table`]) and reads, writes
//! or copies by cookie, offset and length, without knowing the segments ([`circle`]). Errors are
//! KNEM's: EINVAL for a cookie that is unknown or used up, EACCES for protection, EPERM for
//! somebody else's, and 0 bytes behind the end. To these comes ESTALE, for memory that has gone
//! or a cookie that was destroyed meanwhile. The C interface and `docs/` say *region* for what is
//! under a cookie, as KNEM does.

pub mod circle;
pub mod entry;
pub mod layout;
pub mod owner;
pub mod table;

use regall_sys::random;

/// What a region is known by: the owner's pid in the low bits, the rest at random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cookie(pub u64);

/// Bits of a pid: pid_max is 2^22 at most.
const PID_BITS: u32 = 22;

impl Cookie {
    /// A new one of the process `pid`.
    pub fn of(pid: u32) -> Self {
        loop {
            let cookie = Self(random() << PID_BITS | u64::from(pid));
            // 0 stands for none in the table.
            if cookie.place() != 0 {
                return cookie;
            }
        }
    }

    /// Its owner's pid.
    pub fn pid(self) -> u32 {
        self.0 as u32 & ((1 << PID_BITS) - 1)
    }

    /// Its random part, which says where to look for it.
    pub fn place(self) -> u64 {
        self.0 >> PID_BITS
    }
}

/// What others may do with a region, and how often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    bits: u64,
}

impl Rights {
    /// Others may read it; as PROT_READ.
    pub const READ: u32 = 1;
    /// Others may write it; as PROT_WRITE.
    pub const WRITE: u32 = 2;
    /// The first that uses it is the last.
    pub const SINGLE_USE: u32 = 1;
    /// The owner is told of uses.
    pub const NOTIFY: u32 = 4;

    /// From protection and flags; `None` if there are bits without a meaning, or it
    /// could neither be read nor written.
    pub const fn new(prot: u32, flags: u32) -> Option<Self> {
        let known = flags & !(Self::SINGLE_USE | Self::NOTIFY) == 0;
        let prots = prot & !(Self::READ | Self::WRITE) == 0 && prot != 0;
        match known && prots {
            true => Some(Self::from_bits(prot as u64 | (flags as u64) << 32)),
            false => None,
        }
    }

    const fn from_bits(bits: u64) -> Self {
        Self { bits }
    }

    /// Whether it may be written, or read.
    pub const fn permits(self, write: bool) -> bool {
        let bit = match write {
            true => Self::WRITE,
            false => Self::READ,
        };
        self.bits as u32 & bit != 0
    }

    /// Whether all of these flags are set.
    pub const fn has(self, flags: u32) -> bool {
        (self.bits >> 32) as u32 & flags == flags
    }
}
