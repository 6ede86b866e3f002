//! A process's file: checked, and read without mapping it.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use super::error::OpenError;
use super::newest::{lists, words};
use super::process::{Mapping, Process};
use super::procfs;
use regall_directory::layout::{
    segment_offset, Generation, Header, CALLS, COUNTERS, DEVICE_WORDS, EXE_WORDS, HEADER_BYTES,
    INFLIGHT, MAGIC, SEGMENTS, SLOT_BYTES,
};
use regall_directory::reader::{Entry, Region, SLOT_WORDS};

/// A snapshot that the writer keeps from settling is given up after this.
const PATIENCE: Duration = Duration::from_millis(30);

/// Bytes that are read at a time.
const BLOCK: usize = 1024 * SLOT_BYTES;
/// Slots in use, beside those of ranges, for each mapping that a process can have: memory regions
/// of its domains.
const REGIONS: usize = 2;

/// A live process's directory, open.
#[derive(Debug)]
pub struct Directory {
    file: File,
    process: Process,
}

/// A slot in use, as it was copied.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Copied {
    n: u32,
    words: [u64; SLOT_WORDS],
}

/// The slots in use, in order, and what tells whether anything stands in the others that was not
/// there in another copy.
#[derive(PartialEq, Eq)]
struct Slots {
    used: Vec<Copied>,
    others: u64,
}

/// A hooked call in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inflight {
    /// Number of the call: an index of [`regall_directory::layout::Call::ALL`].
    pub call: u32,
    /// The thread, as the process sees it.
    pub tid: u32,
}

/// The header's values at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // as in `Header`
pub struct HeaderView {
    pub pid: u64,
    pub start_time: u64,
    pub image: u64,
    pub pid_namespace: u64,
    pub uid: u64,
    pub generation: Generation,
    pub high_water: u64,
    pub segments: u64,
    pub unpublished: u64,
    pub settings: u64,
    pub budget: u64,
    pub sites_patched: u64,
    pub sites_refused: u64,
    pub selftest_missed: u64,
    pub stack_floor: u64,
    pub counters: [u64; COUNTERS],
    pub calls: [u64; CALLS],
    /// Hooked calls that are marked as in progress, be their threads alive or not.
    pub inflight: Vec<Inflight>,
    /// Name of the executable.
    pub exe: String,
    /// Number of the domain that the HCA column is about; 0: none.
    pub primary: u64,
    /// The device that REGALL_HCA names; empty: none.
    pub device: String,
}

/// What a directory said at one time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The header as it was when the entries were these.
    pub header: HeaderView,
    /// Sorted, without overlaps: where two were published for the same bytes,
    /// the newer one has them.
    pub entries: Vec<Entry>,
    /// Sorted by domain and address, within a domain without overlaps, likewise.
    pub regions: Vec<Region>,
    /// Hooked calls in progress, of threads that are alive.
    pub busy: usize,
    /// Whether all entries and regions were there at one and the same time. If not, the
    /// writer changed them all the time; each entry is whole nevertheless.
    pub stable: bool,
}

impl Directory {
    /// The directory in `file`, which must say that it is the process's.
    pub(crate) fn of(file: File, process: &Process) -> Result<Self, OpenError> {
        let directory = Self {
            file,
            process: process.clone(),
        };
        directory.check_file()?;
        directory.header()?;
        Ok(directory)
    }

    /// Whose it is.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Whose lines it writes: the process's effective user; of a file that belongs neither to that
    /// user, nor to the one whom it can become again, nor to root, the file's owner, who may have
    /// put it into a setuid program.
    pub fn user(&self) -> u32 {
        let [effective, _, saved] = self.process.uids;
        let owner = self.file.metadata().map_or(effective, |m| m.uid());
        match [effective, saved, 0].contains(&owner) {
            true => effective,
            false => owner,
        }
    }

    /// How many slots it has room for.
    pub(crate) fn slots(&self) -> usize {
        let bytes = self.file.metadata().map_or(0, |m| m.len());
        usize::try_from(bytes).unwrap_or(usize::MAX) / SLOT_BYTES
    }

