//! One function taken apart: where its instructions begin, where its branches
//! go, and with which call numbers it comes to a `syscall`.

use super::decode::{Effect, Flow, Insn, RAX};

/// Instructions of a function that can be looked at; longer ones are not.
pub const OPS_MAX: usize = 6144;
/// Steps of the search for a call number. Past them it is unknown.
const STEPS_MAX: u32 = 2000;
/// Joins of control flow that the search remembers.
const JOINS_MAX: usize = 96;
/// Places that the search still has to go to.
const PENDING_MAX: usize = 48;

/// Registers that mean something where a function begins: its arguments, and
/// rax, which counts vector arguments. No code reads another one before it
/// wrote to it.
const ARGUMENTS: u16 = 0x03c7;

/// A branch of the function goes to this instruction.
const TARGET: u8 = 1;
/// A branch goes into the middle of it (over a lock prefix, in old glibc).
const INTERIOR: u8 = 2;
/// The one behind it can come next.
const FALLS: u8 = 4;
/// Not a branch.
const NOWHERE: u32 = u32::MAX;
/// A branch out of the function.
const OUTSIDE: u32 = u32::MAX - 1;

/// Where one instruction is and goes.
#[derive(Clone, Copy, Default)]
pub struct Op {
    /// Offset in the function.
    at: u32,
    /// Offset that it branches to.
    to: u32,
    len: u8,
    flags: u8,
}

impl Op {
    /// An unused element.
    pub const EMPTY: Self = Self {
        at: 0,
        to: NOWHERE,
        len: 0,
        flags: 0,
    };

    fn end(&self) -> usize {
        (self.at as usize).saturating_add(usize::from(self.len))
    }
}

/// The numbers that rax can hold at a `syscall`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Numbers {
    values: [u32; 4],
    count: usize,
    /// Whether there may be other values.
    pub open: bool,
}

impl Numbers {
    /// No number.
    const NONE: Self = Self {
        values: [0; 4],
        count: 0,
        open: false,
    };
    /// Any number.
    pub const ANY: Self = Self {
        values: [0; 4],
        count: 0,
        open: true,
    };

    /// One number.
    pub const fn one(nr: u32) -> Self {
        Self {
            values: [nr, 0, 0, 0],
            count: 1,
            open: false,
        }
    }

    /// The values that are known.
    pub fn known(&self) -> &[u32] {
        self.values.get(..self.count).unwrap_or(&[])
    }

    fn add(&mut self, nr: u32) {
        if self.known().contains(&nr) {
            return;
        }
        match self.values.get_mut(self.count) {
            Some(free) => {
                *free = nr;
                self.count += 1;
            }
            None => self.open = true,
        }
    }
}

/// Room to take a function apart in, and which one is in it: neighbouring
/// sites are often in the same one.
pub struct Room {
    ops: [Op; OPS_MAX],
    holds: Option<Holds>,
}

#[derive(Clone, Copy)]
struct Holds {
    start: u64,
    bytes: usize,
    count: usize,
    indirect: bool,
}

impl Room {
    /// A room with nothing in it.
    #[allow(clippy::new_without_default)] // const, for a static
    pub const fn new() -> Self {
        Self {
            ops: [Op::EMPTY; OPS_MAX],
            holds: None,
        }
    }

    /// What was in it may have changed.
    pub fn clear(&mut self) {
        self.holds = None;
    }
}

/// A decoded function.
pub struct Function<'a> {
    bytes: &'a [u8],
    ops: &'a [Op],
    /// Whether it has a jump to an address that it computes.
    pub indirect: bool,
}

impl<'a> Function<'a> {
    /// Decodes all of `bytes`, which begin at address `start`, in `room`. `None`
    /// if they are not instructions from the first to the last, or too many.
    pub fn decode(start: u64, bytes: &'a [u8], room: &'a mut Room) -> Option<Self> {
        let same = |h: &Holds| h.start == start && h.bytes == bytes.len();
        let holds = match room.holds.filter(same) {
            Some(holds) => holds,
            None => fill(start, bytes, room)?,
        };
        Some(Self {
            bytes,
            ops: room.ops.get(..holds.count)?,
            indirect: holds.indirect,
        })
    }

