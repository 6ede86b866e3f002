//! Finds `syscall` instructions in executable memory and decides about each.
//! Reads code, writes nothing.

use super::decode::{boundary, Boundary, Effect, Flow, Insn, RAX};
use super::elf::{Bounds, Module};
use super::function::{Function, Numbers, Op};
use super::plan::{kind_of_all, Entry, Kind, Plan, JUMP_BYTES};
use super::Config;
use core::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_and_si128, _mm_cmpeq_epi8, _mm_cmplt_epi32, _mm_loadu_si128,
    _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi32, _mm_set1_epi8, _mm_set_epi32, _mm_xor_si128,
};

/// A wrapper function is at most this long; glibc's longest (msync) has 170 bytes.
const WRAPPER_BYTES: u64 = 256;

/// Executable memory to look at.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    /// Address of the first byte.
    pub base: u64,
    /// The bytes.
    pub bytes: &'a [u8],
    /// It is the C library's.
    pub libc: bool,
    /// The file that it is from.
    pub module: Option<&'a Module>,
    /// What is to be patched.
    pub config: Config,
}

/// What a `syscall` in the bytes turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No instruction, or one whose number does not matter.
    Nothing,
    /// A site, the start of its function (0: not known), and whether the code
    /// also jumps straight to its `syscall`, past the patch.
    Patch(Plan, u64, bool),
    /// A site, or what may be one, that can't be patched.
    Refuse,
}

/// The next `0f 05` in `bytes` at or after `from`.
pub fn next_syscall(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(block) = bytes.get(at..).and_then(|rest| rest.get(..17)) {
        let hits = match_block(block);
        if hits != 0 {
            return at.checked_add(hits.trailing_zeros() as usize);
        }
        at = at.checked_add(16)?;
    }
    let tail = bytes.get(at..)?;
    tail.windows(2)
        .position(|w| w == [0x0f, 0x05])
        .and_then(|n| at.checked_add(n))
}

/// Which of the first 16 bytes of `block`, which has 17, begin a `0f 05`.
#[inline]
fn match_block(block: &[u8]) -> u32 {
    debug_assert!(block.len() >= 17);
    let at = block.as_ptr();
    // SAFETY: SSE2 is part of x86-64, and the caller's slice holds the 17 bytes
    // that the two loads cover.
    unsafe {
        let first = _mm_loadu_si128(at.cast::<__m128i>());
        let second = _mm_loadu_si128(at.add(1).cast::<__m128i>());
        let both = _mm_and_si128(
            _mm_cmpeq_epi8(first, _mm_set1_epi8(0x0f)),
            _mm_cmpeq_epi8(second, _mm_set1_epi8(0x05)),
        );
        _mm_movemask_epi8(both) as u32
    }
}

/// The number in the `mov $NR, %eax` or `xor %eax, %eax` right before
/// `bytes[at]`, by its bytes alone. What would be another register's or the
/// middle of something longer is left to the decoder.
fn number_before(bytes: &[u8], at: usize) -> Option<u32> {
    let code = bytes.get(..at)?;
    let (rest, number) = match code {
        [.., 0x48, 0xc7, 0xc0, a, b, c, d] => return Some(u32::from_le_bytes([*a, *b, *c, *d])),
        [rest @ .., 0xb8, a, b, c, d] => (rest, u32::from_le_bytes([*a, *b, *c, *d])),
        [rest @ .., 0x31, 0xc0] => (rest, 0),
        _ => return None,
    };
    let prefixed = rest.last().is_some_and(|b| (0x40..0x50).contains(b));
    (!prefixed && number < 0x1_0000).then_some(number)
}

/// Decides about the `0f 05` at offset `at`. `ops` is room to work in.
pub fn inspect(text: &Text<'_>, at: usize, ops: &mut [Op]) -> Verdict {
    let near = number_before(text.bytes, at);
    if let Some((Kind::Pass, _)) = near.map(|nr| kind_of_all(&Numbers::one(nr), text.config)) {
        return Verdict::Nothing;
    }
    let site = text.base.saturating_add(at as u64);
    inspect_in(text, at, text.module.and_then(|m| m.function(site)), ops)
}

/// As [`inspect`], knowing the function that it is in.
pub fn inspect_in(text: &Text<'_>, at: usize, bounds: Option<Bounds>, ops: &mut [Op]) -> Verdict {
    bounds
        .and_then(|bounds| by_function(text, at, bounds, ops))
        .unwrap_or_else(|| by_itself(text, at))
}

/// Decides by the whole function. `None` if it can't be taken apart.
fn by_function(text: &Text<'_>, at: usize, bounds: Bounds, ops: &mut [Op]) -> Option<Verdict> {
    let first = usize::try_from(bounds.start.checked_sub(text.base)?).ok()?;
    let last = usize::try_from(bounds.end.checked_sub(text.base)?).ok()?;
    let function = Function::decode(text.bytes.get(first..last)?, ops)?;
    let Some(index) = function.index_at(at.checked_sub(first)?) else {
        return Some(Verdict::Nothing);
    };
    if !function.is_syscall(index) {
        return Some(Verdict::Nothing);
    }
    let (kind, number) = kind_of_all(&function.numbers(index), text.config);
    if kind == Kind::Pass {
        return Some(Verdict::Nothing);
    }
    let Some(room) = function.room_before(index) else {
        return Some(Verdict::Refuse);
    };
    let moved = text.bytes.get(at.checked_sub(room)?..at)?;
    let alone = Insn::decode(moved).is_some_and(|i| usize::from(i.len) == room);
    if !alone && (bounds.lands || (function.leaves && entered(text, at, room))) {
        return Some(Verdict::Refuse);
    }
    let wrapper =
        text.libc && bounds.end - bounds.start <= WRAPPER_BYTES && !function.uses_vectors();
    let entry = if wrapper { Entry::Call } else { Entry::Full };
    let plan = Plan::new(
        text.base.checked_add(at as u64)?,
        kind,
        entry,
        number,
        moved,
    )?;
    Some(Verdict::Patch(
        plan,
        bounds.start,
        function.is_target(index),
    ))
}

