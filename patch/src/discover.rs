//! Finds `syscall` instructions in executable memory and decides about each.
//! Reads code, writes nothing.

use super::decode::{arrives, boundary, Boundary, Effect, Flow, Insn, RAX};
use super::elf::{Bounds, Module};
use super::function::{Function, Numbers, Room};
use super::plan::{fits_at_once, kind_of_all, Entry, Kind, Plan, BREAKPOINT, JUMP_BYTES, MOV_EAX};
use super::Config;
use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_cmpeq_epi32, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8,
    _mm_or_si128, _mm_set1_epi32, _mm_set1_epi8, _mm_setr_epi32, _mm_setr_epi8, _mm_sub_epi32,
    _mm_sub_epi8,
};
use core::iter::successors;
use core::ops::Range;
use regall_directory::numbers::NUMBERS;

/// A wrapper function is at most this long; glibc's longest (msync) has 170 bytes.
const WRAPPER_BYTES: u64 = 256;

/// Compilers align functions to 16 bytes: padding is shorter than that.
const PADDING_MAX: u64 = 15;
/// `endbr64`, with which a function begins that may be called through a pointer.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Executable memory to look at.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    /// Address of the first byte.
    pub base: u64,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Whether the code is the C library's.
    pub libc: bool,
    /// The file that it is from.
    pub module: Option<&'a Module>,
    /// What is to be patched.
    pub config: Config,
    /// Where jumps of ours were before their code was mapped anew, near the site that is looked at;
    /// 0: nowhere. Such a place may still be said to be a part of the function before it.
    pub landed: [u64; 2],
}

impl Text<'_> {
    /// `function` as its file has it, without a jump of ours behind it.
    fn as_in_file(&self, function: Bounds) -> Bounds {
        let there = function.end.saturating_sub(JUMP_BYTES as u64);
        let ours = there > function.start && self.landed.contains(&there);
        let end = if ours { there } else { function.end };
        Bounds { end, ..function }
    }
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
    /// libc's site for calls that are cancellation points: see [`is_cancellable`].
    Cancellable,
}

/// The next `0f 05` in `bytes` at or after `from`.
pub fn next_syscall(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(block) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        if has_syscall(block) {
            break;
        }
        at = at.checked_add(64)?;
    }
    let rest = bytes.get(at..)?;
    rest.windows(2)
        .position(|w| w == [0x0f, 0x05])
        .and_then(|n| at.checked_add(n))
}

