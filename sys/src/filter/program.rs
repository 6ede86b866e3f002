//! What a filter says of a call: classic BPF.

use crate::arch;

/// Whether two programs are the same, instruction by instruction.
pub fn is_equal(one: &[libc::sock_filter], other: &[libc::sock_filter]) -> bool {
    let words = |step: &libc::sock_filter| (step.code, step.jt, step.jf, step.k);
    one.iter().map(words).eq(other.iter().map(words))
}

/// Whether the kernel makes the call, or refuses it, and nobody else is asked or told. What is not
/// made and yet said to have come to 0 does not pass, nor what would be tried again for ever.
pub fn passes(answer: Option<u32>) -> bool {
    const AGAIN: u32 = libc::EINTR as u32;
    let said = |answer| {
        (
            answer & libc::SECCOMP_RET_ACTION_FULL,
            answer & libc::SECCOMP_RET_DATA,
        )
    };
    match answer.map(said) {
        Some((libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG, _)) => true,
        Some((libc::SECCOMP_RET_ERRNO, errno)) => errno != 0 && errno != AGAIN,
        _ => false,
    }
}

/// Whether the kernel makes the call.
pub fn is_made(answer: Option<u32>) -> bool {
    let action = answer.map(|answer| answer & libc::SECCOMP_RET_ACTION_FULL);
    matches!(
        action,
        Some(libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG)
    )
}

/// What a filter says of `call`, number and arguments: classic BPF on a `struct seccomp_data`, as
/// the kernel has checked it (seccomp_check_filter). `None`: it divides by zero, or goes by where
/// the instruction is, or by an argument that is not there.
pub fn answer(steps: &[libc::sock_filter], call: &[u64]) -> Option<u32> {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0;
    // Jumps go forward only.
    loop {
        let step = steps.get(at)?;
        at += 1;
        let (code, k) = (u32::from(step.code), step.k);
        let operand = if code & libc::BPF_X == 0 { k } else { x };
        let loaded = || match code & 0xe0 {
            libc::BPF_IMM => Some(k),
            libc::BPF_ABS => word(call, k),
            libc::BPF_MEM => memory.get(k as usize).copied(),
            _ => Some(DATA_BYTES), // BPF_LEN
        };
        match code & 7 {
            libc::BPF_LD => a = loaded()?,
            libc::BPF_LDX => x = loaded()?,
            libc::BPF_ST => *memory.get_mut(k as usize)? = a,
            libc::BPF_STX => *memory.get_mut(k as usize)? = x,
            libc::BPF_ALU => a = calculated(code & 0xf0, a, operand)?,
            libc::BPF_JMP if code & 0xf0 == libc::BPF_JA => at = at.checked_add(k as usize)?,
            libc::BPF_JMP => {
                let holds = compares(code & 0xf0, a, operand);
                at += usize::from(if holds { step.jt } else { step.jf });
            }
            libc::BPF_RET => return Some(if code & 0x18 == BPF_A { a } else { k }),
            _ if code & 0xf8 == BPF_TXA => a = x,
            _ => x = a, // BPF_TAX
        }
    }
}

/// Bytes of a `struct seccomp_data`: number, processor, address, six arguments.
const DATA_BYTES: u32 = 64;
pub const BPF_A: u32 = 0x10;
pub const BPF_TXA: u32 = 0x80;

/// The word at `k` of a `struct seccomp_data`. `None`: a part of the instruction's address, or not
/// known.
fn word(call: &[u64], k: u32) -> Option<u32> {
    match k {
        0 => Some(*call.first()? as u32),
        4 => Some(arch::AUDIT),
        8 | 12 => None,
        _ => {
            let argument = *call.get((k as usize - 8) / 8)?;
            Some((argument >> ((k & 4) * 8)) as u32)
        }
    }
}

fn calculated(operation: u32, a: u32, b: u32) -> Option<u32> {
    Some(match operation {
        libc::BPF_ADD => a.wrapping_add(b),
        libc::BPF_SUB => a.wrapping_sub(b),
        libc::BPF_MUL => a.wrapping_mul(b),
        libc::BPF_DIV => a.checked_div(b)?,
        libc::BPF_OR => a | b,
        libc::BPF_AND => a & b,
        libc::BPF_LSH => a.wrapping_shl(b),
        libc::BPF_RSH => a.wrapping_shr(b),
        libc::BPF_XOR => a ^ b,
        libc::BPF_NEG => a.wrapping_neg(),
        _ => return None,
    })
}

fn compares(how: u32, a: u32, b: u32) -> bool {
    match how {
        libc::BPF_JEQ => a == b,
        libc::BPF_JGT => a > b,
        libc::BPF_JGE => a >= b,
        _ => a & b != 0, // BPF_JSET
    }
}
