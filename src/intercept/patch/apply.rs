//! Carries plans out: zones of trampolines near the code, the table of sites,
//! and writing to code.

use super::modules;
use super::plan::{
    self, fits_at_once, Plan, ZoneLayout, LINE_BYTES, STORE_BYTES, TABLE_BYTES, TRAMPOLINE_BYTES,
};
use super::{Config, Site};
use crate::sys::file::Fd;
use crate::sys::{self, Errno, Result};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::vocab::Kind;

/// Bytes of a zone that is mapped.
const ZONE_BYTES: u64 = 64 << 10;
/// Bytes at a zone's start that hold the entry stubs' addresses and the table.
pub const HEADER_BYTES: u64 = 1024;
const TABLE_OFFSET: u64 = 64;
const TRAMPOLINES: usize = ((ZONE_BYTES - HEADER_BYTES) / TRAMPOLINE_BYTES as u64) as usize;
const WORDS: usize = TRAMPOLINES.div_ceil(64);
/// Zones at the most: each serves 4 GiB of addresses.
const ZONES_MAX: usize = 64;
/// Farthest that a zone's bytes may be from a site: the reach of `jmp rel32`
/// less a page.
const REACH: u64 = (2 << 30) - PAGE;
/// Addresses below this are left alone, whatever vm.mmap_min_addr is.
const LOWEST: u64 = 1 << 20;
/// User addresses end here (47 bits; nothing is placed higher unasked).
const HIGHEST: u64 = 0x7fff_ffff_f000;
/// Room above the program break and below [stack] that is theirs to grow into.
const GROWTH_ROOM: u64 = 16 << 30;

const _: () = assert!(modules::BUFFER_BYTES >= HEADER_BYTES as usize);
const _: () = assert!(TABLE_OFFSET as usize + TABLE_BYTES <= HEADER_BYTES as usize);

/// A piece of memory with trampolines in it.
#[derive(Clone, Copy)]
struct Zone {
    range: PageRange,
    /// Whether it is the library's own pool, and not mapped by the patcher.
    is_pool: bool,
    used: [u64; WORDS],
}

impl Zone {
    fn new(range: PageRange, is_pool: bool) -> Self {
        Self {
            range,
            is_pool,
            used: [0; WORDS],
        }
    }

    fn layout(&self) -> ZoneLayout {
        let at = self.range.start();
        ZoneLayout {
            call_slot: at,
            full_slot: at.saturating_add(8),
            table: at.saturating_add(TABLE_OFFSET),
        }
    }

    /// Address of trampoline `n`.
    fn address(&self, n: usize) -> u64 {
        let offset = (n as u64).saturating_mul(TRAMPOLINE_BYTES as u64);
        self.range
            .start()
            .saturating_add(HEADER_BYTES)
            .saturating_add(offset)
    }

    fn reaches(&self, site: u64) -> bool {
        reaches(self.range, site)
    }

    fn free(&self) -> Option<usize> {
        let used = |n: &usize| {
            self.used
                .get(n / 64)
                .is_none_or(|w| w & (1 << (n % 64)) != 0)
        };
        let slots = self.range.len().saturating_sub(HEADER_BYTES) / TRAMPOLINE_BYTES as u64;
        (0..TRAMPOLINES.min(slots as usize)).find(|n| !used(n))
    }

    fn is_empty(&self) -> bool {
        self.used.iter().all(|word| *word == 0)
    }

    fn set(&mut self, n: usize, used: bool) {
        let Some(word) = self.used.get_mut(n / 64) else {
            return;
        };
        let bit = 1u64 << (n % 64);
        *word = if used { *word | bit } else { *word & !bit };
    }
}

fn reaches(range: PageRange, site: u64) -> bool {
    range.start().abs_diff(site) < REACH && range.end().abs_diff(site) < REACH
}

