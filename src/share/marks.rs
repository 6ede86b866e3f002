//! What the application has asked for memory that is a file's, beside its rights: a protection
//! key, a NUMA policy, advice. The kernel keeps it with the mapping; whatever is put in the
//! place of that has to get it again, before it is there.

use crate::sys::{self, Access, Errno, Result, Segment};
use regall_directory::addr::PageRange;

/// A set of them. All zeroes: nothing was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks(u32);

/// The kernel keeps 16 keys apart.
const KEY: u32 = 15;
const SEALED: u32 = 1 << 4;
/// Advice that stays with a mapping, and what takes it back; in the order of bits from
/// [`FIRST_ADVICE`] on.
const FIRST_ADVICE: u32 = 5;
/// A number of its NUMA policy, or none, from this bit on: memory with two policies is not one
/// part, whatever else it has in common.
const FIRST_POLICY: u32 = 16;
const ADVICE: [i32; 6] = [
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_MERGEABLE,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_DONTDUMP,
];
/// Bits of a node mask.
const NODES: u64 = 1024;

const fn bit(advice: i32) -> u32 {
    let mut n = 0;
    while n < ADVICE.len() {
        if ADVICE[n] == advice {
            return 1 << (FIRST_ADVICE + n as u32);
        }
        n += 1;
    }
    0
}

impl Marks {
    /// No mark.
    pub const NONE: Self = Self(0);

    /// Marks memory with the protection key `key`.
    pub fn with_key(self, key: u64) -> Self {
        Self(self.0 & !KEY | key as u32 & KEY)
    }

    /// Marks memory with the NUMA policy `policy`.
    pub fn with_policy(self, policy: Option<&Policy>) -> Self {
        let number = policy.map_or(0, |p| u32::from(p.number()));
        Self(self.0 & ((1 << FIRST_POLICY) - 1) | number << FIRST_POLICY)
    }

    fn has_policy(self) -> bool {
        self.0 >> FIRST_POLICY != 0
    }

    /// Marks memory as sealed (mseal).
    pub fn sealed(self) -> Self {
        Self(self.0 | SEALED)
    }

    /// Whether it is sealed.
    pub fn is_sealed(self) -> bool {
        self.0 & SEALED != 0
    }

    /// The kernel has taken `advice`.
    pub fn advised(self, advice: i32) -> Self {
        let without = match advice {
            libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE => {
                bit(libc::MADV_HUGEPAGE) | bit(libc::MADV_NOHUGEPAGE)
            }
            libc::MADV_UNMERGEABLE => bit(libc::MADV_MERGEABLE),
            libc::MADV_RANDOM | libc::MADV_SEQUENTIAL | libc::MADV_NORMAL => {
                bit(libc::MADV_RANDOM) | bit(libc::MADV_SEQUENTIAL)
            }
            libc::MADV_DODUMP => bit(libc::MADV_DONTDUMP),
            _ => 0,
        };
        Self(self.0 & !without | bit(advice))
    }

    /// Whether `advice` is of the kind that stays with a mapping, or takes such back.
    pub fn know(advice: i32) -> bool {
        Self(u32::MAX).advised(advice) != Self(u32::MAX) || bit(advice) != 0
    }
}

/// A NUMA policy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    mode: u32,
    nodes: [u64; (NODES / 64) as usize],
}

impl Policy {
    /// The NUMA policy of the memory at `at`, if it has one of its own.
    pub fn at(at: u64) -> Option<Self> {
        let mut nodes = [0u64; (NODES / 64) as usize];
        let mode = sys::numa_policy(at, &mut nodes).ok()?;
        (mode != 0).then_some(Self { mode, nodes })
    }

    /// A number of it, which others seldom have; never 0.
    fn number(&self) -> u16 {
        let mix = |hash: u64, word: &u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = self.nodes.iter().fold(u64::from(self.mode), mix);
        ((hash >> 48) as u16).max(1)
    }
}

/// What new memory is to have, that comes to be where a part of a file's is.
#[derive(Clone, Copy)]
pub struct Kept {
    marks: Marks,
    policy: Option<Policy>,
}

impl Kept {
    /// Nothing in particular.
    pub const NOTHING: Self = Self {
        marks: Marks::NONE,
        policy: None,
    };

    /// What a part at `at` with `marks` has. While it is still mapped: its policy is the
    /// kernel's to say.
    pub fn of(marks: Marks, at: u64) -> Self {
        let policy = if marks.has_policy() {
            Policy::at(at)
        } else {
            None
        };
        Self { marks, policy }
    }

    /// Whether it is nothing in particular.
    pub fn is_nothing(&self) -> bool {
        self.marks.0 & !SEALED == 0
    }

