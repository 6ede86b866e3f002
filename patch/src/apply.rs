//! Carries plans out: a trampoline, its place in the table of sites, the jump that leads to it;
//! and takes them back when the code goes.

use super::memory::Memory;
use super::modules;
use super::plan::{self, Plan, TABLE_BYTES};
use super::refused;
use super::sites::{Entry, Table};
use super::write::{Use, Writer};
use super::zone::{place_zone, Zone, HEADER_BYTES, TABLE_OFFSET};
use super::{Config, Site};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::planted;
use regall_sys::{self as sys, Errno, Result};

/// Zones at the most: each serves 4 GiB of addresses.
const ZONES_MAX: usize = 64;

/// Everything that the patcher knows.
pub struct Patches {
    zones: [Option<Zone>; ZONES_MAX],
    table: Table,
    /// What is to be patched.
    pub config: Config,
    /// Addresses of the two entry stubs.
    pub entries: [u64; 2],
    /// Whose the memory is that is patched.
    pub(super) memory: Memory,
    /// For reading the list of mappings while looking for a gap.
    buffer: [u8; modules::BUFFER_BYTES],
}

/// What is known of a site besides its plan.
#[derive(Clone, Copy)]
pub struct Found {
    /// First address of its function, for the record; 0: not known.
    pub function: u64,
    /// Whether the site is in the C library.
    pub libc: bool,
    /// Whether it is in a file's text.
    pub file: bool,
    /// Whether anybody may be running there.
    pub in_use: Use,
}

/// What a patch brought along.
#[derive(Default)]
pub struct Applied {
    /// Memory mapped for trampolines.
    pub zone: Option<PageRange>,
    /// Such memory in which there is no trampoline any more. It is still mapped.
    pub gone: Option<PageRange>,
    /// A new table, and the one that it replaces, which is still mapped.
    pub table: Option<(PageRange, Option<PageRange>)>,
}

impl Patches {
    /// A patcher that has patched nothing.
    #[allow(clippy::new_without_default)] // const, for a static
    pub const fn new() -> Self {
        Self {
            zones: [None; ZONES_MAX],
            table: Table::new(),
            config: Config {
                strict: false,
                ioctl: false,
                verbs: false,
            },
            entries: [0; 2],
            memory: Memory::UNKNOWN,
            buffer: [0; modules::BUFFER_BYTES],
        }
    }

    /// Patches a site.
    pub fn apply(
        &mut self,
        plan: &Plan,
        found: &Found,
        writer: &mut Writer,
        applied: &mut Applied,
    ) -> Result<()> {
        if self.table.is_full() {
            self.collect(writer);
            if self.table.is_crowded() {
                applied.table = self.table.grow()?;
            }
        }
        let number = self.zone_for(plan.site, writer, applied)?;
        let zone = self
            .zones
            .get_mut(number)
            .and_then(Option::as_mut)
            .ok_or(Errno::NOMEM)?;
        let place = zone.free().ok_or(Errno::NOMEM)?;
        let at = zone.address(place);
        let trampoline = plan.trampoline(at, &zone.layout()).ok_or(Errno::INVAL)?;
        let patch = plan.patch(trampoline.start()).ok_or(Errno::INVAL)?;
        writer.write(trampoline.start(), trampoline.bytes(), Use::Shared)?;
        zone.set(place, true);
        let entry = Entry {
            site: plan.site,
            jump: plan.jump_at(),
            to: trampoline.start(),
            first: plan.moved.first().copied().unwrap_or(0),
            function: found.function,
            number: plan
                .number
                .and_then(|n| i32::try_from(n).ok())
                .unwrap_or(-1),
            moved: plan.moved_len,
            libc: found.libc,
            file: found.file,
            displaced: false,
            unmapped: false,
            zone: number as u16,
            trampoline: place as u16,
        };
        self.table.push(entry);
        let written = write_jumps(plan, patch.bytes(), writer, found.in_use);
        if written.is_err() {
            self.forget_site(plan.site);
        }
        written
    }

