//! Ways to copy between two processes, each behind the same two questions: *can it run
//! between us two?* ([`States`], answered by the real call) and *do it*.

pub mod cma;
pub mod helper;
pub mod knem;
pub mod map;
pub mod xpmem;

use crate::peer::Peer;
use crate::transfer::Way;
use crate::vector::Segment;
use core::sync::atomic::{AtomicU32, Ordering::*};
use regall_directory::layout::Counter;
use regall_directory::settings::copy_bits;
use regall_sys::{Errno, Result};

/// A mechanism.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The peer's memory, mapped here, where it can be mapped.
    Map = 0,
    /// The same through the XPMEM module.
    Xpmem = 1,
    /// Cross Memory Attach: process_vm_readv(2), and /proc/PID/mem for a few bytes.
    Cma = 2,
    /// The KNEM module; for regions alone.
    Knem = 3,
    /// A thread of the owner's.
    Helper = 4,
}

impl Kind {
    /// All of them, in the order of `auto`.
    pub const ALL: [Self; 5] = [Self::Map, Self::Xpmem, Self::Cma, Self::Knem, Self::Helper];

    /// Its counters: transfers, and their bytes.
    pub const fn counters(self) -> (Counter, Counter) {
        match self {
            Self::Map => (Counter::CopyMap, Counter::CopyMapBytes),
            Self::Xpmem => (Counter::CopyXpmem, Counter::CopyXpmemBytes),
            Self::Cma => (Counter::CopyCma, Counter::CopyCmaBytes),
            Self::Knem => (Counter::CopyKnem, Counter::CopyKnemBytes),
            Self::Helper => (Counter::CopyHelper, Counter::CopyHelperBytes),
        }
    }

    /// Its name in REGALL_COPY.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::Xpmem => "xpmem",
            Self::Cma => "cma",
            Self::Knem => "knem",
            Self::Helper => "helper",
        }
    }
}

/// REGALL_COPY: which mechanisms are tried, in which order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    kinds: [Option<Kind>; Kind::ALL.len()],
    /// Whether the size has a say in it.
    auto: bool,
}

impl Order {
    /// `auto`.
    pub const AUTO: Self = Self {
        kinds: [
            Some(Kind::Map),
            Some(Kind::Xpmem),
            Some(Kind::Cma),
            Some(Kind::Knem),
            Some(Kind::Helper),
        ],
        auto: true,
    };

    /// `off`.
    pub const OFF: Self = Self {
        kinds: [None; Kind::ALL.len()],
        auto: false,
    };

    /// From `auto`, `off`, or names with commas between them, each at most once.
    pub fn parse(value: &[u8]) -> Option<Self> {
        match value {
            b"auto" => return Some(Self::AUTO),
            b"off" => return Some(Self::OFF),
            _ => (),
        }
        let mut order = Self::OFF;
        for word in value.split(|b| *b == b',') {
            let named = |k: &Kind| k.word().as_bytes() == word;
            let kind = Kind::ALL.into_iter().find(named)?;
            if order.has(kind) {
                return None;
            }
            let free = order.kinds.iter_mut().find(|k| k.is_none())?;
            *free = Some(kind);
        }
        Some(order)
    }

    /// Whether `kind` is among them.
    pub fn has(&self, kind: Kind) -> bool {
        self.kinds().any(|k| k == kind)
    }

    /// The mechanisms, the one to be tried first first.
    #[inline]
    pub fn kinds(&self) -> impl Iterator<Item = Kind> + '_ {
        self.kinds.iter().map_while(|k| *k)
    }

    /// Whether the size may decide, too.
    pub fn is_auto(&self) -> bool {
        self.auto
    }

    /// As the directory has it.
    pub fn bits(&self) -> u64 {
        copy_bits(self.kinds().map(|k| k as usize), self.auto)
    }
}

/// Which mechanisms can't run between this process and a peer, each found out by trying.
pub struct States {
    refused: AtomicU32,
}

impl Default for States {
    fn default() -> Self {
        Self::new()
    }
}

impl States {
    /// Nothing is known yet.
    pub const fn new() -> Self {
        Self {
            refused: AtomicU32::new(0),
        }
    }

