//! Page-aligned address ranges, checked once where they are made.

/// Bytes in a base page. x86-64 has no other; an architecture with a run-time
/// page size would make this a function.
pub const PAGE: u64 = 4096;

/// A non-empty, page-aligned range of user addresses, `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageRange {
    start: u64,
    end: u64,
}

impl PageRange {
    /// The range from `start` to `end`, both in bytes and page-aligned.
    /// `None` if either is not aligned or the range is empty.
    #[inline]
    pub const fn new(start: u64, end: u64) -> Option<Self> {
        if start % PAGE != 0 || end % PAGE != 0 || start >= end {
            return None;
        }
        Some(Self { start, end })
    }

    /// The pages that the kernel acts on for `(addr, len)` in bytes: `addr`
    /// must be aligned, `len` is rounded up to whole pages. `None` if `addr` is
    /// not aligned, `len` is 0, or the range wraps.
    #[inline]
    pub const fn from_call(addr: u64, len: u64) -> Option<Self> {
        let Some(bytes) = round_up(len) else {
            return None;
        };
        let Some(end) = addr.checked_add(bytes) else {
            return None;
        };
        Self::new(addr, end)
    }

    /// The pages that hold any byte of `(addr, len)`; `addr` need not be
    /// aligned. `None` if `len` is 0 or the range wraps.
    #[inline]
    pub const fn covering(addr: u64, len: u64) -> Option<Self> {
        let Some(last) = addr.checked_add(len) else {
            return None;
        };
        let Some(end) = round_up(last) else {
            return None;
        };
        if len == 0 {
            return None;
        }
        Self::new(addr & !(PAGE - 1), end)
    }

    /// First address.
    #[inline]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// First address after the range.
    #[inline]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // never empty, by construction
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether `addr` lies in the range.
    #[inline]
    pub const fn contains(self, addr: u64) -> bool {
        self.start <= addr && addr < self.end
    }

    /// Whether every byte of `other` lies in the range.
    #[inline]
    pub const fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether the two have a byte in common.
    #[inline]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The bytes in both.
    #[inline]
    pub const fn intersection(self, other: Self) -> Option<Self> {
        let start = if self.start > other.start {
            self.start
        } else {
            other.start
        };
        let end = if self.end < other.end {
            self.end
        } else {
            other.end
        };
        Self::new(start, end)
    }

    /// From the first byte of either to the last.
    #[inline]
    pub const fn hull(self, other: Self) -> Self {
        let (a, b) = (self, other);
        Self {
            start: if a.start < b.start { a.start } else { b.start },
            end: if a.end > b.end { a.end } else { b.end },
        }
    }

    /// What lies before `addr`, which is rounded by nobody: it must be aligned.
    #[inline]
    pub const fn before(self, addr: u64) -> Option<Self> {
        let end = if addr < self.end { addr } else { self.end };
        Self::new(self.start, end)
    }

    /// What lies at and after `addr`.
    #[inline]
    pub const fn after(self, addr: u64) -> Option<Self> {
        let start = if addr > self.start { addr } else { self.start };
        Self::new(start, self.end)
    }
}

impl core::fmt::Debug for PageRange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:x}-{:x}", self.start, self.end)
    }
}