    /// The zone for a site, made if there is none with room near it. Its frame is
    /// big; it is not to be on the stack all the time.
    #[inline(never)]
    fn zone_for(&mut self, site: u64, writer: &mut Writer, applied: &mut Applied) -> Result<usize> {
        let fits = |z: &Option<Zone>| {
            z.as_ref()
                .is_some_and(|z| z.reaches(site) && z.free().is_some())
        };
        if let Some(number) = self.zones.iter().position(fits) {
            return Ok(number);
        }
        self.collect(writer);
        if let Some(number) = self.zones.iter().position(fits) {
            return Ok(number);
        }
        // One that is far from all code that there is makes place for it.
        let empty = |z: &&mut Option<Zone>| z.as_ref().is_some_and(|z| z.is_empty() && !z.is_pool);
        if let Some(zone) = self.zones.iter_mut().find(empty) {
            applied.gone = zone.take().map(|zone| zone.range);
        }
        let number = self
            .zones
            .iter()
            .position(Option::is_none)
            .ok_or(Errno::NOMEM)?;
        let range = place_zone(site, &mut self.buffer)?;
        if let Err(errno) = self.write_header(range, writer, Use::Fresh) {
            super::unmap(range);
            return Err(errno);
        }
        *self.zones.get_mut(number).ok_or(Errno::NOMEM)? = Some(Zone::new(range, false));
        applied.zone = Some(range);
        Ok(number)
    }

    /// Takes the library's own pool as the first zone. What it does not reach, and
    /// what is too much for it, has zones that are mapped.
    pub fn take_pool(&mut self, pool: PageRange, writer: &mut Writer) -> Result<()> {
        self.write_header(pool, writer, Use::Shared)?;
        if let Some(first @ None) = self.zones.first_mut() {
            *first = Some(Zone::new(pool, true));
        }
        Ok(())
    }

    /// Writes a zone's header, by way of the buffer: the stack has little room.
    fn write_header(&mut self, zone: PageRange, writer: &mut Writer, in_use: Use) -> Result<()> {
        self.buffer.fill(0);
        let slots = self.entries.iter().flat_map(|e| e.to_le_bytes());
        self.buffer
            .iter_mut()
            .zip(slots)
            .for_each(|(to, from)| *to = from);
        let table = self.buffer.iter_mut().skip(TABLE_OFFSET as usize);
        let config = self.config;
        let kinds = (0..TABLE_BYTES as u32).map(|nr| plan::kind_of(nr, config) as u8);
        table.zip(kinds).for_each(|(to, from)| *to = from);
        let header = self.buffer.get(..HEADER_BYTES as usize).unwrap_or(&[]);
        writer.write(zone.start(), header, in_use)
    }

    /// Whether the `syscall` at `site`, whose patch would be at the end of
    /// `before`, is one of ours still.
    pub fn has(&self, site: u64, before: &[u8]) -> bool {
        // What is displaced has no jump there: `put_back` looks first.
        let Some(entry) = self.entries().find(|e| e.site == site) else {
            return false;
        };
        if entry.moved == 0 {
            // Somebody's probe on the short jump has gone: see `probes`.
            return before.ends_with(&entry.load());
        }
        let moved = usize::from(entry.moved);
        let jump = before
            .len()
            .checked_sub(moved)
            .and_then(|at| before.get(at..)?.get(..plan::JUMP_BYTES));
        jump.is_some_and(|jump| entry.jump_bytes().is_some_and(|ours| jump == ours))
    }

    /// Where jumps of ours were behind functions whose code was mapped anew: that of the site at
    /// `site`, and the first one behind it; 0: nowhere.
    pub fn landed(&self, site: u64) -> [u64; 2] {
        let mut found = [0; 2];
        let [own, next] = &mut found;
        let short = |e: &&Entry| e.displaced && e.moved == 0;
        for entry in self.table.all().iter().filter(short) {
            if entry.site == site {
                *own = entry.jump;
            }
            if entry.jump > site && (*next == 0 || entry.jump < *next) {
                *next = entry.jump;
            }
        }
        found
    }

    /// What one of our jumps, of which there is a copy at the end of `before`, has replaced, and
    /// its bytes. Where it goes is counted from where it was made for: a copy elsewhere goes
    /// wrong. `None`: there is none, or what it has replaced is not known.
    pub fn copied(
        &self,
        before: &[u8],
        writer: &mut Writer,
    ) -> Option<([u8; plan::MOVED_MAX], usize)> {
        if !matches!(before, [.., 0xe9, _, _, _, _] | [.., plan::BREAKPOINT]) {
            return None;
        }
        let mut all = self.table.all().iter();
        let entry = all.find(|e| e.is_copied(before))?;
        let mut bytes = [0; plan::MOVED_MAX];
        let moved = bytes.get_mut(..usize::from(entry.moved))?;
        // The trampoline begins with what it has taken over.
        let whole = writer.read(entry.to, moved) && plan::is_the_same_anywhere(moved);
        whole.then_some((bytes, usize::from(entry.moved)))
    }