/// A patched site.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    /// Address of the `syscall`, or of the short jump in its place.
    pub site: u64,
    function: u64,
    /// Where the jump to the trampoline is, and where it goes.
    pub jump: u64,
    pub to: u64,
    /// The site's call number; -1: any.
    pub number: i32,
    /// Bytes that moved; 0: there is a short jump at the site.
    pub moved: u8,
    /// First byte of what moved.
    pub first: u8,
    libc: bool,
    /// Whether the code was a file's.
    file: bool,
    /// Whether something else has been mapped where the code was. Who moves text to huge pages
    /// puts back what was there, our jump with it: until then the trampoline stays what it is.
    displaced: bool,
    zone: u16,
    trampoline: u16,
}

impl Entry {
    /// The jump to the trampoline.
    pub(super) fn jump_bytes(&self) -> Option<[u8; plan::JUMP_BYTES]> {
        let behind = self.jump.wrapping_add(plan::JUMP_BYTES as u64);
        let distance = i32::try_from(self.to.wrapping_sub(behind) as i64).ok()?;
        let [a, b, c, d] = distance.to_le_bytes();
        Some([0xe9, a, b, c, d])
    }

    /// Whether `before` ends as what is before this site does.
    fn is_copied(&self, before: &[u8]) -> bool {
        let moved = usize::from(self.moved);
        let start = before.len().checked_sub(moved).filter(|_| moved > 0);
        let there = start.and_then(|start| before.get(start..));
        match (there, self.jump_bytes()) {
            (Some(there), Some(jump)) => there
                .strip_prefix(&jump)
                .is_some_and(|rest| rest.iter().all(|byte| *byte == plan::BREAKPOINT)),
            _ => false,
        }
    }
}

/// The patched sites, in memory mapped for them.
#[derive(Clone, Copy)]
struct Table {
    at: *mut Entry,
    room: usize,
    len: usize,
}

/// Entries of the first table: two pages.
const TABLE_ROOM: usize = 8192 / size_of::<Entry>();

impl Table {
    const fn new() -> Self {
        Self {
            at: core::ptr::null_mut(),
            room: 0,
            len: 0,
        }
    }

    fn all(&self) -> &[Entry] {
        if self.at.is_null() {
            return &[];
        }
        // SAFETY: `at` points to `room` entries mapped by `grow`, of which the
        // first `len` are written; whoever holds the patcher's lock owns them.
        unsafe { core::slice::from_raw_parts(self.at, self.len) }
    }

    fn range(&self) -> Option<PageRange> {
        PageRange::covering(
            self.at as u64,
            self.room.saturating_mul(size_of::<Entry>()) as u64,
        )
    }

    fn is_full(&self) -> bool {
        self.len >= self.room
    }

    /// Whether it is worth a bigger one: not for a few entries.
    fn is_crowded(&self) -> bool {
        self.len >= self.room - self.room / 4
    }

    /// A bigger one. The new table, and the old one, which is still mapped.
    fn grow(&mut self) -> Result<Option<(PageRange, Option<PageRange>)>> {
        let room = self.room.checked_mul(2).unwrap_or(0).max(TABLE_ROOM);
        let bytes = room.checked_mul(size_of::<Entry>()).ok_or(Errno::NOMEM)?;
        let new = sys::map_private(bytes)?.cast::<Entry>().as_ptr();
        let old = self.range();
        // SAFETY: `new` has room for more than `len` entries and is not the old table.
        unsafe { core::ptr::copy_nonoverlapping(self.all().as_ptr(), new, self.len) };
        self.at = new;
        self.room = room;
        Ok(self.range().map(|new| (new, old)))
    }

    /// Adds an entry, for which `grow` made room.
    fn push(&mut self, entry: Entry) {
        if self.len < self.room {
            // SAFETY: in bounds by the condition; the memory is mapped and ours.
            unsafe { self.at.add(self.len).write(entry) };
            self.len += 1;
        }
    }

    /// Says of entry `n` whether something else is mapped where its code was.
    fn displace(&mut self, n: usize, displaced: bool) {
        if n < self.len {
            // SAFETY: n < len <= room; the memory is mapped and ours.
            unsafe { (*self.at.add(n)).displaced = displaced };
        }
    }

