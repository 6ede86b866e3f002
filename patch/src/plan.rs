//! What is to be done with a site, and the bytes that do it. Pure: nothing here
//! reads or writes the program's memory.

use super::decode::Insn;
use super::function::Numbers;
use super::Config;
use crate::trampoline::{LEAVE, SYSCALL_BYTES};
use regall_directory::numbers::{self, CLASS};

/// Bytes of a trampoline's place in its zone, its slot.
pub const TRAMPOLINE_BYTES: usize = 128;
/// Offset in a slot of what is the same in all trampolines: the call into the hook.
/// What varies ends there. `pool` says to unwinders where the stack is by this.
pub const TAIL: usize = 75;
/// Offset in a slot of its last eight bytes: the address behind the site's `syscall`.
pub const WORD: usize = TRAMPOLINE_BYTES - 8;
pub use crate::trampoline::JUMP_BYTES;
/// Most bytes that can move into a trampoline: five instructions of the longest kind.
pub const MOVED_MAX: usize = 32;
/// Bytes of `syscall`, and of the short jump that can take its place.
pub const SHORT_BYTES: usize = 2;
/// `syscall`
pub const SYSCALL: [u8; SHORT_BYTES] = [0x0f, 0x05];
/// First byte of that short jump.
pub const SHORT: u8 = 0xeb;
/// First byte of `mov $number, %eax`.
pub const MOV_EAX: u8 = 0xb8;
/// What a debugger or a uprobe puts in the place of an instruction's first byte: `int3`.
pub const BREAKPOINT: u8 = 0xcc;
/// Entries of a zone's table of numbers.
pub const TABLE_BYTES: usize = numbers::NUMBERS;

/// What a trampoline does with a number; also the values in a zone's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Goes back to the untouched `syscall`.
    Pass = 0,
    /// Into the hook.
    Hook = 1,
    /// Into the hook if it is UFFDIO_REGISTER, or RDMA_VERBS_IOCTL if that is asked for.
    Ioctl = 3,
    /// Decides by the call's number, from the zone's table.
    Any = 4,
}

/// What to do with number `nr`.
pub fn kind_of(nr: u32, config: Config) -> Kind {
    let class = CLASS.get(nr as usize).copied().unwrap_or(numbers::PASS);
    match class {
        numbers::HOOK | numbers::CLONE => Kind::Hook,
        numbers::STRICT if config.strict => Kind::Hook,
        _ if config.ioctl && i64::from(nr) == libc::SYS_ioctl => Kind::Ioctl,
        _ => Kind::Pass,
    }
}

/// What to do at a site that is reached with these numbers. `Pass`: it is no
/// site. The number, if there is only one.
pub fn kind_of_all(numbers: &Numbers, config: Config) -> (Kind, Option<u32>) {
    match (numbers.known(), numbers.open) {
        ([nr], false) => (kind_of(*nr, config), Some(*nr)),
        (all, false) if all.iter().all(|nr| kind_of(*nr, config) == Kind::Pass) => {
            (Kind::Pass, None)
        }
        _ => (Kind::Any, None),
    }
}

/// Which entry stub a trampoline calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// The site ends a function: vector registers are dead.
    Call,
    /// The site is in the middle of anybody's code.
    Full,
}

/// A site that can be patched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Address of its `syscall`.
    pub site: u64,
    /// What the trampoline does.
    pub kind: Kind,
    /// Whether an ioctl with RDMA_VERBS_IOCTL goes into the hook, too.
    pub verbs: bool,
    /// Where it goes.
    pub entry: Entry,
    /// Its number, if it has only one.
    pub number: Option<u32>,
    /// The instructions before the `syscall` that move into the trampoline.
    pub moved: [u8; MOVED_MAX],
    /// Bytes of those, 5 at least; 0 with a landing.
    pub moved_len: u8,
    /// Padding within reach of a short jump, in which the jump to the trampoline is put;
    /// 0: it is put before the `syscall`.
    pub landing: u64,
    /// What is there so far.
    pub padding: [u8; JUMP_BYTES],
    /// Where the length of the function before the landing is written for unwinders, and
    /// what it is with the landing; address 0: nowhere.
    pub extent: (u64, u32),
}