    /// Which instruction begins at offset `at`.
    pub fn index_at(&self, at: usize) -> Option<usize> {
        let key = u32::try_from(at).ok()?;
        self.ops.binary_search_by_key(&key, |op| op.at).ok()
    }

    fn insn(&self, index: usize) -> Option<Insn> {
        let op = self.ops.get(index)?;
        Insn::decode(self.bytes.get(op.at as usize..op.end())?)
    }

    /// Whether instruction `index` is a `syscall`.
    pub fn is_syscall(&self, index: usize) -> bool {
        self.insn(index).is_some_and(|i| i.is_syscall())
    }

    /// Whether a branch of the function goes straight to instruction `index`.
    pub fn is_target(&self, index: usize) -> bool {
        self.ops.get(index).is_some_and(|op| op.flags & TARGET != 0)
    }

    /// Whether any instruction touches a vector register.
    pub fn uses_vectors(&self) -> bool {
        (0..self.ops.len()).any(|i| self.insn(i).is_none_or(|insn| insn.uses_vectors()))
    }

    /// How many bytes before instruction `index` have to move so that 5 or more
    /// are free there, as whole instructions that run anywhere and that nothing
    /// jumps into. `None`: it can't be done.
    pub fn room_before(&self, index: usize) -> Option<usize> {
        let mut bytes = 0usize;
        let mut first = index;
        while bytes < 5 {
            // What moved so far is now in the middle: nothing may come there.
            if first != index && self.is_target(first) {
                return None;
            }
            first = first.checked_sub(1)?;
            let op = self.ops.get(first)?;
            let fixed = op.flags & INTERIOR != 0 || op.flags & FALLS == 0;
            if fixed || !self.insn(first)?.movable() {
                return None;
            }
            bytes = bytes.checked_add(usize::from(op.len))?;
        }
        let alone = first.checked_add(1) == Some(index);
        // A computed jump might go between two that moved.
        (alone || !self.indirect).then_some(bytes)
    }

    /// Where it jumps out of itself, as offsets from its start: to another
    /// function, or to a part of it that the compiler put elsewhere.
    pub fn exits(&self) -> impl Iterator<Item = i64> + '_ {
        let leaves = |op: &&Op| op.to == OUTSIDE;
        self.ops.iter().filter(leaves).filter_map(|op| {
            let code = self.bytes.get(op.at as usize..op.end())?;
            match Insn::decode(code)?.flow() {
                Flow::Jump(distance) | Flow::Branch(distance) => i64::try_from(op.end())
                    .ok()?
                    .checked_add(i64::from(distance)),
                _ => None,
            }
        })
    }

    /// Whether a branch before instruction `index` goes out of the function.
    pub fn leaves_before(&self, index: usize) -> bool {
        let mut before = self.ops.iter().take(index);
        before.any(|op| op.to == OUTSIDE && op.flags & FALLS != 0)
    }

    /// The call numbers with which instruction `index`, a `syscall`, is reached.
    pub fn numbers(&self, index: usize) -> Numbers {
        // (A constant, so that no second one is on the stack.)
        let mut search = const { Search::new() };
        search.go(index, RAX);
        while let Some((at, reg)) = search.next() {
            self.step_back(&mut search, at, reg);
        }
        search.found
    }

    /// Looks at every instruction that can come before `at`.
    fn step_back(&self, search: &mut Search, at: usize, reg: u8) {
        let target = self.is_target(at);
        if target && !search.is_new(at, reg) {
            return;
        }
        let before = at.checked_sub(1);
        let fallen = before.filter(|&b| self.ops.get(b).is_some_and(|op| op.flags & FALLS != 0));
        let entered = at == 0 && ARGUMENTS & (1 << (reg & 15)) != 0;
        let padding = || self.insn(at).is_some_and(|insn| insn.is_nop());
        let unseen = at != 0 && fallen.is_none() && !target && !padding();
        if entered || unseen || (target && self.indirect) {
            // An argument, or a place that only a computed jump or the unwinder
            // can reach.
            search.found.open = true;
        }
        if let Some(b) = fallen {
            self.look_at(search, b, reg);
        }
        if target {
            let here = self.ops.get(at).map(|op| op.at);
            let branches = self
                .ops
                .iter()
                .enumerate()
                .filter(|(_, op)| Some(op.to) == here);
            for (from, _) in branches {
                self.look_at(search, from, reg);
            }
        }
    }

    fn look_at(&self, search: &mut Search, at: usize, reg: u8) {
        match self
            .insn(at)
            .map_or(Effect::Unknown, |insn| insn.effect(reg))
        {
            Effect::Keeps => search.go(at, reg),
            Effect::Copy(from) => search.go(at, from),
            Effect::Constant(nr) => search.found.add(nr),
            Effect::Unknown => search.found.open = true,
        }
    }
}