/// Whether anything in the text looks like a jump into the middle of the `room` bytes before `at`: code that the compiler
/// split off a function jumps back into it.
fn entered(text: &Text<'_>, at: usize, room: usize) -> bool {
    // In 32-bit arithmetic, which wraps as the jumps' own does: text is smaller.
    let first = (at.wrapping_sub(room) as u32).wrapping_add(1);
    let inside = (room as u32).saturating_sub(1);
    let mut from = 0;
    while let Some(block) = text.bytes.get(from..).and_then(|rest| rest.get(..19)) {
        let hit = block_enters(block, (from as u32).wrapping_sub(first), inside);
        if hit && (from..from.saturating_add(16)).any(|n| jumps(text.bytes, n, first, inside)) {
            return true;
        }
        from = from.saturating_add(16);
    }
    (from..text.bytes.len()).any(|n| jumps(text.bytes, n, first, inside))
}

/// Whether there are a jump's opcode and distance around `bytes[at]`, to less
/// than `inside` from `first`.
fn jumps(bytes: &[u8], at: usize, first: u32, inside: u32) -> bool {
    let distance = bytes.get(at..).and_then(|rest| rest.first_chunk());
    let behind = (at as u32).wrapping_add(4);
    let near = distance.is_some_and(|d| {
        u32::from_le_bytes(*d)
            .wrapping_add(behind)
            .wrapping_sub(first)
            < inside
    });
    near && matches!(bytes.get(..at), Some([.., 0xe9] | [.., 0x0f, 0x80..=0x8f]))
}

/// Whether one of the 16 distances that begin in `block`, which has 19 bytes,
/// goes to less than `inside`, if the block begins at `at`.
#[inline]
fn block_enters(block: &[u8], at: u32, inside: u32) -> bool {
    debug_assert!(block.len() >= 19);
    let bytes = block.as_ptr();
    // SAFETY: SSE2 is part of x86-64, and the caller's slice holds the 19 bytes
    // that the four loads cover.
    unsafe {
        // Signed comparison of what is moved by 2^31 compares unsigned.
        let sign = _mm_set1_epi32(i32::MIN);
        let limit = _mm_xor_si128(_mm_set1_epi32(inside as i32), sign);
        let behind = _mm_add_epi32(_mm_set1_epi32(at as i32), _mm_set_epi32(16, 12, 8, 4));
        let hits = |n: usize| {
            let distances = _mm_loadu_si128(bytes.add(n).cast::<__m128i>());
            let to = _mm_add_epi32(_mm_add_epi32(distances, behind), _mm_set1_epi32(n as i32));
            _mm_cmplt_epi32(_mm_xor_si128(to, sign), limit)
        };
        let all = _mm_or_si128(
            _mm_or_si128(hits(0), hits(1)),
            _mm_or_si128(hits(2), hits(3)),
        );
        _mm_movemask_epi8(all) != 0
    }
}

/// Decides where nothing tells the function's bounds: only a site with one
/// instruction of five or more bytes before it is patched.
fn by_itself(text: &Text<'_>, at: usize) -> Verdict {
    let bytes = text.bytes;
    let near = number_before(bytes, at);
    let certain = match boundary(bytes, at) {
        Boundary::No => return Verdict::Nothing,
        Boundary::Yes => true,
        Boundary::Unclear => false,
    };
    if !certain && near.is_none() {
        return Verdict::Nothing;
    }
    let number = near.or_else(|| straight_number(bytes, at));
    let numbers = number.map_or(Numbers::ANY, Numbers::one);
    let (kind, number) = kind_of_all(&numbers, text.config);
    if kind == Kind::Pass {
        return Verdict::Nothing;
    }
    let plan = single_before(bytes, at).and_then(|moved| {
        Plan::new(
            text.base.checked_add(at as u64)?,
            kind,
            Entry::Full,
            number,
            moved,
        )
    });
    plan.map_or(Verdict::Refuse, |plan| Verdict::Patch(plan, 0, false))
}

/// The one instruction that ends at `at`, if it is long enough and can move.
fn single_before(bytes: &[u8], at: usize) -> Option<&[u8]> {
    (JUMP_BYTES..=15).find_map(|len| {
        let start = at.checked_sub(len)?;
        let insn = Insn::decode(bytes.get(start..at)?)?;
        let fits = usize::from(insn.len) == len && insn.movable();
        let meant = fits && boundary(bytes, start) == Boundary::Yes;
        meant.then(|| bytes.get(start..at))?
    })
}

/// What the straight line of code before `bytes[at]` leaves in eax.
fn straight_number(bytes: &[u8], at: usize) -> Option<u32> {
    let mut here = at.saturating_sub(64);
    let mut number = None;
    while here < at {
        let Some(insn) = bytes.get(here..).and_then(Insn::decode) else {
            number = None;
            here += 1;
            continue;
        };
        number = match (insn.flow(), insn.effect(RAX)) {
            (Flow::Next, Effect::Constant(nr)) => Some(nr),
            (Flow::Next, Effect::Keeps) => number,
            _ => None,
        };
        here += usize::from(insn.len);
    }
    number.filter(|_| here == at)
}
