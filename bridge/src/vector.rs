//! Vectors of memory on two sides, cut into pieces that one system call takes.

use core::mem::MaybeUninit;
use regall_sys::Access;

pub use regall_sys::Segment;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the peer's memory into ours.
    Get,
    /// From ours into the peer's.
    Put,
}

impl Way {
    /// What is done with the peer's memory.
    pub fn access(self) -> Access {
        match self {
            Self::Get => Access::Read,
            Self::Put => Access::Write,
        }
    }
}

/// Segments of one side in one piece, at the most. The kernel's own limit is 1,024
/// (UIO_MAXIOV); this much is on the caller's stack.
pub const PIECE_SEGMENTS: usize = 128;
/// Bytes of one piece, at the most: what is copied again if the owner changes its memory
/// meanwhile. The kernel's limit for a call is a page below 2 GiB.
pub const PIECE_BYTES: u64 = 4 << 20;

/// A place in a vector.
#[derive(Clone, Copy)]
pub struct Cursor<'a> {
    rest: &'a [Segment],
    /// Bytes of the first segment that are behind us.
    into: u64,
}

impl<'a> Cursor<'a> {
    /// The beginning of a vector.
    pub fn new(segments: &'a [Segment]) -> Self {
        Self {
            rest: segments,
            into: 0,
        }
    }

    /// The segment, or what is left of it, that begins here; empty ones are skipped.
    #[inline]
    pub fn here(&mut self) -> Option<Segment> {
        while let [first, tail @ ..] = self.rest {
            if first.len > self.into {
                return Some(Segment {
                    addr: first.addr.wrapping_add(self.into),
                    len: first.len - self.into,
                });
            }
            self.rest = tail;
            self.into = 0;
        }
        None
    }

    /// Goes on by `bytes`.
    #[inline]
    pub fn advance(&mut self, mut bytes: u64) {
        while let Some(here) = self.here() {
            if bytes < here.len {
                self.into += bytes;
                return;
            }
            bytes -= here.len;
            self.rest = self.rest.get(1..).unwrap_or(&[]);
            self.into = 0;
            if bytes == 0 {
                return;
            }
        }
    }

    /// Bytes from here to the end, up to `enough`.
    pub fn left(mut self, enough: u64) -> u64 {
        let mut sum = 0u64;
        while let (Some(here), true) = (self.here(), sum < enough) {
            sum = sum.saturating_add(here.len);
            self.advance(here.len);
        }
        sum.min(enough)
    }
}

/// Segments on the stack.
pub struct Few {
    segments: [MaybeUninit<Segment>; PIECE_SEGMENTS],
    used: usize,
    bytes: u64,
}

impl Few {
    /// A list without segments.
    #[inline(always)]
    pub const fn new() -> Self {
        Self {
            segments: [MaybeUninit::uninit(); PIECE_SEGMENTS],
            used: 0,
            bytes: 0,
        }
    }

    /// Makes an empty list in its place; what is not used is not written, either. (A constant
    /// would be copied, all of it.)
    #[inline(always)]
    pub fn start(place: &mut MaybeUninit<Self>) {
        let at = place.as_mut_ptr();
        // SAFETY: fields of `place`; the segments may be anything.
        unsafe { (&raw mut (*at).used).write(0) };
        // SAFETY: likewise.
        unsafe { (&raw mut (*at).bytes).write(0) };
    }

    /// Takes all segments out.
    #[inline]
    pub fn clear(&mut self) {
        self.used = 0;
        self.bytes = 0;
    }

    /// Adds the next ones from `cursor` on, up to `bytes` in all.
    #[inline]
    pub fn fill(&mut self, mut cursor: Cursor, bytes: u64) {
        while let (Some(here), true) = (cursor.here(), self.bytes < bytes) {
            let len = here.len.min(bytes - self.bytes);
            if !self.push(Segment { len, ..here }) {
                break;
            }
            cursor.advance(len);
        }
    }

    /// Adds one, if there is room. One that follows on the last becomes part of it.
    #[inline]
    pub fn push(&mut self, segment: Segment) -> bool {
        if let Some(last) = self.as_mut_slice().last_mut() {
            if last.addr.wrapping_add(last.len) == segment.addr {
                last.len += segment.len;
                self.bytes += segment.len;
                return true;
            }
        }
        let Some(place) = self.segments.get_mut(self.used) else {
            return false;
        };
        place.write(segment);
        self.used += 1;
        self.bytes += segment.len;
        true
    }

    /// Bytes of all of them.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts off what is beyond `bytes`.
    pub fn cut(&mut self, bytes: u64) {
        let mut left = bytes;
        let mut kept = 0;
        for s in self.as_mut_slice().iter_mut() {
            s.len = s.len.min(left);
            left -= s.len;
            kept += usize::from(s.len > 0);
        }
        self.used = kept;
        self.bytes = self.bytes.min(bytes);
    }

    /// All of them.
    #[inline]
    pub fn as_slice(&self) -> &[Segment] {
        // SAFETY: so many have been written.
        unsafe { core::slice::from_raw_parts(self.segments.as_ptr().cast(), self.used) }
    }

    fn as_mut_slice(&mut self) -> &mut [Segment] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(self.segments.as_mut_ptr().cast(), self.used) }
    }
}

impl Default for Few {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes_of(segments: &[Segment]) -> Vec<u64> {
        segments
            .iter()
            .flat_map(|s| s.addr..s.addr + s.len)
            .collect()
    }

    proptest! {
        #[test]
        fn pieces_are_the_whole(lens in proptest::collection::vec(0u64..50, 0..300), piece in 1u64..200) {
            let mut at = 0;
            let segments: Vec<Segment> = lens.iter().map(|&len| {
                at += len + 7 * (len % 2);
                Segment { addr: at - len, len }
            }).collect();
            let mut cursor = Cursor::new(&segments);
            prop_assert_eq!(cursor.left(u64::MAX), lens.iter().sum::<u64>());
            let mut got = Vec::new();
            while cursor.here().is_some() {
                let mut few = Few::new();
                few.fill(cursor, piece);
                prop_assert!(few.bytes() <= piece && few.bytes() > 0);
                prop_assert_eq!(few.bytes(), few.as_slice().iter().map(|s| s.len).sum::<u64>());
                got.extend(bytes_of(few.as_slice()));
                cursor.advance(few.bytes());
            }
            prop_assert_eq!(got, bytes_of(&segments));
        }

        #[test]
        fn a_cut_piece_is_its_beginning(lens in proptest::collection::vec(1u64..50, 1..100), keep in 1u64..2000) {
            let segments: Vec<Segment> = lens.iter().enumerate()
                .map(|(n, &len)| Segment { addr: n as u64 * 1000, len }).collect();
            let mut few = Few::new();
            few.fill(Cursor::new(&segments), u64::MAX);
            let all = bytes_of(few.as_slice());
            few.cut(keep);
            let kept = bytes_of(few.as_slice());
            prop_assert_eq!(kept.len() as u64, few.bytes());
            prop_assert_eq!(&kept[..], &all[..(keep as usize).min(all.len())]);
        }
    }
}
