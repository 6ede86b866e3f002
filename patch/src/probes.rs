//! Breakpoints in the places of our patches: whether one stands, and what it has left.
//!
//! A uprobe (perf, bpftrace, bcc) puts `int3` in the place of an instruction's first byte,
//! executes the *file's* instruction out of line, and when it goes it puts the *file's* byte
//! back. At a site with a short jump that matters only on the `syscall` itself: the file's
//! `mov` before it is untouched. What a probe on a byte of ours hides from the shim is
//! missed; who looks here says so, and has everything read anew. What it leaves behind is
//! the file's byte in front of the rest of our jump. So while it stands, that rest is made
//! the file's too; and what was left is made ours again. A breakpoint is never overwritten.
//!
//! The short jump (`eb xx` for `0f 05`) exists for probes on a function's first byte. glibc's
//! wrappers are `mov $number, %eax; syscall`. With a jump in the place of the `mov`, a probe there
//! hid all calls, and at its end the kernel restored the file's byte before the rest of our jump: a
//! `mov` of a wrong number, ENOSYS for good (`verify_opcode` and `set_orig_insn` in
//! kernel/events/uprobes.c). The short jump is one instruction for one, so threads parked behind
//! the `syscall` and jumps to it are right, too. The padding that it leads to is in no function, so
//! the frame description of the function before it is made longer.
//!
//! Weighed against it: a five-byte jump over the `syscall` and the head of what follows (a probe on
//! the `syscall`, or a thread that was in the kernel, goes on inside the jump); one-byte patches
//! (`b8` to `eb` or `e9`, with the number as distance: it leads into the function itself); a second
//! jump behind the `syscall` that makes failed calls again (calls are seen late, with numbers that
//! seccomp filters may kill for); text in anonymous memory (no probe would fire, and profilers lose
//! the file).

use super::apply::Patches;
use super::memory::Memory;
use super::plan::{BREAKPOINT, JUMP_BYTES, MOV_EAX, SHORT, SHORT_BYTES, SYSCALL};
use super::sites::Entry;
use super::write::{store_at_once, Use, Writer};

/// What was found.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Patches with somebody's breakpoint in their place.
    pub standing: u32,
    /// How many of them are not there any more, and can't be put back.
    pub stuck: u32,
    /// Patches that were not there any more, and are again.
    pub mended: u32,
    /// Breakpoints before short jumps, which hide nothing.
    pub harmless: u32,
    /// The number of the first such site's call.
    pub number: Option<u32>,
}

/// What is to be written so that a patch is whole, or so that nothing is left of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finding {
    /// The patch is there, or somebody else's code is: nothing to do.
    Fine,
    /// A breakpoint stands, over the rest of the file's instruction.
    Standing,
    /// A breakpoint stands, over the rest of our jump.
    OverJump,
    /// The patch is gone, and can't be put back.
    Stuck,
    /// The file's byte is back, before the rest of our jump.
    Half,
    /// The file's instruction is back.
    Gone,
}

impl Entry {
    /// `mov $number, %eax`, which stands before a short jump.
    pub fn load(&self) -> [u8; JUMP_BYTES] {
        let [a, b, c, d] = self.number.to_le_bytes();
        [MOV_EAX, a, b, c, d]
    }

    /// Where the patch is whose bytes a breakpoint may replace, those bytes, and the file's.
    fn patch(&self) -> Option<(u64, [u8; JUMP_BYTES], [u8; JUMP_BYTES], usize)> {
        if self.moved == 0 {
            let behind = self.site.wrapping_add(SHORT_BYTES as u64);
            let distance = i8::try_from(self.jump.wrapping_sub(behind) as i64).ok()?;
            let [a, b] = SYSCALL;
            let ours = [SHORT, distance as u8, 0, 0, 0];
            return Some((self.site, ours, [a, b, 0, 0, 0], SHORT_BYTES));
        }
        let ours = self.jump_bytes()?;
        let known =
            usize::from(self.moved) == JUMP_BYTES && self.first == MOV_EAX && self.number >= 0;
        known.then_some((self.jump, ours, self.load(), JUMP_BYTES))
    }
}

