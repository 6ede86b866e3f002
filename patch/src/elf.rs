//! A mapped ELF file: its functions' bounds by .eh_frame_hdr, and its exported
//! symbols. Everything is looked up where it is mapped; nothing is trusted to
//! be well-formed, and nothing is read that is not known to be readable.

use super::modules::{Group, Segment, SEGMENTS_MAX};
use regall_directory::addr::{PageRange, PAGE};
use regall_sys as sys;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;

/// Tags of the dynamic section.
pub mod tag {
    #![allow(missing_docs)]
    pub const PLTRELSZ: u64 = 2;
    pub const STRTAB: u64 = 5;
    pub const SYMTAB: u64 = 6;
    pub const RELA: u64 = 7;
    pub const RELASZ: u64 = 8;
    pub const TEXTREL: u64 = 22;
    pub const JMPREL: u64 = 23;
    pub const FLAGS: u64 = 30;
    pub const VERSYM: u64 = 0x6fff_fff0;
    pub const GNU_HASH: u64 = 0x6fff_fef5;
}

/// Bytes of a frame description before its augmentation and instructions: its length, where
/// the common part is, and the function's start and length.
const FRAME_FIXED: u64 = 16;
/// Bytes behind them, at the most, in one that says no more: padding.
const EXTENT_MAX: u64 = 64;
/// Entries of a dynamic section that are looked at; there are about thirty.
const DYNAMIC_MAX: u64 = 256;
/// Flag of DT_FLAGS that says what DT_TEXTREL does.
const DF_TEXTREL: u64 = 4;
/// A symbol of another version than the default one.
const HIDDEN_VERSION: u16 = 0x8000;
const STT_FUNC: u8 = 2;

/// What can be read without harm.
#[derive(Clone, Copy, Default)]
pub struct Memory {
    windows: [Option<PageRange>; SEGMENTS_MAX],
    /// Whether it may be unmapped at any moment: then it is read as a debugger does, in small
    /// pieces.
    fleeting: bool,
}

impl Memory {
    /// The readable mappings of `group`, each up to its file's end.
    pub fn of(group: &Group) -> Self {
        let mut memory = Self::default();
        let readable = group.segments().filter(|s| s.prot.readable());
        for (window, segment) in memory.windows.iter_mut().zip(readable) {
            *window = up_to_file_end(segment.range);
        }
        memory
    }

    /// `len` bytes at `at`. None of memory that may be unmapped at any moment.
    pub fn bytes(&self, at: u64, len: usize) -> Option<&[u8]> {
        if self.fleeting || !self.holds(at, len) {
            return None;
        }
        // SAFETY: the bytes lie in one mapping that is readable to its end (each
        // window's last page was read, or found by reading). That it is not
        // unmapped meanwhile is what `scan`'s and `install`'s callers see to.
        Some(unsafe { core::slice::from_raw_parts(at as *const u8, len) })
    }

    /// Whether the `len` bytes at `at` lie in one window.
    fn holds(&self, at: u64, len: usize) -> bool {
        let end = u64::try_from(len).ok().and_then(|len| at.checked_add(len));
        let inside = |w: &PageRange| w.start() <= at && end.is_some_and(|end| end <= w.end());
        self.windows.iter().flatten().any(inside)
    }

    /// The part of the window around `at` that begins there.
    pub fn window(&self, at: u64) -> Option<PageRange> {
        self.windows
            .iter()
            .flatten()
            .find(|w| w.contains(at))
            .copied()
    }

    fn array<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        if !self.fleeting {
            return self.bytes(at, N)?.try_into().ok();
        }
        let mut copy = [0; N];
        (self.holds(at, N) && read(at, &mut copy)).then_some(copy)
    }

    fn u8(&self, at: u64) -> Option<u8> {
        self.array(at).map(u8::from_le_bytes)
    }
    fn u16(&self, at: u64) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }
    fn u32(&self, at: u64) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }
    fn i32(&self, at: u64) -> Option<i32> {
        self.array(at).map(i32::from_le_bytes)
    }
    /// The 64-bit word at `at`.
    pub fn u64(&self, at: u64) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// The NUL-terminated string at `at`, if it is shorter than `max`.
    pub fn string(&self, at: u64, max: usize) -> Option<&[u8]> {
        let room = self.window(at)?.end().saturating_sub(at);
        let bytes = self.bytes(at, max.min(usize::try_from(room).ok()?))?;
        let len = bytes.iter().position(|&b| b == 0)?;
        bytes.get(..len)
    }

    /// Whether the NUL-terminated string at `at` is `text`.
    pub fn is_string(&self, at: u64, text: &[u8]) -> bool {
        let Some(with_nul) = text.len().checked_add(1) else {
            return false;
        };
        let found = self.bytes(at, with_nul).and_then(|b| b.split_last());
        found == Some((&0, text))
    }
}

