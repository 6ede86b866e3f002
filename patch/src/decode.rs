//! Instructions: their bounds, where they go, and what they leave in a register.
//!
//! The decoder is yaxpeax-x86: no allocator, bounded by the slice that it is
//! given, about 25 ns an instruction. (iced-x86 builds its tables on a heap.)

use yaxpeax_arch::LengthedInstruction;
use yaxpeax_x86::long_mode::behavior::AccessVisitor;
use yaxpeax_x86::long_mode::{register_class, InstDecoder, Instruction, Opcode, Operand, RegSpec};

/// Number of rax in instruction bytes.
pub const RAX: u8 = 0;
/// Number of rsp.
const RSP: u8 = 4;
/// rax and rdx: a called function's results. The other registers that it may
/// leave anything in are never read behind it, unless the compiler saw that it
/// keeps them; or it never returns, and what stands behind it is reached from
/// elsewhere. In each case one may look past it.
const CALL_RESULTS: u16 = 0x0005;
/// rax, rcx and r11.
const SYSCALL_CLOBBERS: u16 = 0x0803;

/// Where the processor goes after an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// To the one behind it.
    Next,
    /// To this distance from its end.
    Jump(i32),
    /// To this distance from its end, or to the instruction behind it.
    Branch(i32),
    /// Into a function that comes back behind it, or does not.
    Call,
    /// To an address that the instruction does not hold.
    Indirect,
    /// Nowhere that can be seen: a return or a trap.
    Stop,
}

/// What an instruction leaves in a 64-bit register, as far as it can be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The register keeps what it held.
    Keeps,
    /// This number in its low 32 bits.
    Constant(u32),
    /// What this other register held.
    Copy(u8),
    /// Something else.
    Unknown,
}

/// One decoded instruction.
#[derive(Clone, Copy)]
pub struct Insn {
    raw: Instruction,
    /// Bytes, 1 to 15.
    pub len: u8,
}

/// Which registers an instruction touches.
#[derive(Default)]
struct Touched {
    written: u16,
    vector: bool,
}

impl Touched {
    fn note(&mut self, reg: RegSpec, written: bool) {
        match general(reg) {
            Some(n) if written => self.written |= 1 << n,
            Some(_) => (),
            None => self.vector |= is_vector(reg),
        }
    }
}

impl AccessVisitor for Touched {
    fn register_read(&mut self, reg: RegSpec) {
        self.note(reg, false);
    }
    fn register_write(&mut self, reg: RegSpec) {
        self.note(reg, true);
    }
    fn memory_read(&mut self, _: Option<u64>, _: u32) {}
    fn memory_write(&mut self, _: Option<u64>, _: u32) {}
}

/// Number of the 64-bit register that `reg` is or is part of.
fn general(reg: RegSpec) -> Option<u8> {
    let class = reg.class();
    if class == register_class::B {
        // ah, ch, dh and bh are 4 to 7 in this class.
        return Some(reg.num() & 3);
    }
    let general = [
        register_class::Q,
        register_class::D,
        register_class::W,
        register_class::RB,
    ];
    (general.contains(&class) && reg.num() < 16).then_some(reg.num())
}

fn is_vector(reg: RegSpec) -> bool {
    let class = reg.class();
    [
        register_class::X,
        register_class::Y,
        register_class::Z,
        register_class::ST,
        register_class::MM,
        register_class::K,
    ]
    .contains(&class)
}

/// Number of a register whose write replaces all 64 bits.
fn whole(operand: &Operand) -> Option<u8> {
    match operand {
        Operand::Register { reg }
            if [register_class::Q, register_class::D].contains(&reg.class()) =>
        {
            (reg.num() < 16).then_some(reg.num())
        }
        _ => None,
    }
}

fn immediate(operand: &Operand) -> Option<i64> {
    Some(match *operand {
        Operand::ImmediateI8 { imm } => i64::from(imm),
        Operand::ImmediateU8 { imm } => i64::from(imm),
        Operand::ImmediateI16 { imm } => i64::from(imm),
        Operand::ImmediateU16 { imm } => i64::from(imm),
        Operand::ImmediateI32 { imm } => i64::from(imm),
        Operand::ImmediateU32 { imm } => i64::from(imm),
        Operand::ImmediateI64 { imm } => imm,
        Operand::ImmediateU64 { imm } => imm as i64,
        _ => return None,
    })
}

fn is_rip(reg: RegSpec) -> bool {
    [register_class::RIP, register_class::EIP].contains(&reg.class())
}

/// Whether a memory operand's address depends on where the instruction stands.
fn rip_relative(operand: &Operand) -> bool {
    match *operand {
        Operand::MemDeref { base }
        | Operand::Disp { base, .. }
        | Operand::MemDerefMasked { base, .. }
        | Operand::DispMasked { base, .. } => is_rip(base),
        _ => false,
    }
}