    /// The code of those sites in `range` that have our jump no more is gone. It may come back,
    /// our jump with it, and nobody says so: their trampolines stay until their place is needed
    /// (`collect`), or other code is there.
    pub fn forget(&mut self, range: PageRange) {
        refused::forget(range);
        let mut writer = Writer::default();
        let touched = |e: &Entry| range.contains(e.site) || range.contains(e.jump);
        for n in 0..self.table.len {
            let Some(entry) = self.table.all().get(n).copied().filter(touched) else {
                continue;
            };
            let unmapped = is_unmapped(entry.jump);
            if unmapped || !writer.has_jump(entry.jump, entry.to) {
                self.table.displace(n, true, unmapped || entry.unmapped);
            }
        }
    }

    /// Frees the trampoline of `site`, whose code was replaced.
    pub fn forget_site(&mut self, site: u64) {
        self.drop_entries(|e| e.site == site);
    }

    /// Those sites in `range` whose jump is there again are ours again.
    pub fn put_back(&mut self, range: PageRange, writer: &mut Writer) {
        let touched = |e: &&Entry| range.contains(e.site) || range.contains(e.jump);
        for n in 0..self.table.len {
            let entry = self.table.all().get(n).filter(|e| e.displaced);
            let entry = entry.filter(touched);
            if entry.is_some_and(|e| writer.goes(e.jump) == Some(e.to)) {
                let displaced = planted!("sites-not-put-back", true, false);
                self.table.displace(n, displaced, false);
            }
        }
    }

    /// Frees the trampolines of code that is gone: unmapped, whatever is there now, or
    /// overwritten by its owner. What has our jump keeps it, and so does a file's text: who
    /// patches functions there (UCX) may have moved our jump with what stood before it, and still
    /// come to us by it.
    fn collect(&mut self, writer: &mut Writer) {
        let memory = self.memory;
        self.drop_entries(|e| {
            let other = e.unmapped || !(e.displaced && e.file) && memory.is_generated(e.jump);
            is_unmapped(e.jump) || other && !writer.has_jump(e.jump, e.to)
        });
    }

    /// Forgets those that `gone` says it of.
    fn drop_entries(&mut self, mut gone: impl FnMut(&Entry) -> bool) {
        let mut n = 0;
        while let Some(entry) = self.table.all().get(n).copied() {
            if !gone(&entry) {
                n += 1;
                continue;
            }
            if let Some(Some(zone)) = self.zones.get_mut(usize::from(entry.zone)) {
                zone.set(usize::from(entry.trampoline), false);
            }
            self.table.remove(n);
        }
    }

    /// The memory that the patcher mapped.
    pub fn memory(&self) -> impl Iterator<Item = PageRange> + '_ {
        self.zones
            .iter()
            .flatten()
            .filter(|z| !z.is_pool)
            .map(|z| z.range)
            .chain(self.table.range())
    }

    /// What is kept of each patched site whose code is there.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.table.all().iter().filter(|e| !e.displaced)
    }

    /// The patched sites.
    pub fn sites(&self) -> impl Iterator<Item = Site> + '_ {
        self.entries().map(|e| Site {
            address: e.site,
            number: u32::try_from(e.number).ok(),
            function: e.function,
            trusted: e.libc,
        })
    }
}

/// Writes the jump to the trampoline, and the short one that leads to it if there is one.
fn write_jumps(plan: &Plan, jump: &[u8], writer: &mut Writer, in_use: Use) -> Result<()> {
    if plan.landing == 0 {
        let there = plan.moved.get(..usize::from(plan.moved_len));
        return writer.patch(plan.jump_at(), there.unwrap_or(&[]), jump, in_use);
    }
    writer.put(plan.landing, &plan.padding, jump, in_use)?;
    let short = plan.short().ok_or(Errno::INVAL)?;
    if let (at @ 1.., bytes) = plan.extent {
        let before = bytes.saturating_sub(plan::JUMP_BYTES as u32);
        let (there, longer) = (before.to_le_bytes(), bytes.to_le_bytes());
        // Who walks the stack right there finds the way back by it.
        let extent = planted!("frame-not-extended", there, longer);
        let _ = writer.put(at, &there, &extent, in_use);
    }
    writer.patch(plan.site, &plan::SYSCALL, &short, in_use)
}

/// Whether the kernel has nothing at `at`.
fn is_unmapped(at: u64) -> bool {
    sys::residency(at & !(PAGE - 1), &mut [0]) == Err(Errno::NOMEM)
}