/// Whether a `0f 05` begins in the first 64 bytes of `block`.
#[inline]
fn has_syscall(block: &[u8; 65]) -> bool {
    let at = block.as_ptr();
    // SAFETY: SSE2 is part of x86-64; each pair of loads covers bytes n to n + 17
    // with n at most 48, and the block has 65.
    unsafe {
        let hits = |n: usize| {
            let first = _mm_loadu_si128(at.add(n).cast::<__m128i>());
            let second = _mm_loadu_si128(at.add(n + 1).cast::<__m128i>());
            _mm_and_si128(
                _mm_cmpeq_epi8(first, _mm_set1_epi8(0x0f)),
                _mm_cmpeq_epi8(second, _mm_set1_epi8(0x05)),
            )
        };
        let all = _mm_or_si128(
            _mm_or_si128(hits(0), hits(16)),
            _mm_or_si128(hits(32), hits(48)),
        );
        _mm_movemask_epi8(all) != 0
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

/// Decides about the `0f 05` at offset `at`. `room` is to work in.
pub fn inspect(text: &Text<'_>, at: usize, room: &mut Room) -> Verdict {
    let site = text.base.saturating_add(at as u64);
    let bounds = || Some(text.as_in_file(text.module?.function(site)?));
    let near = number_before(text.bytes, at);
    if let Some((Kind::Pass, _)) = near.map(|nr| kind_of_all(&Numbers::one(nr), text.config)) {
        return past_number(text, at, bounds(), room).unwrap_or(Verdict::Nothing);
    }
    inspect_in(text, at, bounds(), room)
}

/// What comes to the `syscall` at `at` past the number before it, which does not matter. A
/// branch that brings one that does also comes past the place of a patch.
fn past_number(
    text: &Text<'_>,
    at: usize,
    bounds: Option<Bounds>,
    room: &mut Room,
) -> Option<Verdict> {
    let bounds = bounds?;
    let first = usize::try_from(bounds.start.checked_sub(text.base)?).ok()?;
    let last = usize::try_from(bounds.end.checked_sub(text.base)?).ok()?;
    if !may_branch_to(text.bytes.get(first..last)?, at.checked_sub(first)?) {
        return None;
    }
    match by_function(text, at, bounds, room)? {
        Verdict::Patch(..) => Some(Verdict::Refuse),
        verdict => Some(verdict),
    }
}

/// Whether anything in `code` looks like a branch to offset `to`. Cheap: most calls are none
/// that matters, and their functions are not taken apart.
pub(super) fn may_branch_to(code: &[u8], to: usize) -> bool {
    let by = |distance: isize, end: usize| end.checked_add_signed(distance) == Some(to);
    let short = |at: usize| match code.get(at..).and_then(|c| c.first_chunk::<2>()) {
        Some([0x70..=0x7f | 0xe0..=0xe3 | 0xeb, d]) => {
            by(isize::from(*d as i8), at + 2) && may_begin(code, at)
        }
        _ => false,
    };
    // Offset of the distance.
    let long = |at: usize| match code
        .get(at.wrapping_sub(1)..)
        .and_then(|c| c.first_chunk::<5>())
    {
        Some([0x80..=0x8f | 0xe9, d @ ..]) => by(i32::from_le_bytes(*d) as isize, at + 4),
        _ => false,
    };
    let near = to.saturating_sub(130)..code.len().min(to.saturating_add(130));
    any_hit(code, near, |block, at| short_hits(block, to, at), short)
        || any_hit(
            code,
            0..code.len(),
            |block, at| long_hits(block, to, at),
            long,
        )
}

/// Whether `is` says yes to an offset in `within` for which `hits` has a bit, sixteen at a time.
fn any_hit(
    code: &[u8],
    within: Range<usize>,
    hits: impl Fn(&[u8; 19], usize) -> u32,
    is: impl Fn(usize) -> bool,
) -> bool {
    let mut at = within.start;
    while at < within.end {
        let Some(block) = code.get(at..).and_then(|rest| rest.first_chunk()) else {
            return (at..within.end).any(is);
        };
        let mut found = hits(block, at);
        while found != 0 {
            if is(at + found.trailing_zeros() as usize) {
                return true;
            }
            found &= found - 1;
        }
        at += 16;
    }
    false
}

/// At which of the first sixteen bytes of `block`, offset `at`, a branch of two bytes may begin
/// that goes to offset `to`, by its distance.
#[inline]
fn short_hits(block: &[u8; 19], to: usize, at: usize) -> u32 {
    let first = to.wrapping_sub(at).wrapping_sub(2) as i8;
    // SAFETY: SSE2 is part of x86-64, and the load covers bytes 1 to 16 of 19.
    unsafe {
        let steps = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let wanted = _mm_sub_epi8(_mm_set1_epi8(first), steps);
        let there = _mm_loadu_si128(block.as_ptr().add(1).cast::<__m128i>());
        _mm_movemask_epi8(_mm_cmpeq_epi8(there, wanted)) as u32
    }
}

/// The same of four bytes of distance that begin there.
#[inline]
fn long_hits(block: &[u8; 19], to: usize, at: usize) -> u32 {
    let first = to.wrapping_sub(at).wrapping_sub(4) as i32;
    let mut found = 0;
    for phase in 0..4 {
        // SAFETY: SSE2 is part of x86-64, and the load covers up to byte 18 of 19.
        let mask = unsafe {
            let steps = _mm_setr_epi32(0, 4, 8, 12);
            let wanted = _mm_sub_epi32(_mm_set1_epi32(first.wrapping_sub(phase)), steps);
            let there = _mm_loadu_si128(block.as_ptr().add(phase as usize).cast::<__m128i>());
            _mm_movemask_epi8(_mm_cmpeq_epi32(there, wanted)) as u32
        };
        found |= (mask & 0x1111) << phase;
    }
    found
}

/// Whether an instruction may begin at offset `at` of a function with this code: decoding falls
/// into step from one of four places before it.
fn may_begin(code: &[u8], at: usize) -> bool {
    let from = at.saturating_sub(48);
    let starts = if from == 0 { 1 } else { 4 };
    (from..from + starts).any(|start| arrives(code, start, at) == Some(true))
}

/// As [`inspect`], knowing the function that it is in.
pub fn inspect_in(text: &Text<'_>, at: usize, bounds: Option<Bounds>, room: &mut Room) -> Verdict {
    bounds
        .and_then(|bounds| by_function(text, at, bounds, room))
        .unwrap_or_else(|| by_itself(text, at))
}

/// Decides by the whole function. `None` if it can't be taken apart.
fn by_function(text: &Text<'_>, at: usize, bounds: Bounds, room: &mut Room) -> Option<Verdict> {
    let first = usize::try_from(bounds.start.checked_sub(text.base)?).ok()?;
    let last = usize::try_from(bounds.end.checked_sub(text.base)?).ok()?;
    let code = text.bytes.get(first..last)?;
    let end = at.checked_sub(first)?;
    let mut own = [0; WRAPPER_BYTES as usize];
    let whole = without_breakpoint(code, end, &mut own);
    let probed = whole.is_some();
    let code = whole.unwrap_or(code);
    let function = Function::decode(bounds.start, code, room)?;
    let Some(index) = function.index_at(end) else {
        return Some(Verdict::Nothing);
    };
    if !function.is_syscall(index) {
        return Some(Verdict::Nothing);
    }
    let (kind, number) = kind_of_all(&function.numbers(index), text.config);
    if kind == Kind::Pass {
        return Some(Verdict::Nothing);
    }
    let code = text.bytes.get(first..)?;
    if kind == Kind::Any && is_cancellable(code, at.checked_sub(first)?, &function, index) {
        return Some(Verdict::Cancellable);
    }
    let Some(len) = function.room_before(index) else {
        return Some(Verdict::Refuse);
    };
    let moved = code.get(end.checked_sub(len)?..end)?;
    // What ld.so will write to is to stay where it is.
    let relocates = text.module.is_some_and(|m| m.relocates_text);
    if relocates && !matches!(moved, [MOV_EAX, _, _, _, _]) {
        return Some(Verdict::Refuse);
    }
    let alone = Insn::decode(moved).is_some_and(|i| usize::from(i.len) == len);
    if !alone && (bounds.lands || entered(text, at, len, bounds, &function)) {
        return Some(Verdict::Refuse);
    }
    let wrapper =
        text.libc && bounds.end - bounds.start <= WRAPPER_BYTES && !function.uses_vectors();
    let entry = if wrapper { Entry::Call } else { Entry::Full };
    let site = text.base.checked_add(at as u64)?;
    let mut plan = Plan::new(site, kind, entry, number, moved)?;
    plan.verbs = text.config.verbs;
    // Where a function is entered a probe is put; what it replaces is to be the file's.
    let prologue = code.get(..end.checked_sub(len)?)?;
    // And a jump that can't be stored at once can't be put back while others run there.
    let split = !fits_at_once(plan.start(), JUMP_BYTES);
    let entered = prologue.is_empty() || prologue == ENDBR64;
    if entered || split {
        match landing(text, bounds, plan) {
            Some(by_landing) => plan = by_landing,
            None if probed => return Some(Verdict::Refuse),
            None => (),
        }
    }
    let leaky = plan.landing == 0 && function.is_target(index);
    Some(Verdict::Patch(plan, bounds.start, leaky))
}

/// `code`, a function, without the breakpoint in the place of its first byte, in `own`, if
/// there is one and it is known what was there: where the function's first instruction has
/// five bytes and the `syscall` at `at` is the second, it can only be what loads the number.
fn without_breakpoint<'a>(
    code: &[u8],
    at: usize,
    own: &'a mut [u8; WRAPPER_BYTES as usize],
) -> Option<&'a [u8]> {
    let &[BREAKPOINT, a, b, c, d, 0x0f, 0x05, ..] = code else {
        return None;
    };
    let number = u32::from_le_bytes([a, b, c, d]) as usize;
    let own = own.get_mut(..code.len())?;
    own.copy_from_slice(code);
    *own.first_mut()? = MOV_EAX;
    (at == JUMP_BYTES && number < NUMBERS).then_some(own)
}