impl Plan {
    /// A plan for the site at address `site`, with `before` the bytes that move.
    pub fn new(
        site: u64,
        kind: Kind,
        entry: Entry,
        number: Option<u32>,
        before: &[u8],
    ) -> Option<Self> {
        let mut moved = [0; MOVED_MAX];
        moved.get_mut(..before.len())?.copy_from_slice(before);
        let moved_len = u8::try_from(before.len()).ok()?;
        let fits = before.len() >= JUMP_BYTES && kind != Kind::Pass;
        fits.then_some(Self {
            site,
            kind,
            verbs: false,
            entry,
            number,
            moved,
            moved_len,
            landing: 0,
            padding: [0; JUMP_BYTES],
            extent: (0, 0),
        })
    }

    /// The same by way of `landing`: a short jump takes the place of the `syscall` alone,
    /// and all other instructions stay what they are in the file. `None`: it is too far.
    pub fn by_landing(self, landing: u64) -> Option<Self> {
        let plan = Self {
            landing,
            moved_len: 0,
            ..self
        };
        (self.kind == Kind::Hook && plan.short().is_some()).then_some(plan)
    }

    /// Whether others may be running the code that is patched: what changes is one instruction,
    /// and is written at once.
    pub fn is_one_store(&self) -> bool {
        if self.landing != 0 {
            return fits_at_once(self.site, SHORT_BYTES);
        }
        let moved = self.moved.get(..usize::from(self.moved_len));
        let alone = moved.and_then(Insn::decode);
        alone.is_some_and(|insn| insn.len == self.moved_len)
            && fits_at_once(self.start(), JUMP_BYTES)
    }

    /// The short jump that takes the place of the `syscall`.
    pub fn short(&self) -> Option<[u8; SHORT_BYTES]> {
        let behind = self.site.checked_add(SHORT_BYTES as u64)?;
        let distance = i8::try_from(i128::from(self.landing) - i128::from(behind)).ok()?;
        Some([SHORT, distance as u8])
    }

    /// First address of what moves.
    pub fn start(&self) -> u64 {
        self.site.saturating_sub(u64::from(self.moved_len))
    }

    /// Where the jump to the trampoline is put.
    pub fn jump_at(&self) -> u64 {
        match self.landing {
            0 => self.start(),
            landing => landing,
        }
    }

    /// What is written there: a jump to `trampoline`, and traps up to the `syscall`.
    pub fn patch(&self, trampoline: u64) -> Option<Code<MOVED_MAX>> {
        let mut code = Code::new(self.jump_at());
        code.jump(trampoline)?;
        while code.len < usize::from(self.moved_len) {
            code.put(&[0xcc])?;
        }
        Some(code)
    }

    /// The trampoline's code, for the slot at address `slot`. It begins somewhere in
    /// the slot and goes to the slot's end.
    pub fn trampoline(&self, slot: u64, zone: &ZoneLayout) -> Option<Code<TRAMPOLINE_BYTES>> {
        let tail = slot.checked_add(TAIL as u64)?;
        let (anywhere, _) = self.before_tail(slot, zone)?;
        let at = tail.checked_sub(anywhere.len as u64)?;
        let (mut code, back) = self.before_tail(at, zone)?;
        if at < slot || code.here()? != tail {
            return None;
        }
        let word = slot.checked_add(WORD as u64)?;
        let behind = self.site.checked_add(SYSCALL_BYTES)?;
        enter(&mut code, self.entry, word, zone)?;
        code.jump(behind)?;
        if back.used > 0 {
            back.land(&mut code)?;
            code.jump(self.site)?;
        }
        code.fill_to(word)?;
        code.put(&behind.to_le_bytes())?;
        Some(code)
    }