    fn check_file(&self) -> Result<(), OpenError> {
        let meta = self.file.metadata()?;
        if !meta.is_file() {
            return Err(OpenError::Corrupt("its file is no regular file"));
        }
        if meta.len() == 0 {
            // Just created: its writer allocates its first part in one step.
            return Err(OpenError::Unpublished);
        }
        if meta.len() < HEADER_BYTES as u64 || meta.len() > segment_offset(SEGMENTS) as u64 {
            return Err(OpenError::Corrupt("its file's size"));
        }
        Ok(())
    }

    /// The process's mappings. [`OpenError::Inert`] if the file is not among
    /// them: then it is what an earlier image of the process left, which has
    /// executed another program since.
    pub fn mappings(&self) -> Result<Vec<Mapping>, OpenError> {
        let meta = self.file.metadata()?;
        let mappings = self.process.mappings()?;
        match mappings.iter().any(|m| m.is_of(&meta)) {
            true => Ok(mappings),
            false => Err(OpenError::Inert),
        }
    }

    /// The header alone.
    pub fn header(&self) -> Result<HeaderView, OpenError> {
        let mut bytes = vec![0; HEADER_BYTES];
        self.file.read_exact_at(&mut bytes, 0)?;
        let header: Vec<u64> = words(&bytes).collect();
        let header = HeaderView::from_words(&header)?;
        if header.pid != u64::from(self.process.own_pid)
            || header.start_time != self.process.start_time
            || header.pid_namespace != self.process.namespace
        {
            return Err(OpenError::Corrupt("it is another process's"));
        }
        Ok(header)
    }

    /// Calls in progress whose threads are alive.
    pub fn busy(&self, header: &HeaderView) -> usize {
        let threads: Vec<_> = header.inflight.iter().map(|i| i.tid).collect();
        self.process.threads(&threads)
    }

    /// What the whole says.
    ///
    /// Copies are not atomic, so the slots are read until two copies in a row
    /// are equal, generations included. A generation is never used twice, so
    /// these are the entries that there were at each moment between the two
    /// copies, at one of which the header was read.
    pub fn snapshot(&self) -> Result<Snapshot, OpenError> {
        let began = Instant::now();
        let mut before = self.copy()?;
        loop {
            let header = self.header()?;
            let mut now = self.copy()?;
            let stable = now == before;
            if stable || began.elapsed() > PATIENCE {
                self.settle(&mut now.used, before)?;
                let (entries, regions) = lists(now.used.into_iter().map(|slot| slot.words))?;
                return Ok(Snapshot {
                    busy: self.busy(&header),
                    entries,
                    regions,
                    header,
                    stable,
                });
            }
            before = now;
        }
    }

    /// Reads each slot that is not as it was `before` until it is the same twice in a row; those
    /// that never are go.
    fn settle(&self, slots: &mut Vec<Copied>, before: Slots) -> Result<(), OpenError> {
        let mut before = before.used.into_iter().peekable();
        let mut wrong = None;
        slots.retain_mut(|slot| {
            while before.next_if(|b| b.n < slot.n).is_some() {}
            if before.next_if_eq(slot).is_some() {
                return true;
            }
            for _ in 0..100 {
                let again = match self.slot(slot.n) {
                    Ok(words) => words,
                    Err(why) => {
                        wrong = Some(why);
                        return false;
                    }
                };
                if std::mem::replace(&mut slot.words, again) == again {
                    return true;
                }
            }
            false
        });
        wrong.map_or(Ok(()), Err)
    }

    fn slot(&self, n: u32) -> Result<[u64; SLOT_WORDS], OpenError> {
        let mut bytes = [0; SLOT_BYTES];
        let at = HEADER_BYTES as u64 + u64::from(n) * SLOT_BYTES as u64;
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(slot(&bytes))
    }