/// `bytes` rounded up to whole pages; `None` where that wraps.
#[inline]
pub const fn round_up(bytes: u64) -> Option<u64> {
    match bytes.checked_add(PAGE - 1) {
        Some(b) => Some(b & !(PAGE - 1)),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_checked_where_it_is_made() {
        assert!(PageRange::new(0x1000, 0x3000).is_some());
        assert!(PageRange::new(0x1001, 0x3000).is_none());
        assert!(PageRange::new(0x3000, 0x3000).is_none());
        assert_eq!(
            PageRange::from_call(0x1000, 1),
            PageRange::new(0x1000, 0x2000)
        );
        assert!(PageRange::from_call(0x1000, 0).is_none());
        assert!(PageRange::from_call(0x1000, u64::MAX).is_none());
        assert!(PageRange::from_call(u64::MAX - 4095, 4096).is_none());
        assert_eq!(
            PageRange::covering(0x1fff, 2),
            PageRange::new(0x1000, 0x3000)
        );
        assert!(PageRange::covering(0x1000, 0).is_none());
    }

    #[test]
    fn parts_of_a_range() {
        let r = PageRange::new(0x1000, 0x4000).unwrap();
        assert_eq!(r.before(0x2000), PageRange::new(0x1000, 0x2000));
        assert_eq!(r.before(0x9000), Some(r));
        assert_eq!(r.after(0x4000), None);
        assert_eq!(
            r.intersection(PageRange::new(0x3000, 0x9000).unwrap()),
            PageRange::new(0x3000, 0x4000)
        );
        assert!(!r.overlaps(PageRange::new(0x4000, 0x5000).unwrap()));
    }
    #[test]
    fn every_end_of_a_range() {
        let new = |start, end| PageRange::new(start, end);
        let r = new(0x2000, 0x5000).unwrap();
        assert_eq!((r.start(), r.end(), r.len()), (0x2000, 0x5000, 0x3000));
        assert_eq!(format!("{r:?}"), "2000-5000");
        assert!(new(0x1000, 0x3001).is_none() && new(0x3000, 0x1000).is_none());
        for (addr, is) in [
            (0x1fff, false),
            (0x2000, true),
            (0x4fff, true),
            (0x5000, false),
        ] {
            assert_eq!(r.contains(addr), is, "{addr:x}");
        }
        for (start, end, covers, overlaps) in [
            (0x2000, 0x5000, true, true),
            (0x3000, 0x4000, true, true),
            (0x1000, 0x5000, false, true),
            (0x2000, 0x6000, false, true),
            (0x1000, 0x2000, false, false),
            (0x5000, 0x6000, false, false),
        ] {
            let other = new(start, end).unwrap();
            assert_eq!(r.covers(other), covers, "{other:?}");
            assert_eq!(r.overlaps(other), overlaps, "{other:?}");
            assert_eq!(other.overlaps(r), overlaps, "{other:?}");
            let both = new(start.max(0x2000), end.min(0x5000));
            assert_eq!(r.intersection(other), both, "{other:?}");
            let hull = new(start.min(0x2000), end.max(0x5000));
            assert_eq!(Some(r.hull(other)), hull, "{other:?}");
        }
    }

    #[test]
    fn what_lies_before_and_after() {
        let new = |start, end| PageRange::new(start, end);
        let r = new(0x2000, 0x5000).unwrap();
        for (addr, before, after) in [
            (0x1000, None, Some(r)),
            (0x2000, None, Some(r)),
            (0x3000, new(0x2000, 0x3000), new(0x3000, 0x5000)),
            (0x5000, Some(r), None),
            (0x6000, Some(r), None),
        ] {
            assert_eq!((r.before(addr), r.after(addr)), (before, after), "{addr:x}");
        }
    }

    #[test]
    fn bytes_are_rounded_to_pages() {
        assert_eq!(round_up(0), Some(0));
        assert_eq!(round_up(1), Some(PAGE));
        assert_eq!(round_up(PAGE), Some(PAGE));
        assert_eq!(round_up(PAGE + 1), Some(2 * PAGE));
        assert_eq!(round_up(u64::MAX - PAGE + 1), Some(u64::MAX - PAGE + 1));
        assert_eq!(round_up(u64::MAX - PAGE + 2), None);
        assert_eq!(PageRange::from_call(0x1001, 1), None);
        assert_eq!(
            PageRange::covering(0x2000, 0x1000),
            PageRange::new(0x2000, 0x3000)
        );
        assert_eq!(PageRange::covering(0x1fff, 0), None);
        assert_eq!(PageRange::covering(u64::MAX, 2), None);
        assert_eq!(PageRange::covering(u64::MAX - 1, 1), None);
    }
}