    /// New memory at `range`, with the rights `prot`, gets it.
    pub fn give(&self, range: PageRange, prot: u64) -> Result<()> {
        let (at, len) = (range.start(), range.len());
        for (n, advice) in ADVICE.iter().enumerate() {
            if self.marks.0 & 1 << (FIRST_ADVICE + n as u32) != 0 {
                // Hints, on which nothing depends but speed and dumps.
                let _ = sys::advise(at, len, *advice);
            }
        }
        if let Some(Policy { mode, nodes }) = &self.policy {
            let _ = sys::set_numa_policy(at, len, *mode, nodes);
        }
        match u64::from(self.marks.0 & KEY) {
            0 => Ok(()),
            // SAFETY: new memory, which is to have what was there before it.
            key => unsafe { sys::protect_by_key(at, len, (prot & 7) as i32, key) },
        }
    }
}

/// As [`super::place()`], of memory that has what is `kept` from the moment at which it is there.
pub fn place(
    range: PageRange,
    prot: u64,
    how: i32,
    fd: i32,
    offset: u64,
    kept: &Kept,
) -> Result<()> {
    if kept.is_nothing() {
        return super::place::place(range, prot, how, fd, offset);
    }
    let len = range.len();
    // SAFETY: where nothing is.
    let at = unsafe { sys::map(0, len, (prot & 7) as i32, how, fd, offset) }?;
    let new = PageRange::from_call(at, len).ok_or(Errno::NOMEM)?;
    super::place::unlock_as(sys::is_locked(range.start()), new);
    let moved = kept.give(new, prot).and_then(|()| {
        // SAFETY: new memory, in the place of what is to be replaced.
        unsafe { sys::move_mapping(at, len, range.start()) }
    });
    if moved.is_err() {
        // SAFETY: mapped above; nobody knows of it.
        let _ = unsafe { sys::unmap(at, len) };
    }
    moved
}

/// As [`super::place_fresh`], likewise.
pub fn place_fresh(range: PageRange, prot: u64, kept: &Kept) -> Result<()> {
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    place(range, prot, how, -1, 0, kept)
}

/// Zeroes in `range`, where no new memory can be put (it is sealed). EFAULT: it can't be
/// written to.
pub fn clear(range: PageRange) -> Result<()> {
    const PIECES: usize = 64;
    let zeroes = [0u8; 4096];
    let one = Segment {
        addr: zeroes.as_ptr() as u64,
        len: zeroes.len() as u64,
    };
    let local = [one; PIECES];
    let mut from = range.start();
    while let Some(rest) = range.after(from) {
        let most = (PIECES * zeroes.len()) as u64;
        let part = rest.before(from + most).unwrap_or(rest);
        let remote = Segment {
            addr: part.start(),
            len: part.len(),
        };
        let few = local.get(..(part.len() / one.len) as usize);
        let (few, us) = (few.unwrap_or(&[]), sys::getpid());
        // SAFETY: memory that is to be cleared.
        let done = unsafe { sys::copy_between(Access::Write, us, few, &[remote]) }?;
        if done == 0 {
            return Err(Errno::FAULT);
        }
        from += done;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_taken_back_by_its_opposite() {
        let m = Marks::NONE.with_key(5).advised(libc::MADV_HUGEPAGE);
        assert_eq!(
            m.advised(libc::MADV_NOHUGEPAGE)
                .advised(libc::MADV_HUGEPAGE),
            m
        );
        assert_ne!(m.advised(libc::MADV_NOHUGEPAGE), m);
        let m = m.advised(libc::MADV_MERGEABLE);
        assert_eq!(
            m.advised(libc::MADV_UNMERGEABLE)
                .advised(libc::MADV_MERGEABLE),
            m
        );
        assert_eq!(m.advised(libc::MADV_DONTDUMP).advised(libc::MADV_DODUMP), m);
        assert_eq!(m.advised(libc::MADV_RANDOM).advised(libc::MADV_NORMAL), m);
        assert_eq!(m.advised(libc::MADV_DONTNEED), m);
        assert_eq!(m.with_key(0).with_key(5), m);
        assert_eq!(m.with_policy(None), m);
        assert!(!m.is_sealed() && m.sealed().is_sealed());
        let bound = |mode| {
            let nodes = [1; (NODES / 64) as usize];
            m.with_policy(Some(&Policy { mode, nodes }))
        };
        assert_ne!(bound(2), bound(3));
        assert_ne!(bound(2), m);
        assert_eq!(bound(2).with_policy(None), m);
        assert!(Marks::know(libc::MADV_DODUMP) && Marks::know(libc::MADV_RANDOM));
        assert!(Marks::know(libc::MADV_NORMAL) && Marks::know(libc::MADV_DONTDUMP));
        assert!(!Marks::know(libc::MADV_DONTNEED) && !Marks::know(libc::MADV_DONTFORK));
    }
}