    /// What comes before the tail, at address `at`: the instructions that moved, and
    /// what looks at the call's number and arguments.
    fn before_tail(&self, at: u64, zone: &ZoneLayout) -> Option<(Code<TRAMPOLINE_BYTES>, ToBack)> {
        let mut code = Code::new(at);
        code.put_moved(self.moved.get(..usize::from(self.moved_len))?, self.start())?;
        let mut back = ToBack::default();
        match self.kind {
            Kind::Pass => return None,
            Kind::Hook => (),
            Kind::Ioctl => ioctl_check(&mut code, &mut back, self.verbs)?,
            Kind::Any => any_check(&mut code, &mut back, zone, self.verbs)?,
        }
        Some((code, back))
    }
}

/// Addresses that trampolines of a zone refer to.
#[derive(Clone, Copy, Debug)]
pub struct ZoneLayout {
    /// Eight bytes that hold the address of `regall_entry_call`.
    pub call_slot: u64,
    /// Eight bytes that hold the address of `regall_entry_full`.
    pub full_slot: u64,
    /// The zone's table: [`kind_of`] each number, a byte each.
    pub table: u64,
}

/// Whether the instructions in `bytes` are the same bytes wherever they stand.
pub fn is_the_same_anywhere(mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let insn = Insn::decode(bytes).filter(|insn| !insn.is_relative_address());
        match insn.and_then(|insn| bytes.get(usize::from(insn.len)..)) {
            Some(rest) => bytes = rest,
            None => return false,
        }
    }
    true
}

/// Code under construction for a fixed address.
#[derive(Clone, Copy, Debug)]
pub struct Code<const N: usize> {
    at: u64,
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Code<N> {
    fn new(at: u64) -> Self {
        Self {
            at,
            bytes: [0xcc; N],
            len: 0,
        }
    }

    /// What was put together.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// Address of the first byte.
    pub fn start(&self) -> u64 {
        self.at
    }

    /// Address of what is put next.
    fn here(&self) -> Option<u64> {
        self.at.checked_add(self.len as u64)
    }

    /// Traps up to the address `to`.
    fn fill_to(&mut self, to: u64) -> Option<()> {
        while self.here()? < to {
            self.put(&[0xcc])?;
        }
        (self.here()? == to).then_some(())
    }

    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.len.checked_add(bytes.len())?;
        self.bytes.get_mut(self.len..end)?.copy_from_slice(bytes);
        self.len = end;
        Some(())
    }

    /// The instructions in `bytes`, which stand at address `from` so far. What
    /// they address relative to themselves is the same here.
    fn put_moved(&mut self, mut bytes: &[u8], mut from: u64) -> Option<()> {
        while !bytes.is_empty() {
            let insn = Insn::decode(bytes)?;
            let (one, rest) = bytes.split_at_checked(usize::from(insn.len))?;
            from = from.checked_add(one.len() as u64)?;
            if insn.is_relative_address() {
                let (start, distance) = one.split_last_chunk()?;
                self.put(start)?;
                let to = from.checked_add_signed(i64::from(i32::from_le_bytes(*distance)))?;
                self.put_distance(to)?;
            } else {
                self.put(one)?;
            }
            bytes = rest;
        }
        Some(())
    }

    /// Four bytes that say how far `to` is from behind them.
    fn put_distance(&mut self, to: u64) -> Option<()> {
        let here = self.here()?.checked_add(4)?;
        let distance = i32::try_from(i128::from(to) - i128::from(here)).ok()?;
        self.put(&distance.to_le_bytes())
    }

    /// `jmp to`
    fn jump(&mut self, to: u64) -> Option<()> {
        self.put(&[0xe9])?;
        self.put_distance(to)
    }

    /// A short conditional jump to a place that is not known yet.
    fn short(&mut self, opcode: u8) -> Option<Short> {
        self.put(&[opcode, 0])?;
        Some(Short(self.len))
    }

    /// Lets `short` go to the place reached now.
    fn land(&mut self, short: Short) -> Option<()> {
        let distance = i8::try_from(self.len.checked_sub(short.0)?).ok()?;
        *self.bytes.get_mut(short.0.checked_sub(1)?)? = distance as u8;
        Some(())
    }
}

/// Offset behind a short jump.
#[derive(Clone, Copy, Default)]
struct Short(usize);

/// The jumps that go back to the untouched `syscall`.
#[derive(Default)]
struct ToBack {
    jumps: [Short; 6],
    used: usize,
}