impl Insn {
    /// The instruction at the start of `bytes`; `None` if there is no valid
    /// one, or it does not end within them.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..15).unwrap_or(bytes);
        let raw = InstDecoder::default().decode_slice(bytes).ok()?;
        let len = u8::try_from(raw.len().to_const()).ok()?;
        let sane = len > 0 && usize::from(len) <= bytes.len();
        sane.then_some(Self { raw, len })
    }

    fn operand(&self, n: u8) -> Operand {
        if n < self.raw.operand_count().min(4) {
            self.raw.operand(n)
        } else {
            Operand::Nothing
        }
    }

    fn touched(&self) -> Option<Touched> {
        let mut touched = Touched::default();
        self.raw.behavior().visit_accesses(&mut touched).ok()?;
        Some(touched)
    }

    /// Whether it is `syscall`.
    pub fn is_syscall(&self) -> bool {
        self.raw.opcode() == Opcode::SYSCALL
    }

    /// Whether it does nothing: padding, where nothing comes to it.
    pub fn is_nop(&self) -> bool {
        let same = self.operand(0) == self.operand(1);
        self.raw.opcode() == Opcode::NOP || (self.raw.opcode() == Opcode::XCHG && same)
    }

    /// Where the processor goes from here.
    pub fn flow(&self) -> Flow {
        let opcode = self.raw.opcode();
        let distance = || immediate(&self.operand(0)).and_then(|d| i32::try_from(d).ok());
        let or = |flow: fn(i32) -> Flow| distance().map_or(Flow::Indirect, flow);
        match opcode {
            Opcode::JMP => or(Flow::Jump),
            Opcode::JMPE | Opcode::JMPF => Flow::Indirect,
            Opcode::CALL | Opcode::CALLF => Flow::Call,
            Opcode::LOOP
            | Opcode::LOOPZ
            | Opcode::LOOPNZ
            | Opcode::JRCXZ
            | Opcode::JECXZ
            | Opcode::XBEGIN => or(Flow::Branch),
            Opcode::RETURN
            | Opcode::RETF
            | Opcode::IRET
            | Opcode::IRETD
            | Opcode::IRETQ
            | Opcode::UIRET => Flow::Stop,
            Opcode::HLT
            | Opcode::UD0
            | Opcode::UD1
            | Opcode::UD2
            | Opcode::SYSRET
            | Opcode::SYSEXIT => Flow::Stop,
            _ if opcode.is_jcc() => or(Flow::Branch),
            _ => Flow::Next,
        }
    }

    /// Whether it is `lea disp32(%rip), %reg`, whose last four bytes are to be
    /// adjusted when it moves.
    pub fn is_relative_address(&self) -> bool {
        self.raw.opcode() == Opcode::LEA && rip_relative(&self.operand(1))
    }

    /// Whether it does the same wherever it stands (or can be made to) and leaves
    /// the stack alone, so that a trampoline can run it.
    pub fn movable(&self) -> bool {
        let opcode = self.raw.opcode();
        let special = [
            Opcode::SYSCALL,
            Opcode::SYSENTER,
            Opcode::INT,
            Opcode::INTO,
            Opcode::ENDBR64,
            Opcode::PUSH,
            Opcode::POP,
            Opcode::PUSHF,
            Opcode::POPF,
            Opcode::ENTER,
            Opcode::LEAVE,
        ];
        if self.flow() != Flow::Next || special.contains(&opcode) {
            return false;
        }
        if (0..4).any(|n| rip_relative(&self.operand(n))) && !self.is_relative_address() {
            return false;
        }
        self.touched().is_some_and(|t| t.written & (1 << RSP) == 0)
    }

    /// Whether the function that it is in keeps something in vector registers,
    /// as far as this instruction tells.
    pub fn uses_vectors(&self) -> bool {
        if matches!(self.flow(), Flow::Call) || self.is_syscall() {
            return false;
        }
        self.touched().is_none_or(|t| t.vector)
    }

    /// What it leaves in the 64-bit register `reg`.
    pub fn effect(&self, reg: u8) -> Effect {
        let clobbered = |mask: u16| {
            if mask & (1 << (reg & 15)) != 0 {
                Effect::Unknown
            } else {
                Effect::Keeps
            }
        };
        if self.flow() == Flow::Call {
            return clobbered(CALL_RESULTS);
        }
        if self.is_syscall() {
            return clobbered(SYSCALL_CLOBBERS);
        }
        if whole(&self.operand(0)) == Some(reg) {
            if let Some(effect) = self.assignment() {
                return effect;
            }
        }
        self.touched()
            .map_or(Effect::Unknown, |t| clobbered(t.written))
    }

    /// What a plain assignment to a register puts there.
    fn assignment(&self) -> Option<Effect> {
        let source = self.operand(1);
        match self.raw.opcode() {
            Opcode::MOV => match immediate(&source) {
                Some(value) => Some(Effect::Constant(value as u32)),
                None => whole(&source).map(Effect::Copy),
            },
            Opcode::XOR | Opcode::SUB if source == self.operand(0) => Some(Effect::Constant(0)),
            _ => None,
        }
    }
}

/// Whether an instruction begins at `bytes[at]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Boundary {
    /// From wherever one starts before it.
    Yes,
    /// From no place before it.
    No,
    /// From some places before it, and not from others.
    Unclear,
}

/// Decodes towards `bytes[at]` from sixteen starts some 64 bytes before it.
/// x86 code falls into step within a few instructions, so they tell whether an
/// instruction begins there where nothing says where functions do. The first
/// byte of what is mapped is taken for a beginning.
pub fn boundary(bytes: &[u8], at: usize) -> Boundary {
    if at < 64 && arrives(bytes, 0, at) == Some(true) {
        return Boundary::Yes;
    }
    let from = at.saturating_sub(64);
    let (mut hits, mut misses) = (0, 0);
    for start in from..at.min(from.saturating_add(16)) {
        match arrives(bytes, start, at) {
            Some(true) => hits += 1,
            Some(false) => misses += 1,
            None => (),
        }
    }
    match (hits, misses) {
        (0, _) => Boundary::No,
        (_, 0) => Boundary::Yes,
        _ => Boundary::Unclear,
    }
}

/// Whether decoding from `start` gets to `at`; `None` if it gets stuck.
pub(super) fn arrives(bytes: &[u8], start: usize, at: usize) -> Option<bool> {
    let mut here = start;
    while here < at {
        here = here.checked_add(usize::from(Insn::decode(bytes.get(here..)?)?.len))?;
    }
    Some(here == at)
}