/// `plan` by way of the padding behind its function, or behind others near it.
fn landing(text: &Text<'_>, bounds: Bounds, plan: Plan) -> Option<Plan> {
    let module = text.module?;
    let near = |function: &Bounds| plan.by_landing(function.end).is_some();
    let next = |function: &Bounds| {
        let start = |n| function.end.checked_add(n);
        (0..=PADDING_MAX).find_map(|n| module.function(start(n)?))
    };
    let last = |function: &Bounds| {
        let end = |n| function.start.checked_sub(n);
        (1..=PADDING_MAX + 1).find_map(|n| module.function(end(n)?))
    };
    let behind = successors(Some(bounds), next).take_while(near);
    let before = successors(last(&bounds), last).take_while(near);
    let mut found = None;
    for function in behind.chain(before) {
        let function = text.as_in_file(function);
        if falls_through(text, function) {
            continue;
        }
        let Some(there) = padding(text, module, function) else {
            continue;
        };
        // Rather where unwinders can be told that the landing is a part of the function.
        let extent = module.extent(function.start);
        if found.is_none() || extent.is_some() {
            let mut plan = plan.by_landing(function.end)?;
            plan.padding = there;
            let bytes = function.end.checked_sub(function.start)?;
            let bytes = u32::try_from(bytes).ok()?.checked_add(JUMP_BYTES as u32)?;
            plan.extent = (extent.unwrap_or(0), bytes);
            found = Some(plan);
        }
        if extent.is_some() {
            break;
        }
    }
    found
}