impl ToBack {
    fn add<const N: usize>(&mut self, code: &mut Code<N>, opcode: u8) -> Option<()> {
        *self.jumps.get_mut(self.used)? = code.short(opcode)?;
        self.used += 1;
        Some(())
    }

    fn land<const N: usize>(&self, code: &mut Code<N>) -> Option<()> {
        self.jumps
            .get(..self.used)?
            .iter()
            .try_for_each(|&jump| code.land(jump))
    }
}

const JB: u8 = 0x72;
const JAE: u8 = 0x73;
const JE: u8 = 0x74;
const JNE: u8 = 0x75;
const JRCXZ: u8 = 0xe3;

/// ioctl goes on only with UFFDIO_REGISTER and, if `verbs`, RDMA_VERBS_IOCTL.
fn ioctl_check<const N: usize>(code: &mut Code<N>, back: &mut ToBack, verbs: bool) -> Option<()> {
    let known = match verbs {
        true => {
            code.put(&[0x81, 0xfe])?; // cmp esi, RDMA_VERBS_IOCTL
            code.put(&(numbers::RDMA_VERBS_IOCTL as u32).to_le_bytes())?;
            Some(code.short(JE)?)
        }
        false => None,
    };
    code.put(&[0x81, 0xfe])?; // cmp esi, UFFDIO_REGISTER
    code.put(&(numbers::UFFDIO_REGISTER as u32).to_le_bytes())?;
    back.add(code, JNE)?;
    match known {
        Some(jump) => code.land(jump),
        None => Some(()),
    }
}

/// Looks the number up. The kernel goes by eax, whatever is above it in rax.
fn any_check<const N: usize>(
    code: &mut Code<N>,
    back: &mut ToBack,
    zone: &ZoneLayout,
    verbs: bool,
) -> Option<()> {
    code.put(&[0x3d])?; // cmp eax, TABLE_BYTES
    code.put(&(TABLE_BYTES as u32).to_le_bytes())?;
    back.add(code, JAE)?;
    code.put(&[0x89, 0xc1])?; // mov ecx, eax
    code.put(&[0x4c, 0x8d, 0x1d])?; // lea r11, [rip + table]
    code.put_distance(zone.table)?;
    code.put(&[0x41, 0x0f, 0xb6, 0x0c, 0x0b])?; // movzx ecx, byte ptr [r11 + rcx]
    back.add(code, JRCXZ)?;
    code.put(&[0x83, 0xf9, Kind::Ioctl as u8])?; // cmp ecx, Ioctl
    let hook = code.short(JB)?;
    ioctl_check(code, back, verbs)?;
    code.land(hook)?;
    code.put(&[0x89, 0xc0]) // mov eax, eax
}

/// The tail: leaves the red zone alone, calls the entry stub, and puts the stack back.
/// The address behind the `syscall` is on the stack for unwinders. `pool` knows the
/// lengths of these instructions.
fn enter<const N: usize>(
    code: &mut Code<N>,
    entry: Entry,
    word: u64,
    zone: &ZoneLayout,
) -> Option<()> {
    code.put(&[0x48, 0x8d, 0x64, 0x24, 0x80])?; // lea rsp, [rsp - 128]
    code.put(&[0xff, 0x35])?; // push [rip + word]
    code.put_distance(word)?;
    code.put(&[0xff, 0x15])?; // call [rip + slot]
    code.put_distance(match entry {
        Entry::Call => zone.call_slot,
        Entry::Full => zone.full_slot,
    })?;
    code.put(&LEAVE)
}

/// Bytes of a cache line. What is stored within one is seen as a whole.
pub(super) const LINE_BYTES: u64 = 64;
/// Bytes that are stored at once, at the most.
pub(super) const STORE_BYTES: u64 = size_of::<u64>() as u64;

/// Whether `len` bytes at `at`, eight at the most, can be written so that others see what was
/// there or all of it.
pub(super) fn fits_at_once(at: u64, len: usize) -> bool {
    (at % LINE_BYTES).saturating_add(len as u64) <= LINE_BYTES && len as u64 <= STORE_BYTES
}