/// Reads as a debugger does: false where a load would be a signal.
fn read(at: u64, into: &mut [u8]) -> bool {
    let (to, len) = (into.as_mut_ptr(), into.len());
    // SAFETY: `into` is as long as that.
    let copied = unsafe { sys::copy_checked(at, to, len) };
    // A container's seccomp filter may forbid process_vm_readv.
    copied == Ok(len) || super::write::read_checked(at, into)
}

/// The pages of `range` that are not beyond the end of their file.
fn up_to_file_end(range: PageRange) -> Option<PageRange> {
    let pages = range.len() / PAGE;
    let page = |n: u64| range.start().saturating_add(n.saturating_mul(PAGE));
    if sys::readable(page(pages.saturating_sub(1))) {
        return Some(range);
    }
    let (mut good, mut bad) = (0, pages);
    while good < bad {
        let middle = good + (bad - good) / 2;
        if sys::readable(page(middle)) {
            good = middle.saturating_add(1);
        } else {
            bad = middle;
        }
    }
    range.before(page(good))
}

/// Where a function is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Whether it may have landing pads for exceptions, to which nothing visible jumps.
    pub lands: bool,
}

/// A mapped ELF file.
#[derive(Clone, Copy)]
pub struct Module {
    memory: Memory,
    /// What is added to the addresses in the file.
    pub bias: u64,
    dynamic: Option<(u64, u64)>,
    /// Address of the sorted table of functions, and its entries.
    functions: Option<(u64, u32)>,
    /// Address of .eh_frame_hdr.
    frames: u64,
    /// Whether ld.so writes to its text (DT_TEXTREL), which may have been searched before.
    pub relocates_text: bool,
}

impl Module {
    /// The ELF file that `group` is mapped from. `None` if it is none of
    /// x86-64, or its header is not mapped.
    pub fn open(group: &Group) -> Option<Self> {
        Self::open_as(group, false)
    }

    /// As [`Module::open`], of what may be unmapped at any moment. It knows its functions, not
    /// its symbols.
    pub fn open_fleeting(group: &Group) -> Option<Self> {
        Self::open_as(group, true)
    }

    fn open_as(group: &Group, fleeting: bool) -> Option<Self> {
        let first = group.segments().next().filter(|s| s.offset == 0)?;
        let base = first.range.start();
        // Its last page was tried; the first may have a guard (MADV_GUARD_INSTALL).
        if !sys::readable(base) {
            return None;
        }
        let memory = Memory {
            fleeting,
            ..Memory::of(group)
        };
        let header: [u8; 64] = memory.array(base)?;
        if !header.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let phoff = memory.u64(base.checked_add(32)?)?;
        let entry_bytes = u64::from(memory.u16(base.checked_add(54)?)?);
        let entries = u64::from(memory.u16(base.checked_add(56)?)?);
        if entry_bytes != 56 {
            return None;
        }
        let mut module = Self {
            memory,
            bias: 0,
            dynamic: None,
            functions: None,
            frames: 0,
            relocates_text: false,
        };
        let at = |n: u64| base.checked_add(phoff)?.checked_add(n.checked_mul(56)?);
        (0..entries).find_map(|n| module.load(base, at(n)?))?;
        for n in 0..entries {
            module.note(at(n)?)?;
            module.relocates_text |= relocates_text(group, &memory, at(n)?);
        }
        module.functions = module.function_table();
        Some(module)
    }

    /// Takes the bias from the program header at `at` if it is the first one's.
    fn load(&mut self, base: u64, at: u64) -> Option<()> {
        let (kind, offset) = (self.memory.u32(at)?, self.memory.u64(at.checked_add(8)?)?);
        if kind != PT_LOAD || offset != 0 {
            return None;
        }
        self.bias = base.wrapping_sub(self.memory.u64(at.checked_add(16)?)?);
        Some(())
    }

    fn note(&mut self, at: u64) -> Option<()> {
        let kind = self.memory.u32(at)?;
        let place = self
            .bias
            .wrapping_add(self.memory.u64(at.checked_add(16)?)?);
        let bytes = self.memory.u64(at.checked_add(40)?)?;
        match kind {
            PT_DYNAMIC => self.dynamic = Some((place, bytes)),
            PT_GNU_EH_FRAME => self.frames = place,
            _ => (),
        }
        Some(())
    }