/// Whether the code of `function` goes on behind its end, or it can't be told. A compiler ends
/// a function with a call only if that does not come back.
fn falls_through(text: &Text<'_>, function: Bounds) -> bool {
    let mut goes_on = true;
    let end = walk(text, function, |insn, _| {
        goes_on = matches!(insn.flow(), Flow::Next | Flow::Branch(_));
        true
    });
    goes_on || end != Some(function.end)
}

/// Calls `f` with each instruction of `function` and the address behind it, until it says no. Where
/// the last one ends; `None`: something there is no instruction, or not in the text.
fn walk(text: &Text<'_>, function: Bounds, mut f: impl FnMut(&Insn, u64) -> bool) -> Option<u64> {
    let mut here = function.start;
    while here < function.end {
        let at = usize::try_from(here.checked_sub(text.base)?).ok()?;
        let insn = Insn::decode(text.bytes.get(at..)?)?;
        here = here.saturating_add(u64::from(insn.len));
        if !f(&insn, here) {
            break;
        }
    }
    Some(here)
}

/// What is behind `function`, if there is room for a jump, in no other one and where nobody comes.
fn padding(text: &Text<'_>, module: &Module, function: Bounds) -> Option<[u8; JUMP_BYTES]> {
    let at = function.end;
    let room = at..at.saturating_add(JUMP_BYTES as u64);
    let other = |byte| {
        module
            .function(byte)
            .is_some_and(|f| f.start != function.start)
    };
    if room.clone().any(other) {
        return None;
    }
    let code = |at: u64| {
        let from = usize::try_from(at.checked_sub(text.base)?).ok()?;
        text.bytes.get(from..)
    };
    let mut here = at;
    while here < room.end {
        let code = code(here)?;
        here = match (code.first(), Insn::decode(code)) {
            (Some(&BREAKPOINT), _) => here.saturating_add(1),
            (_, Some(insn)) if insn.is_nop() => here.saturating_add(u64::from(insn.len)),
            _ => return None,
        };
    }
    code(at)?.first_chunk().copied()
}

