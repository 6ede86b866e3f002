//! What a peer has registered, sorted by address: a copy of its directory, which is
//! right as long as the entries' generations say so.

use crate::host::Host;
use crate::memory::Array;
use crate::view::{Stamp, View};
use core::sync::atomic::Ordering::*;
use regall_directory::layout::Generation;
use regall_directory::reader::{read_slot, Published};
use regall_directory::vocab::{Attr, Kind, Prot};
use regall_sys::{Errno, Result};

/// A copy is made anew so often, at the most, while its original changes all the time.
const PATIENCE: usize = 16;

/// A range that the peer published.
#[derive(Clone, Copy)]
pub struct Known {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// The event that published it.
    pub generation: Generation,
    slot: u32,
    prot: Prot,
    kind: Kind,
    registered: bool,
    open: bool,
}

impl Known {
    /// Whether it is a shared mapping.
    #[inline]
    pub fn shared(&self) -> bool {
        self.prot.shared()
    }

    /// Whether no file is behind it that somebody could cut short.
    pub fn without_file(&self) -> bool {
        let private = matches!(
            self.kind,
            Kind::Anon | Kind::Heap | Kind::Stack | Kind::ThreadStack
        );
        private && !self.shared() || self.kind == Kind::Shm
    }

    /// Its slot in the directory.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    fn new(range: (u64, u64), generation: Generation, slot: usize, attr: Attr) -> Self {
        Self {
            start: range.0,
            end: range.1,
            generation,
            slot: slot as u32,
            prot: attr.prot,
            kind: attr.kind,
            registered: attr.registered(),
            open: attr.is_open(),
        }
    }

    /// Whether its protection lets it be read, or written.
    #[inline]
    pub fn allows(&self, write: bool) -> bool {
        match write {
            true => self.prot.writable(),
            false => self.prot.readable(),
        }
    }

    /// Whether a peer may read or write it: memory that nobody has opted out ([`Attr::is_open`]).
    pub fn is_open(&self, write: bool) -> bool {
        self.open && self.allows(write)
    }

    /// Whether it may be read, or written: EFAULT if it is not registered, EACCES if
    /// its protection says no.
    #[inline]
    pub fn permits(&self, write: bool) -> Result<()> {
        match (self.registered, write) {
            (false, _) => Err(Errno::FAULT),
            (_, false) if self.prot.readable() => Ok(()),
            (_, true) if self.prot.writable() => Ok(()),
            _ => Err(Errno::ACCES),
        }
    }
}

/// All of them.
pub struct Snapshot {
    known: Array<Known>,
    /// Index of the last one that was found.
    last: usize,
    /// Whether nothing changed while it was made.
    whole: bool,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::new()
    }
}

impl Snapshot {
    /// A list of no ranges.
    pub const fn new() -> Self {
        Self {
            known: Array::new(),
            last: 0,
            whole: false,
        }
    }

    /// The entry that holds `addr`, as it is now. EFAULT: there is none.
    #[inline]
    pub fn at(&mut self, host: &dyn Host, view: &mut View, addr: u64) -> Result<(Known, Stamp)> {
        if let Some(found) = self.look(view, addr) {
            return Ok(found);
        }
        self.look_anew(host, view, addr)
    }

    #[inline]
    fn look(&mut self, view: &View, addr: u64) -> Option<(Known, Stamp)> {
        let known = self.known.as_slice();
        let holds = |k: &Known| k.start <= addr && addr < k.end;
        let found = match known.get(self.last).filter(|k| holds(k)) {
            Some(found) => found,
            None => {
                let n = known.partition_point(|k| k.start <= addr).checked_sub(1)?;
                self.last = n;
                known.get(n).filter(|k| holds(k))?
            }
        };
        let stamp = Stamp::of(view.slot(found.slot as usize)?, found.generation);
        // SAFETY: the view is here.
        unsafe { stamp.holds() }.then_some((*found, stamp))
    }

    #[cold]
    #[inline(never)]
    fn look_anew(&mut self, host: &dyn Host, view: &mut View, addr: u64) -> Result<(Known, Stamp)> {
        for _ in 0..PATIENCE {
            self.make(host, view)?;
            if let Some(found) = self.look(view, addr) {
                return Ok(found);
            }
            // An entry that was moved meanwhile may have been missed.
            if self.whole {
                break;
            }
        }
        Err(Errno::FAULT)
    }

    /// Copies the directory.
    fn make(&mut self, host: &dyn Host, view: &mut View) -> Result<()> {
        let used = view.used(host)?;
        let before = quiet(view);
        self.known.empty_with_room(host, used)?;
        self.last = 0;
        for n in 0..used {
            let Some(slot) = view.slot(n) else {
                break;
            };
            // SAFETY: mapped as long as the view is, and all atomics.
            let slot = unsafe { slot.as_ref() };
            match read_slot(slot).map_err(|_| Errno::NOEXEC)? {
                Some(Published::Range(e)) => {
                    let range = (e.range.start(), e.range.end());
                    self.known.push(Known::new(range, e.generation, n, e.attr));
                }
                Some(Published::Region(_)) | None => (),
            }
        }
        self.whole = before.is_some() && before == quiet(view);
        self.put_in_order();
        Ok(())
    }

    /// Sorts them, and drops what has been replaced meanwhile: where two hold the same
    /// bytes, the newer one is right. (What the older one held beside it is missing
    /// then, and found when the copy is made anew.)
    fn put_in_order(&mut self) {
        let known = self.known.as_mut_slice();
        known.sort_unstable_by_key(|k| k.start);
        let mut kept = 0usize;
        for n in 0..known.len() {
            let Some(&next) = known.get(n) else { break };
            let last = kept.checked_sub(1).and_then(|n| known.get(n).copied());
            match last {
                Some(last) if last.end > next.start && last.generation > next.generation => {
                    self.whole = false;
                    continue;
                }
                Some(last) if last.end > next.start => {
                    self.whole = false;
                    kept -= 1;
                }
                _ => (),
            }
            if let Some(place) = known.get_mut(kept) {
                *place = next;
                kept += 1;
            }
        }
        self.known.truncate(kept);
    }

    /// Forgets everything: the list was left half done.
    pub fn forget(&mut self) {
        self.known.truncate(0);
        self.last = 0;
        self.whole = false;
    }

    /// Gives its memory back.
    pub fn release(&mut self, host: &dyn Host) {
        self.known.release(host);
    }
}

/// The generation, if no hooked call is in progress.
fn quiet(view: &View) -> Option<Generation> {
    let header = view.header()?;
    let busy = header.inflight.iter().any(|i| i.load(Acquire) != 0);
    (!busy).then(|| Generation::from_raw(header.generation.load(Acquire)))
}
