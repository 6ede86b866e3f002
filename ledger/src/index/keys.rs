//! Start addresses as they are stored, and runs of them.

use crate::atomic::AtomicU64;
use crate::atomic::Ordering::Relaxed;

/// Keys in a node of the top: one cache line.
pub(super) const FAN: usize = 8;
/// Key of a place that holds none: above every row's.
pub(super) const NO_KEY: u64 = i64::MAX as u64;

/// A start address as it is stored, halved: the difference of two keys then
/// has the sign of their order (the vsyscall page is the one mapping above 2^63),
/// and counting signs is what a compiler makes good code of.
#[inline]
pub(super) const fn key(addr: u64) -> u64 {
    addr >> 1
}

/// Keys in one cache line.
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [AtomicU64; FAN]);

impl Line {
    /// How many keys are not above `key`.
    #[inline]
    pub(super) fn rank(&self, key: u64) -> usize {
        let next = key.wrapping_add(1);
        let below = |k: &AtomicU64| k.load(Relaxed).wrapping_sub(next) >> 63;
        let [a, b, c, d, e, f, g, h] = &self.0;
        let (ab, cd) = (below(a) + below(b), below(c) + below(d));
        let (ef, gh) = (below(e) + below(f), below(g) + below(h));
        (ab + cd + (ef + gh)) as usize
    }

    #[inline]
    pub(super) fn first(&self) -> u64 {
        let [first, ..] = &self.0;
        first.load(Relaxed)
    }
}

/// The lines as one run of words.
#[inline]
pub(super) fn words(lines: &[Line]) -> &[AtomicU64] {
    // SAFETY: Line is repr(C), 64 bytes long and nothing but its 8 words, so
    // n lines are 8 n words in a row; n * 8 can't overflow, the slice exists.
    unsafe { core::slice::from_raw_parts(lines.as_ptr().cast(), lines.len().wrapping_mul(FAN)) }
}

/// Moves the words `from..end` by `by` places towards the end.
#[inline]
pub(super) fn move_up(words: &[AtomicU64], from: usize, end: usize, by: usize) {
    let (Some(old), Some(new)) = (
        words.get(from..end),
        words.get(from.wrapping_add(by)..end.wrapping_add(by)),
    ) else {
        return;
    };
    for (o, n) in old.iter().zip(new).rev() {
        n.store(o.load(Relaxed), Relaxed);
    }
}

/// Moves the words `from..end` by `by` places towards the beginning.
#[inline]
pub(super) fn move_down(words: &[AtomicU64], from: usize, end: usize, by: usize) {
    let (Some(old), Some(new)) = (
        words.get(from..end),
        words.get(from.wrapping_sub(by)..end.wrapping_sub(by)),
    ) else {
        return;
    };
    for (o, n) in old.iter().zip(new) {
        n.store(o.load(Relaxed), Relaxed);
    }
}

/// Stores `value` in the words `from..end`.
#[inline]
pub(super) fn fill(words: &[AtomicU64], from: usize, end: usize, value: u64) {
    for w in words.get(from..end).unwrap_or_default() {
        w.store(value, Relaxed);
    }
}