/// Compares what is there with `ours` and with the `file`'s.
fn find(there: &[u8], ours: &[u8], file: &[u8]) -> Finding {
    let (Some((first, rest)), Some((_, ours_rest)), Some((file_first, file_rest))) =
        (there.split_first(), ours.split_first(), file.split_first())
    else {
        return Finding::Fine;
    };
    match *first {
        _ if there == ours => Finding::Fine,
        _ if there == file => Finding::Gone,
        BREAKPOINT if rest == ours_rest => Finding::OverJump,
        BREAKPOINT if rest == file_rest => Finding::Standing,
        first if first == *file_first && rest == ours_rest => Finding::Half,
        _ => Finding::Fine,
    }
}

impl Patches {
    /// Looks at every patch.
    pub fn check(&self, writer: &mut Writer) -> Seen {
        let mut seen = Seen::default();
        for entry in self.entries() {
            let (before, mut first) = (entry.site.wrapping_sub(JUMP_BYTES as u64), [0]);
            if entry.moved == 0 && writer.read(before, &mut first) && first == [BREAKPOINT] {
                seen.harmless += 1;
            }
            let finding = check_one(entry, self.memory, writer);
            match finding {
                Finding::Fine => continue,
                Finding::Standing | Finding::OverJump => seen.standing += 1,
                Finding::Stuck => {
                    seen.standing += 1;
                    seen.stuck += 1;
                }
                Finding::Half | Finding::Gone => seen.mended += 1,
            }
            seen.number = seen.number.or(u32::try_from(entry.number).ok());
        }
        seen
    }
}

/// Looks at one, and does what can be done.
fn check_one(entry: &Entry, memory: Memory, writer: &mut Writer) -> Finding {
    let Some((at, ours, file, len)) = entry.patch() else {
        return Finding::Fine;
    };
    let mut there = [0; JUMP_BYTES];
    let (Some(there), Some(ours), Some(file)) =
        (there.get_mut(..len), ours.get(..len), file.get(..len))
    else {
        return Finding::Fine;
    };
    if !writer.read(at, there) {
        return Finding::Fine;
    }
    let finding = find(there, ours, file);
    // Code of the program's own making is its own to change, and what has been mapped there
    // since is not ours. Two bytes alone tell nothing: the jump that they lead to is there, too.
    let known = entry.moved != 0 || writer.has_jump(entry.jump, entry.to);
    if finding == Finding::Fine || !known || !memory.is_private_text(at) {
        return Finding::Fine;
    }
    let rest = file.get(1..).unwrap_or(&[]);
    let done = match finding {
        // Nobody executes the rest while the breakpoint stands.
        Finding::OverJump => writer.write(at.saturating_add(1), rest, Use::Shared),
        // One byte: others see the one or the other.
        Finding::Half => writer.write(at, ours.get(..1).unwrap_or(&[]), Use::Shared),
        Finding::Gone => store_at_once(at, ours),
        Finding::Fine | Finding::Standing | Finding::Stuck => Ok(()),
    };
    match done {
        Err(_) if finding != Finding::OverJump => Finding::Stuck,
        _ => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_is_told_from_the_others() {
        let (ours, file) = ([0xe9, 1, 2, 3, 4], [0xb8, 9, 0, 0, 0]);
        for (there, finding) in [
            (ours, Finding::Fine),
            (file, Finding::Gone),
            ([0xcc, 1, 2, 3, 4], Finding::OverJump),
            ([0xcc, 9, 0, 0, 0], Finding::Standing),
            ([0xb8, 1, 2, 3, 4], Finding::Half),
            ([0xb8, 10, 0, 0, 0], Finding::Fine),
            ([0x49, 0xbb, 0, 0, 0], Finding::Fine),
        ] {
            assert_eq!(find(&there, &ours, &file), finding, "{there:x?}");
        }
    }
}