    /// A copy of the slots in use. [`OpenError::TooLong`]: they are more than a process can need.
    fn copy(&self) -> Result<Slots, OpenError> {
        let all = self.used()?;
        let most = procfs::most_mappings();
        let (mut ranges, mut regions) = (0, 0);
        let mut slots = Slots {
            used: Vec::new(),
            others: 0,
        };
        let mut block = vec![0; BLOCK];
        let mut n = 0;
        while (n as usize) < all {
            let count = (all - n as usize).min(BLOCK / SLOT_BYTES);
            let bytes = block.get_mut(..count * SLOT_BYTES).unwrap_or_default();
            let at = HEADER_BYTES as u64 + u64::from(n) * SLOT_BYTES as u64;
            self.file.read_exact_at(bytes, at)?;
            for bytes in bytes.chunks_exact(SLOT_BYTES) {
                let words = slot(bytes);
                match words {
                    [0, rest @ ..] => slots.others = mixed(slots.others, &rest),
                    [.., 0, _] => ranges += 1,
                    _ => regions += 1,
                }
                if words.first() != Some(&0) {
                    slots.used.push(Copied { n, words });
                }
                n += 1;
            }
            if ranges > most || regions > most.saturating_mul(REGIONS) {
                return Err(OpenError::TooLong);
            }
        }
        Ok(slots)
    }

    /// How many slots have been used.
    fn used(&self) -> Result<usize, OpenError> {
        let high_water = self.header()?.high_water;
        let bytes = high_water.saturating_mul(SLOT_BYTES as u64);
        let end = bytes.saturating_add(HEADER_BYTES as u64);
        let meta = self.file.metadata()?;
        // The writer allocates ahead; a sparse file could claim any size.
        if end > meta.len() || end > meta.blocks().saturating_mul(512) {
            return Err(OpenError::Corrupt("more slots than its file holds"));
        }
        Ok(high_water as usize)
    }
}

/// The words of one slot.
fn slot(bytes: &[u8]) -> [u64; SLOT_WORDS] {
    let mut all = [0; SLOT_WORDS];
    all.iter_mut().zip(words(bytes)).for_each(|(w, n)| *w = n);
    all
}

/// A sum of words in which their order counts.
fn mixed(sum: u64, words: &[u64]) -> u64 {
    // (Odd, and near the golden ratio of 2^64.)
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |sum: u64, word: &u64| (sum.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    words.iter().fold(sum, mix)
}

impl HeaderView {
    /// From the file's first words; the first is written last.
    fn from_words(words: &[u64]) -> Result<Self, OpenError> {
        let word = |offset: usize| words.get(offset / 8).copied().unwrap_or(0);
        match word(offset_of!(Header, magic)) {
            MAGIC => {}
            0 => return Err(OpenError::Unpublished),
            _ => return Err(OpenError::Corrupt("its first word, or another version")),
        }
        let array = |offset: usize, i: usize| word(offset + i * 8);
        let inflight = (0..INFLIGHT)
            .map(|i| array(offset_of!(Header, inflight), i))
            .filter(|&w| w != 0)
            .map(|w| Inflight {
                call: (w >> 32) as u32,
                tid: w as u32,
            });
        let text = |offset: usize, words: usize| -> String {
            let bytes = (0..words).flat_map(|i| array(offset, i).to_ne_bytes());
            let bytes: Vec<u8> = bytes.take_while(|&b| b != 0).collect();
            String::from_utf8_lossy(&bytes).escape_debug().collect()
        };
        Ok(Self {
            pid: word(offset_of!(Header, pid)),
            start_time: word(offset_of!(Header, start_time)),
            image: word(offset_of!(Header, image)),
            pid_namespace: word(offset_of!(Header, pid_namespace)),
            uid: word(offset_of!(Header, uid)),
            generation: Generation::from_raw(word(offset_of!(Header, generation))),
            high_water: word(offset_of!(Header, high_water)),
            segments: word(offset_of!(Header, segments)),
            unpublished: word(offset_of!(Header, unpublished)),
            settings: word(offset_of!(Header, settings)),
            budget: word(offset_of!(Header, budget)),
            sites_patched: word(offset_of!(Header, sites_patched)),
            sites_refused: word(offset_of!(Header, sites_refused)),
            selftest_missed: word(offset_of!(Header, selftest_missed)),
            stack_floor: word(offset_of!(Header, stack_floor)),
            counters: std::array::from_fn(|i| array(offset_of!(Header, counters), i)),
            calls: std::array::from_fn(|i| array(offset_of!(Header, calls), i)),
            inflight: inflight.collect(),
            exe: text(offset_of!(Header, exe), EXE_WORDS),
            primary: word(offset_of!(Header, primary)),
            device: text(offset_of!(Header, device), DEVICE_WORDS),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