    /// What can be read of it.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    fn function_table(&self) -> Option<(u64, u32)> {
        let at = self.frames;
        // Version 1; a relative pointer, a plain count, a table relative to the header.
        if self.memory.array(at)? != [1u8, 0x1b, 0x03, 0x3b] {
            return None;
        }
        let count = self.memory.u32(at.checked_add(8)?)?;
        Some((at.checked_add(12)?, count))
    }

    /// Whether it lists its functions.
    pub fn has_functions(&self) -> bool {
        self.functions.is_some_and(|(_, count)| count > 0)
    }

    /// The function that `at` is in.
    pub fn function(&self, at: u64) -> Option<Bounds> {
        self.frame(self.frame_for(at)?)
            .filter(|f| f.start <= at && at < f.end)
    }

    /// Where it is written, in four bytes, how long the function is that `at` is in; if its
    /// frame description says nothing else, so that it is as true of what follows.
    pub fn extent(&self, at: u64) -> Option<u64> {
        let frame = self.frame_for(at)?;
        let bytes = u64::from(self.memory.u32(frame)?);
        let behind = frame.checked_add(FRAME_FIXED)?;
        let rest = bytes.checked_sub(FRAME_FIXED - 4)?;
        let says_nothing = |n: u64| Some(self.memory.u8(behind.checked_add(n)?)? == 0);
        let nothing = rest <= EXTENT_MAX && (0..rest).all(|n| says_nothing(n) == Some(true));
        nothing.then_some(frame.checked_add(12)?)
    }

    /// Address of the last frame description whose function begins at `at` or before.
    fn frame_for(&self, at: u64) -> Option<u64> {
        let (table, count) = self.functions?;
        let wanted = i32::try_from(at.wrapping_sub(self.frames) as i64).ok()?;
        let (mut low, mut high) = (0, u64::from(count));
        // One look at the windows is enough where nothing is unmapped.
        let all = self
            .memory
            .bytes(table, usize::try_from(high.checked_mul(8)?).ok()?);
        if all.is_none() && !self.memory.fleeting {
            return None;
        }
        let entry = |n: u64| -> Option<(i32, i32)> {
            let at = n.checked_mul(8)?;
            let [a, b, c, d, e, f, g, h] = match all {
                Some(all) => *all.get(usize::try_from(at).ok()?..)?.first_chunk()?,
                None => self.memory.array(table.checked_add(at)?)?,
            };
            let word = i32::from_le_bytes;
            Some((word([a, b, c, d]), word([e, f, g, h])))
        };
        while low < high {
            let middle = low + (high - low) / 2;
            if entry(middle)?.0 <= wanted {
                low = middle.checked_add(1)?;
            } else {
                high = middle;
            }
        }
        let (start, frame) = entry(low.checked_sub(1)?)?;
        let frame = self.frames.wrapping_add_signed(i64::from(frame));
        let start = self.frames.wrapping_add_signed(i64::from(start));
        (self.frame(frame)?.start == start).then_some(frame)
    }

    /// What the frame description at `at` describes.
    fn frame(&self, at: u64) -> Option<Bounds> {
        let back_at = at.checked_add(4)?;
        let back = self.memory.u32(back_at)?;
        let begin_at = at.checked_add(8)?;
        let start = begin_at.wrapping_add_signed(i64::from(self.memory.i32(begin_at)?));
        let bytes = u64::from(self.memory.u32(at.checked_add(12)?)?);
        // Augmentation "zPLR" or the like: L says that there are landing pads.
        let common = back_at.checked_sub(u64::from(back))?;
        let augmentation: [u8; 6] = self.memory.array(common.checked_add(9)?)?;
        let lands = augmentation
            .iter()
            .take_while(|&&b| b != 0)
            .any(|&b| b == b'L');
        Some(Bounds {
            start,
            end: start.checked_add(bytes)?,
            lands,
        })
    }

    /// The value of `tag` in the dynamic section.
    pub fn dynamic(&self, tag: u64) -> Option<u64> {
        let (at, bytes) = self.dynamic?;
        let entries = self.memory.bytes(at, usize::try_from(bytes).ok()?)?;
        let word = |b: &[u8]| b.first_chunk().map(|b| u64::from_le_bytes(*b));
        let entry = entries
            .chunks_exact(16)
            .find(|entry| word(entry) == Some(tag))?;
        word(entry.get(8..)?)
    }

    /// As [`Module::dynamic`], of a tag that is an address. ld.so turns some of
    /// these into real addresses and leaves others as they are in the file.
    pub fn pointer(&self, tag: u64) -> Option<u64> {
        let value = self.dynamic(tag)?;
        if value < self.bias {
            value.checked_add(self.bias)
        } else {
            Some(value)
        }
    }

    /// Address of the exported function `name`, its default version if there
    /// are several.
    pub fn symbol(&self, name: &[u8]) -> Option<u64> {
        let hash_at = self.pointer(tag::GNU_HASH)?;
        let memory = &self.memory;
        let buckets = memory.u32(hash_at)?;
        let first = memory.u32(hash_at.checked_add(4)?)?;
        let filter_words = u64::from(memory.u32(hash_at.checked_add(8)?)?);
        let buckets_at = hash_at
            .checked_add(16)?
            .checked_add(filter_words.checked_mul(8)?)?;
        let chains_at = buckets_at.checked_add(u64::from(buckets).checked_mul(4)?)?;
        let hash = gnu_hash(name);
        let bucket = u64::from(hash.checked_rem(buckets)?);
        let mut index = memory.u32(buckets_at.checked_add(bucket.checked_mul(4)?)?)?;
        let mut other = None;
        loop {
            let chain = u64::from(index.checked_sub(first)?).checked_mul(4)?;
            let link = memory.u32(chains_at.checked_add(chain)?)?;
            if link | 1 == hash | 1 {
                match self.exported(index, name) {
                    Some((address, true)) => return Some(address),
                    Some((address, false)) => other = Some(address),
                    None => (),
                }
            }
            if link & 1 == 1 {
                return other;
            }
            index = index.checked_add(1)?;
        }
    }

    /// Address of symbol `index` if it is the function `name` and defined here,
    /// and whether it is the default version.
    fn exported(&self, index: u32, name: &[u8]) -> Option<(u64, bool)> {
        let entry = self.symbol_entry(index)?;
        let kind = self.memory.u8(entry.checked_add(4)?)? & 15;
        let section = self.memory.u16(entry.checked_add(6)?)?;
        if kind != STT_FUNC || section == 0 || !self.names(index, name) {
            return None;
        }
        let value = self.memory.u64(entry.checked_add(8)?)?;
        let version = self.pointer(tag::VERSYM).and_then(|at| {
            let offset = u64::from(index).checked_mul(2)?;
            self.memory.u16(at.checked_add(offset)?)
        });
        let default = version.unwrap_or(0) & HIDDEN_VERSION == 0;
        Some((self.bias.wrapping_add(value), default))
    }

    fn symbol_entry(&self, index: u32) -> Option<u64> {
        let offset = u64::from(index).checked_mul(24)?;
        self.pointer(tag::SYMTAB)?.checked_add(offset)
    }

    /// Address of the name of symbol `index`.
    pub fn name_at(&self, index: u32) -> Option<u64> {
        let offset = self.memory.u32(self.symbol_entry(index)?)?;
        self.pointer(tag::STRTAB)?.checked_add(u64::from(offset))
    }

    /// Whether symbol `index` has this name.
    pub fn names(&self, index: u32, name: &[u8]) -> bool {
        self.name_at(index)
            .is_some_and(|at| self.memory.is_string(at, name))
    }
}

/// Whether the program header at `at` is that of a dynamic section which says that there are
/// relocations in the text. Where the section will be, the file need not be mapped as yet.
fn relocates_text(group: &Group, memory: &Memory, at: u64) -> bool {
    let word = |n: u64| memory.u64(at.saturating_add(n));
    let (Some(PT_DYNAMIC), Some(offset), Some(bytes)) = (memory.u32(at), word(8), word(32)) else {
        return false;
    };
    let holds = |s: &&Segment| s.offset <= offset && offset - s.offset < s.range.len();
    let segment = group.segments().find(holds);
    let start = segment.map(|s| s.range.start() + (offset - s.offset));
    let mut entries = (0..(bytes / 16).min(DYNAMIC_MAX)).map_while(|n| {
        let entry = start?.checked_add(n * 16)?;
        let pair = (memory.u64(entry)?, memory.u64(entry.checked_add(8)?)?);
        (pair.0 != 0).then_some(pair)
    });
    entries.any(|(tag, value)| tag == tag::TEXTREL || tag == tag::FLAGS && value & DF_TEXTREL != 0)
}

/// The hash of DT_GNU_HASH.
fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381u32, |h, &b| {
        h.wrapping_mul(33).wrapping_add(u32::from(b))
    })
}