/// Whether the `syscall` at offset `at` of `function`, which has `code`, is that of glibc's
/// __syscall_cancel_arch (2.41 and later): it looks at its thread's cancellation flag, and a
/// cancellation that comes between that and the `syscall` is known by the interrupted address.
/// That must not be in a trampoline: the thread would go on, and sleep in the kernel for good.
fn is_cancellable(code: &[u8], at: usize, function: &Function<'_>, index: usize) -> bool {
    // testb $CANCELED_BITMASK, (%rdi): the flag is the first argument.
    let tests = |w: &[u8]| matches!(w, [0xf6, 0x07, _]);
    let before = code.get(..at).unwrap_or(&[]);
    let returns = code.get(at.saturating_add(2)) == Some(&0xc3);
    returns && function.leaves_before(index) && before.windows(3).any(tests)
}

/// Whether code outside the function may jump into the middle of the `len` bytes
/// before `at`. Only what the compiler split off the function does such a thing,
/// and that is where the function itself jumps to.
fn entered(
    text: &Text<'_>,
    at: usize,
    len: usize,
    bounds: Bounds,
    function: &Function<'_>,
) -> bool {
    let site = text.base.saturating_add(at as u64);
    let middle = site.saturating_sub(len as u64).saturating_add(1)..site;
    let mut last = bounds;
    function.exits().any(|exit| {
        let to = bounds.start.wrapping_add_signed(exit);
        if last.start <= to && to < last.end {
            return false;
        }
        let part = text.module.and_then(|m| m.function(to));
        last = part.unwrap_or(last);
        part.is_none_or(|part| jumps_into(text, part, &middle))
    })
}

/// Whether the code in `part` jumps into `middle`, or can't be told.
fn jumps_into(text: &Text<'_>, part: Bounds, middle: &Range<u64>) -> bool {
    let mut found = false;
    let end = walk(text, part, |insn, behind| {
        if let Flow::Jump(distance) | Flow::Branch(distance) = insn.flow() {
            found = middle.contains(&behind.wrapping_add_signed(i64::from(distance)));
        }
        !found
    });
    found || end.is_none()
}

/// Decides where nothing tells the function's bounds. It may be data, and what is
/// overwritten there is lost: so only a number right before the `syscall` makes
/// a patch.
fn by_itself(text: &Text<'_>, at: usize) -> Verdict {
    let bytes = text.bytes;
    let certain = match boundary(bytes, at) {
        Boundary::No => return Verdict::Nothing,
        Boundary::Yes => true,
        Boundary::Unclear => false,
    };
    if let Some(number) = number_before(bytes, at) {
        return by_number(text, at, number).unwrap_or(Verdict::Nothing);
    }
    let number = straight_number(bytes, at).map_or(Numbers::ANY, Numbers::one);
    let matters = kind_of_all(&number, text.config).0 != Kind::Pass;
    // A file that lists its functions but not this one has it by hand, and by
    // hand the number is loaded last; or it is a table.
    let listed = text.module.is_some_and(Module::has_functions);
    let code = certain && (!listed || loaded_before(bytes, at));
    if matters && code {
        Verdict::Refuse
    } else {
        Verdict::Nothing
    }
}

/// Decides by the `mov` of a number right before the `syscall`.
fn by_number(text: &Text<'_>, at: usize, number: u32) -> Option<Verdict> {
    let (kind, number) = kind_of_all(&Numbers::one(number), text.config);
    let code = text.bytes.get(..at)?;
    let moved = match code {
        [.., 0xb8, _, _, _, _] => code.last_chunk::<5>()?.as_slice(),
        [.., 0x48, 0xc7, 0xc0, _, _, _, _] => code.last_chunk::<7>()?.as_slice(),
        _ => return None,
    };
    let site = text.base.checked_add(at as u64)?;
    let mut plan = Plan::new(site, kind, Entry::Full, number, moved)?;
    plan.verbs = text.config.verbs;
    Some(Verdict::Patch(plan, 0, false))
}

/// Whether the instruction that ends at `at` puts something into rax.
fn loaded_before(bytes: &[u8], at: usize) -> bool {
    (1..=15usize).any(|len| {
        let insn = at
            .checked_sub(len)
            .and_then(|start| Insn::decode(bytes.get(start..at)?));
        let meant = |insn: &Insn| usize::from(insn.len) == len && insn.effect(RAX) != Effect::Keeps;
        insn.filter(meant).is_some() && boundary(bytes, at.saturating_sub(len)) == Boundary::Yes
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