    /// Takes entry `n` out; the last one takes its place.
    fn remove(&mut self, n: usize) -> Option<Entry> {
        let gone = *self.all().get(n)?;
        let last = *self.all().last()?;
        // SAFETY: n < len <= room; the memory is mapped and ours.
        unsafe { self.at.add(n).write(last) };
        self.len -= 1;
        Some(gone)
    }
}

/// Everything that the patcher knows.
pub struct Patches {
    zones: [Option<Zone>; ZONES_MAX],
    table: Table,
    /// What is to be patched.
    pub config: Config,
    /// Addresses of the two entry stubs.
    pub entries: [u64; 2],
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
            },
            entries: [0; 2],
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
            zone: number as u16,
            trampoline: place as u16,
        };
        self.table.push(entry);
        let mut written = match plan.landing {
            0 => {
                let there = plan.moved.get(..usize::from(plan.moved_len));
                let there = there.unwrap_or(&[]);
                writer.patch(plan.jump_at(), there, patch.bytes(), found.in_use)
            }
            landing => writer.put(landing, &plan.padding, patch.bytes(), found.in_use),
        };
        if let (Ok(()), false) = (written, plan.landing == 0) {
            let short = plan.short().ok_or(Errno::INVAL)?;
            if let (at @ 1.., bytes) = plan.extent {
                let before = bytes.saturating_sub(plan::JUMP_BYTES as u32);
                let (there, longer) = (before.to_le_bytes(), bytes.to_le_bytes());
                // Who walks the stack right there finds the way back by it.
                let _ = writer.put(at, &there, &longer, found.in_use);
            }
            written = writer.patch(plan.site, &plan::SYSCALL, &short, found.in_use);
        }
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
        let Some(entry) = self.table.all().iter().find(|e| e.site == site) else {
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

    /// Frees the trampolines of those sites in `range` that are gone. Where something else is
    /// mapped, that of the last code there stays until the memory goes, or other code is there.
    pub fn forget(&mut self, range: PageRange) {
        let mut writer = Writer::default();
        let touched = |e: &Entry| range.contains(e.site) || range.contains(e.jump);
        self.drop_entries(|e| touched(e) && (e.displaced || is_unmapped(e.jump)));
        for n in 0..self.table.len {
            let entry = self.table.all().get(n);
            let entry = entry.filter(|e| touched(e) && !writer.has_jump(e.jump, e.to));
            if entry.is_some() {
                self.table.displace(n, true);
            }
        }
    }

    /// Frees the trampoline of `site`, whose code was replaced.
    pub fn forget_site(&mut self, site: u64) {
        self.drop_entries(|e| e.site == site);
    }

    /// The site, whose jump is there, is one of ours again.
    pub fn put_back(&mut self, site: u64) {
        let mut all = self.table.all().iter();
        if let Some(n) = all.position(|e| e.site == site && e.displaced) {
            self.table.displace(n, false);
        }
    }

    /// Frees the trampolines of code that went without a word: overwritten by its owner, or
    /// unmapped when it had not been executable for a while. What has our jump keeps it, and
    /// so does a file's text: who patches functions there (UCX) may have moved our jump with
    /// what stood before it, and still come to us by it.
    fn collect(&mut self, writer: &mut Writer) {
        self.drop_entries(|e| {
            let replaced =
                |writer: &mut Writer| is_generated(e.jump) && !writer.has_jump(e.jump, e.to);
            is_unmapped(e.jump) || !(e.displaced && e.file) && replaced(writer)
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

/// The place for a zone in the gap `low..high` nearest to `site`: right below
/// what is above the gap, or right above what is below it.
fn place_in(low: u64, high: u64, site: u64) -> Option<u64> {
    let top = high.checked_sub(ZONE_BYTES).filter(|&top| top >= low)?;
    let nearest = if site < low { low } else { top };
    let range = PageRange::new(nearest, nearest.checked_add(ZONE_BYTES)?)?;
    reaches(range, site).then_some(nearest)
}

/// Maps a zone that reaches `site`, in the nearest gap that nothing grows into.
fn place_zone(site: u64, buffer: &mut [u8]) -> Result<PageRange> {
    let mut failed: [u64; 4] = [0; 4];
    let mut errno = Errno::NOMEM;
    for tried in 0..failed.len() {
        let at = nearest_gap(site, buffer, failed.get(..tried).unwrap_or(&[]))?.ok_or(errno)?;
        match sys::map_at(at, ZONE_BYTES, libc::PROT_READ | libc::PROT_EXEC) {
            Ok(at) => return PageRange::new(at, at.saturating_add(ZONE_BYTES)).ok_or(Errno::INVAL),
            Err(e) => errno = e,
        }
        if let Some(slot) = failed.get_mut(tried) {
            *slot = at;
        }
    }
    Err(errno)
}

/// The address nearest to `site` where a zone fits, but for those in `failed`.
fn nearest_gap(site: u64, buffer: &mut [u8], failed: &[u64]) -> Result<Option<u64>> {
    let mut best: Option<u64> = None;
    let mut low = LOWEST;
    let mut consider = |low: u64, high: u64| {
        let place = place_in(low, high, site).filter(|at| !failed.contains(at));
        if let Some(at) = place {
            if best.is_none_or(|b| at.abs_diff(site) < b.abs_diff(site)) {
                best = Some(at);
            }
        }
    };
    let heap_end = regall_directory::addr::round_up(sys::current_brk()).unwrap_or(0);
    let mut consider_gap = |low: u64, high: u64| {
        if low <= heap_end && heap_end <= high {
            consider(low, heap_end.saturating_sub(PAGE));
            consider(heap_end.saturating_add(GROWTH_ROOM), high);
        } else {
            consider(low, high);
        }
    };
    modules::lines(buffer, |line| {
        let below_stack = line.name == b"[stack]";
        let high = line.range.start().min(HIGHEST);
        consider_gap(
            low,
            if below_stack {
                high.saturating_sub(GROWTH_ROOM)
            } else {
                high
            },
        );
        low = line.range.end().max(LOWEST);
        low < HIGHEST
    })?;
    consider_gap(low, HIGHEST);
    Ok(best)
}

/// Whether anybody may be running the code that is written to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Code that does not run yet.
    Fresh,
    /// At any time: it must not stop being executable.
    Shared,
    /// These very bytes, at any time: they change at once.
    Running,
    /// These very bytes, at any time, and they may be unmapped at any moment.
    Left,
}

impl Use {
    /// Whether what is written must be seen as a whole.
    pub fn at_once(self) -> bool {
        matches!(self, Self::Running | Self::Left)
    }
}

/// Writes to memory that is not writable. Opens nothing until there is
/// something to write.
#[derive(Default)]
pub struct Writer {
    mem: Option<Fd>,
    opened: bool,
}

impl Writer {
    /// Writes `bytes` at `at`. /proc/self/mem ignores protection and leaves it
    /// as it is; where that is forbidden the pages are made writable for a moment.
    pub fn write(&mut self, at: u64, bytes: &[u8], in_use: Use) -> Result<()> {
        let written = self.mem().map(|mem| mem.write_at(bytes, at));
        if written == Some(Ok(bytes.len())) {
            return Ok(());
        }
        write_unprotected(at, bytes, in_use)
    }

    /// Whether `there` is at `at`. Something else may have been mapped there, or written, by
    /// the program or for another site, since it was searched.
    fn holds(&mut self, at: u64, there: &[u8], in_use: Use) -> bool {
        if in_use == Use::Fresh {
            // SAFETY: it was read there to be searched, and is in the hands of whoever waits
            // for that.
            let now = |n: usize| unsafe { (at as *const u8).wrapping_add(n).read_volatile() };
            return there.iter().enumerate().all(|(n, byte)| now(n) == *byte);
        }
        let mut now = [0; plan::MOVED_MAX];
        let now = now.get_mut(..there.len());
        now.is_some_and(|now| self.read(at, now) && now == there)
    }

    /// Writes `bytes` beside code, where nobody runs, in the place of `there`.
    pub(super) fn put(&mut self, at: u64, there: &[u8], bytes: &[u8], in_use: Use) -> Result<()> {
        if !self.holds(at, there, in_use) {
            return Err(Errno::FAULT);
        }
        if in_use != Use::Left {
            return self.write(at, bytes, Use::Shared);
        }
        // A store of ours would be a signal where it is gone.
        match self.mem().map(|mem| mem.write_at(bytes, at)) {
            Some(Ok(len)) if len == bytes.len() => Ok(()),
            _ => Err(Errno::FAULT),
        }
    }

    /// Writes a jump, and what is to stand behind it, in the place of the code `there`. Where
    /// others may be running it the jump is written alone, at once: nobody comes to what is
    /// behind it.
    pub(super) fn patch(&mut self, at: u64, there: &[u8], bytes: &[u8], in_use: Use) -> Result<()> {
        if !in_use.at_once() {
            return match self.holds(at, there, in_use) {
                true => self.write(at, bytes, in_use),
                false => Err(Errno::FAULT),
            };
        }
        let jump = bytes
            .get(..bytes.len().min(plan::JUMP_BYTES))
            .unwrap_or(&[]);
        if !fits_at_once(at, jump.len()) {
            return Err(Errno::INVAL);
        }
        let word = word_around(at);
        let mut new = [0; STORE_BYTES as usize];
        if !self.read(word, &mut new) {
            return Err(Errno::FAULT);
        }
        let place = new.get_mut(at.wrapping_sub(word) as usize..);
        let place = place.and_then(|rest| rest.get_mut(..jump.len()));
        let place = place.ok_or(Errno::INVAL)?;
        // As in `holds`, of what is stored.
        if !there.starts_with(place) {
            return Err(Errno::FAULT);
        }
        place.copy_from_slice(jump);
        // The kernel stores eight bytes as one, and does not fault where they are gone.
        let written = self.mem().map(|mem| mem.write_at(&new, word));
        match written {
            Some(Ok(len)) if len == new.len() => Ok(()),
            _ if in_use == Use::Running => store_at_once(at, jump),
            _ => Err(Errno::FAULT),
        }
    }

    fn mem(&mut self) -> Option<&Fd> {
        if !self.opened {
            self.opened = true;
            self.mem = Fd::open(c"/proc/self/mem", libc::O_RDWR, 0).ok();
        }
        self.mem.as_ref()
    }

    /// Reads as a debugger does: false where a load would be a signal.
    pub fn read(&mut self, at: u64, into: &mut [u8]) -> bool {
        let (to, len) = (into.as_mut_ptr(), into.len());
        if let Some(mem) = self.mem() {
            return mem.read_at(into, at) == Ok(len);
        }
        // SAFETY: `into` is as long as that.
        unsafe { sys::copy_checked(at, to, len) == Ok(len) }
    }

    /// Whether there is our jump from `at` to `to`, as far as anybody can tell: where it
    /// can't be read there is. A debugger's breakpoint may be in the place of its first byte.
    pub(super) fn has_jump(&mut self, at: u64, to: u64) -> bool {
        let mut bytes = [0u8; plan::JUMP_BYTES];
        let [_, distance @ ..] = &mut bytes;
        !self.read(at.saturating_add(1), distance) || target(at, *distance) == to
    }
}

/// Where a jump at `at` with this distance goes.
fn target(at: u64, distance: [u8; 4]) -> u64 {
    at.wrapping_add(plan::JUMP_BYTES as u64)
        .wrapping_add_signed(i64::from(i32::from_le_bytes(distance)))
}

/// Whether `at` is memory of the program's own, where what it executes is of its own making.
fn is_generated(at: u64) -> bool {
    let found = crate::track::VIEW.lookup(at);
    found.is_ok_and(|found| found.is_some_and(|f| f.attr().kind == Kind::Anon))
}

/// Whether `at` is a file's text in memory of this process's own, as it was when it was patched:
/// what is shared is others' too, and the file's.
pub(super) fn is_private_text(at: u64) -> bool {
    match crate::track::VIEW.lookup(at) {
        Ok(Some(found)) => {
            let attr = found.attr();
            let text = attr.prot.executable() && !attr.prot.shared();
            text && attr.kind == Kind::File
        }
        // Unit tests have no ledger.
        _ => cfg!(test),
    }
}

/// Whether the kernel has nothing at `at`.
fn is_unmapped(at: u64) -> bool {
    sys::residency(at & !(PAGE - 1), &mut [0]) == Err(Errno::NOMEM)
}

/// Eight bytes of `at`'s line that begin there or before it.
fn word_around(at: u64) -> u64 {
    at.min((at & !(LINE_BYTES - 1)).saturating_add(LINE_BYTES - STORE_BYTES))
}

/// Writes `bytes`, two or five of them, to code that others may be running: they see what
/// was there or all of it.
pub(super) fn store_at_once(at: u64, bytes: &[u8]) -> Result<()> {
    if !fits_at_once(at, bytes.len()) {
        return Err(Errno::INVAL);
    }
    let word = word_around(at);
    let shift = at.wrapping_sub(word);
    let pages = PageRange::covering(word, STORE_BYTES).ok_or(Errno::INVAL)?;
    let before = protection(pages)?;
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: it loses no access.
    unsafe { sys::protect(pages.start(), pages.len(), all) }?;
    // SAFETY: the page is mapped, and readable and writable now.
    let there = unsafe { (word as *const u64).read_unaligned() };
    let mut new = there.to_le_bytes();
    let place = new.iter_mut().skip(shift as usize);
    place.zip(bytes).for_each(|(to, from)| *to = *from);
    // SAFETY: as above. The word need not be aligned, which an `AtomicU64` must be: within a
    // line the processor stores it at once.
    unsafe {
        core::arch::asm!(
            "mov qword ptr [{at}], {new}",
            at = in(reg) word,
            new = in(reg) u64::from_le_bytes(new),
            options(nostack, preserves_flags),
        );
    }
    // SAFETY: the access that it had before.
    unsafe { sys::protect(pages.start(), pages.len(), before) }
}

/// Writes through mprotect. Read, write and execute at once where the system
/// allows it; else write without execute, unless somebody may be running there.
#[inline(never)] // for the stack's sake
pub(super) fn write_unprotected(at: u64, bytes: &[u8], in_use: Use) -> Result<()> {
    let pages = PageRange::covering(at, bytes.len() as u64).ok_or(Errno::INVAL)?;
    // SAFETY: reading and writing stay, and executing where somebody may be running there.
    let set = |prot| unsafe { sys::protect(pages.start(), pages.len(), prot) };
    let before = protection(pages)?;
    let open = libc::PROT_READ | libc::PROT_WRITE;
    set(open | libc::PROT_EXEC).or_else(|errno| match in_use {
        Use::Fresh => set(open),
        Use::Shared | Use::Running | Use::Left => Err(errno),
    })?;
    // SAFETY: the pages are mapped and writable now, and `bytes` is not in them:
    // it is on our stack.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    set(before)
}

/// The protection that all of `pages` has; an error if it is not the same.
fn protection(pages: PageRange) -> Result<i32> {
    let mut buffer = [0u8; 1024];
    let mut found = None;
    modules::lines(&mut buffer, |line| {
        if line.range.covers(pages) {
            found = Some(i32::from(line.prot.bits() & 7));
        }
        found.is_none() && line.range.start() < pages.end()
    })?;
    found.ok_or(Errno::INVAL)
}

/// Reads as a debugger does: false where a load would be a signal.
pub fn read_checked(at: u64, into: &mut [u8]) -> bool {
    let Ok(mem) = Fd::open(c"/proc/self/mem", libc::O_RDONLY, 0) else {
        return false;
    };
    mem.read_at(into, at) == Ok(into.len())
}