    /// Whether `kind` is worth trying.
    #[inline]
    pub fn hopeful(&self, kind: Kind) -> bool {
        self.refused.load(Relaxed) & (1 << kind as u32) == 0
    }

    /// `kind` can't run.
    pub fn refuse(&self, kind: Kind) {
        self.refused.fetch_or(1 << kind as u32, Relaxed);
    }
}

/// Why a mechanism did not copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum No {
    /// It can't run between these two processes.
    Never,
    /// It is not for this memory.
    NotThis,
    /// It tried, and this is what came of it.
    Failed(Errno),
}

/// Copies from the beginning of one side to the end of the shorter one, by the first
/// mechanism that will. Bytes copied, at least 1, which one it was, and whether it is proven
/// that they are of this peer's memory, whoever has its pid; errors as
/// [`crate::transfer::transfer`]. `knem` is the cookie (0: none) that the KNEM module has for
/// the region by which the remote segments are got at, and their offset in it.
///
/// # Safety
/// The local segments are valid to be written (get) or read (put).
#[inline]
pub unsafe fn copy(
    peer: &Peer,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
    knem: Option<(u64, u64)>,
) -> Result<(u64, Kind, bool)> {
    let (mut fewer, mut proven) = (false, false);
    for kind in peer.order().kinds() {
        if !peer.states().hopeful(kind) {
            continue;
        }
        let copied = match kind {
            // SAFETY: by the contract above.
            Kind::Cma => unsafe { cma::copy(peer, way, local, remote, &mut proven) },
            // SAFETY: likewise.
            Kind::Knem => unsafe { knem::copy(way, local, remote, knem) },
            // SAFETY: by the contract above.
            Kind::Helper => unsafe { helper::copy(peer, way, local, remote) },
            // SAFETY: by the contract above.
            Kind::Map => unsafe { map::copy(peer, way, local, remote) },
            // SAFETY: by the contract above.
            Kind::Xpmem => unsafe { xpmem::copy(peer, way, local, remote) },
        };
        match copied {
            Ok(bytes) => return Ok((bytes, kind, proven)),
            Err(No::Never) => {
                peer.states().refuse(kind);
                fewer = true;
            }
            Err(No::NotThis) => (),
            Err(No::Failed(e)) => return Err(e),
        }
    }
    match fewer {
        // What did not pay may be all that is left.
        // SAFETY: by the contract above.
        true => unsafe { again(peer, way, local, remote, knem) },
        false => Err(Errno::PERM),
    }
}

#[cold]
unsafe fn again(
    peer: &Peer,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
    knem: Option<(u64, u64)>,
) -> Result<(u64, Kind, bool)> {
    // SAFETY: by the caller's contract. Ends: each time there is a mechanism less.
    unsafe { copy(peer, way, local, remote, knem) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regall_directory::settings::{each, MECHANISMS};

    #[test]
    fn the_directory_has_the_same_names() {
        for (n, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!((kind as usize, kind.word()), (n, MECHANISMS[n]));
        }
        let told = |value: &[u8]| {
            let bits = Order::parse(value).unwrap().bits();
            let mut copy = String::new();
            let done: core::result::Result<(), ()> = each(bits, "", |name, value| {
                if name == "copy" {
                    copy = value.to_string();
                }
                Ok(())
            });
            assert_eq!(done, Ok(()));
            copy
        };
        for value in [
            "auto",
            "off",
            "cma",
            "helper,map",
            "knem,xpmem,helper,cma,map",
        ] {
            assert_eq!(told(value.as_bytes()), value);
        }
    }

    #[test]
    fn orders_are_lists() {
        assert_eq!(Order::parse(b"auto"), Some(Order::AUTO));
        assert_eq!(Order::parse(b"off").unwrap().kinds().count(), 0);
        let some = Order::parse(b"cma,map").unwrap();
        assert!(some.kinds().eq([Kind::Cma, Kind::Map]) && !some.is_auto());
        for bad in ["", "cma,", "cma,cma", "CMA", "cma map", "map,off"] {
            assert_eq!(Order::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
