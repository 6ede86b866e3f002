//! A process's file: checked, and read without mapping it.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::newest::{lists, words};
use super::process::{Mapping, Process};
use super::{Entry, OpenError, Region};
use regall_directory::layout::{
    segment_offset, Generation, Header, CALLS, COUNTERS, DEVICE_WORDS, EXE_WORDS, HEADER_BYTES,
    INFLIGHT, MAGIC, SEGMENTS, SLOT_BYTES,
};
use regall_sys::file::{major, minor};

/// A snapshot that the writer keeps from settling is given up after this.
const PATIENCE: Duration = Duration::from_millis(30);

/// A live process's directory, open.
#[derive(Debug)]
pub struct Directory {
    file: File,
    process: Process,
    path: PathBuf,
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
    /// The directory in `file`, which must be the user's and say that it is the process's.
    pub(crate) fn of(
        file: File,
        process: &Process,
        path: PathBuf,
        uid: u32,
    ) -> Result<Self, OpenError> {
        let directory = Self {
            file,
            process: process.clone(),
            path,
        };
        directory.check_file(uid)?;
        directory.header()?;
        Ok(directory)
    }

    /// Whose it is.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn check_file(&self, uid: u32) -> Result<(), OpenError> {
        let meta = self.file.metadata()?;
        if !meta.is_file() {
            return Err(OpenError::Corrupt("its file is no regular file"));
        }
        if meta.uid() != uid {
            return Err(OpenError::Corrupt("its file belongs to someone else"));
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
        let device = (major(meta.dev()), minor(meta.dev()));
        let mappings = self.process.mappings()?;
        let ours = |m: &Mapping| m.inode == meta.ino() && m.device == device;
        match mappings.iter().any(ours) {
            true => Ok(mappings),
            false => Err(OpenError::Inert),
        }
    }

    /// The header alone.
    pub fn header(&self) -> Result<HeaderView, OpenError> {
        let header: Vec<u64> = words(&self.read(0, HEADER_BYTES)?).collect();
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
        let alive = |i: &&Inflight| self.process.has_thread(i.tid);
        header.inflight.iter().filter(alive).count()
    }

    /// What the whole says.
    ///
    /// Copies are not atomic, so the slots are read until two copies in a row
    /// are equal, generations included. A generation is never used twice, so
    /// these are the entries that there were at each moment between the two
    /// copies, at one of which the header was read.
    pub fn snapshot(&self) -> Result<Snapshot, OpenError> {
        let began = Instant::now();
        let mut slots = self.slots()?;
        loop {
            let header = self.header()?;
            let (stable, changed) = self.reread(&mut slots)?;
            if stable || began.elapsed() > PATIENCE {
                self.settle(&mut slots, &changed)?;
                let (entries, regions) = lists(&slots)?;
                return Ok(Snapshot {
                    busy: self.busy(&header),
                    entries,
                    regions,
                    header,
                    stable,
                });
            }
        }
    }

    /// Makes a newer copy of an earlier one; whether they are equal, and the
    /// numbers of the slots that differ (of those that are new, from free ones).
    fn reread(&self, slots: &mut Vec<u8>) -> Result<(bool, Vec<usize>), OpenError> {
        let bytes = self.used()?;
        let as_many = slots.len() == bytes;
        slots.resize(bytes, 0);
        let mut changed = Vec::new();
        let mut block = vec![0; 1024 * SLOT_BYTES];
        for (k, known) in slots.chunks_mut(block.len()).enumerate() {
            let Some(new) = block.get_mut(..known.len()) else {
                continue;
            };
            let at = k * 1024;
            self.file
                .read_exact_at(new, (HEADER_BYTES + at * SLOT_BYTES) as u64)?;
            if *new == *known {
                continue;
            }
            let both = new
                .chunks_exact(SLOT_BYTES)
                .zip(known.chunks_exact(SLOT_BYTES));
            let differ = both.enumerate().filter(|(_, (new, known))| new != known);
            changed.extend(differ.map(|(n, _)| at + n));
            known.copy_from_slice(new);
        }
        Ok((as_many && changed.is_empty(), changed))
    }

    /// Reads each slot of these numbers until it is the same twice in a row; the
    /// copy loses the one that never is.
    fn settle(&self, slots: &mut [u8], changed: &[usize]) -> Result<(), OpenError> {
        for at in changed.iter().map(|n| n * SLOT_BYTES) {
            let Some(slot) = slots.get_mut(at..at + SLOT_BYTES) else {
                continue;
            };
            let mut settled = false;
            for _ in 0..100 {
                let mut again = [0; SLOT_BYTES];
                self.file
                    .read_exact_at(&mut again, (HEADER_BYTES + at) as u64)?;
                settled = *slot == again;
                slot.copy_from_slice(&again);
                if settled {
                    break;
                }
            }
            if !settled {
                slot.fill(0);
            }
        }
        Ok(())
    }

    /// A copy of the slots that have been used.
    fn slots(&self) -> Result<Vec<u8>, OpenError> {
        self.read(HEADER_BYTES, self.used()?)
    }

    /// Bytes of the slots that have been used.
    fn used(&self) -> Result<usize, OpenError> {
        let high_water = self.header()?.high_water;
        let bytes = high_water.saturating_mul(SLOT_BYTES as u64);
        let end = bytes.saturating_add(HEADER_BYTES as u64);
        let meta = self.file.metadata()?;
        // The writer allocates ahead; a sparse file could claim any size.
        if end > meta.len() || end > meta.blocks().saturating_mul(512) {
            return Err(OpenError::Corrupt("more slots than its file holds"));
        }
        Ok(bytes as usize)
    }

    /// `count` bytes of the file from byte `offset` on.
    fn read(&self, offset: usize, count: usize) -> Result<Vec<u8>, OpenError> {
        let mut bytes = vec![0; count];
        self.file.read_exact_at(&mut bytes, offset as u64)?;
        Ok(bytes)
    }
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
mod tests;