/// Decodes `bytes` into `room`.
fn fill(start: u64, bytes: &[u8], room: &mut Room) -> Option<Holds> {
    room.holds = None;
    let mut holds = Holds {
        start,
        bytes: bytes.len(),
        count: 0,
        indirect: false,
    };
    let mut at = 0usize;
    while at < bytes.len() {
        let insn = Insn::decode(bytes.get(at..)?)?;
        let end = at.checked_add(usize::from(insn.len))?;
        let flow = insn.flow();
        let to = match flow {
            Flow::Jump(distance) | Flow::Branch(distance) => target(end, distance, bytes.len()),
            _ => NOWHERE,
        };
        holds.indirect |= flow == Flow::Indirect;
        let falls = matches!(flow, Flow::Next | Flow::Branch(_) | Flow::Call);
        *room.ops.get_mut(holds.count)? = Op {
            at: u32::try_from(at).ok()?,
            to,
            len: insn.len,
            flags: if falls { FALLS } else { 0 },
        };
        holds.count = holds.count.checked_add(1)?;
        at = end;
    }
    mark_targets(room.ops.get_mut(..holds.count)?);
    room.holds = Some(holds);
    Some(holds)
}

/// The offset `distance` from `end`, in a function of `len` bytes.
fn target(end: usize, distance: i32, len: usize) -> u32 {
    let to = end
        .checked_add_signed(distance as isize)
        .filter(|&to| to < len);
    to.and_then(|to| u32::try_from(to).ok()).unwrap_or(OUTSIDE)
}

/// Enters the branches' targets into `ops`.
fn mark_targets(ops: &mut [Op]) {
    for index in 0..ops.len() {
        let Some(to) = ops.get(index).map(|op| op.to).filter(|&to| to < OUTSIDE) else {
            continue;
        };
        let (hit, flag) = match ops.binary_search_by_key(&to, |op| op.at) {
            Ok(hit) => (hit, TARGET),
            Err(behind) => (behind.saturating_sub(1), INTERIOR),
        };
        if let Some(op) = ops.get_mut(hit) {
            op.flags |= flag;
        }
    }
}

/// The search backwards through a function for what a register holds.
struct Search {
    pending: [(u16, u8); PENDING_MAX],
    waiting: usize,
    joins: [(u16, u8); JOINS_MAX],
    seen: usize,
    steps: u32,
    found: Numbers,
}

impl Search {
    const fn new() -> Self {
        Self {
            pending: [(0, 0); PENDING_MAX],
            waiting: 0,
            joins: [(0, 0); JOINS_MAX],
            seen: 0,
            steps: 0,
            found: Numbers::NONE,
        }
    }

    /// The next place to look at. A full list and too many steps leave the
    /// result open, and an open result ends the search.
    fn next(&mut self) -> Option<(usize, u8)> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            self.found.open = true;
        }
        if self.found.open {
            return None;
        }
        self.waiting = self.waiting.checked_sub(1)?;
        self.pending
            .get(self.waiting)
            .map(|&(at, reg)| (usize::from(at), reg))
    }

    fn go(&mut self, at: usize, reg: u8) {
        match (self.pending.get_mut(self.waiting), u16::try_from(at)) {
            (Some(free), Ok(at)) => {
                *free = (at, reg);
                self.waiting += 1;
            }
            _ => self.found.open = true,
        }
    }

    /// Whether the join at `at` is met for the first time for `reg`.
    fn is_new(&mut self, at: usize, reg: u8) -> bool {
        let Ok(at) = u16::try_from(at) else {
            return false;
        };
        let seen = self.joins.get(..self.seen).unwrap_or(&[]);
        if seen.contains(&(at, reg)) {
            return false;
        }
        match self.joins.get_mut(self.seen) {
            Some(free) => {
                *free = (at, reg);
                self.seen += 1;
            }
            None => self.found.open = true,
        }
        true
    }
}
