//! Goes through text, and has what it finds there patched.

use super::apply::{Applied, Found, Patches};
use super::discover::{inspect, next_syscall, Text, Verdict};
use super::elf::{self, Module};
use super::function::Room;
use super::modules::{Group, Origin, Segment};
use super::write::{Use, Writer};
use super::{plan, windows, Report};
use core::ops::Range;
use regall_directory::addr::PageRange;

/// Goes through text and has patched what it finds.
pub(super) struct Scanner<'a> {
    pub(super) patches: &'a mut Patches,
    pub(super) room: &'a mut Room,
    pub(super) writer: &'a mut Writer,
    pub(super) report: &'a mut Report,
    /// Whether anybody may be running what is patched.
    pub(super) in_use: Use,
}

impl Scanner<'_> {
    /// Calls `searched` with each part of a long text that has been, and with `None` at the end.
    pub(super) fn group(&mut self, group: &Group, mut searched: impl FnMut(Option<PageRange>)) {
        let module = Module::open(group);
        group
            .segments()
            .for_each(|segment| self.segment(group, segment, module.as_ref(), &mut searched));
        searched(None);
    }

    fn segment(
        &mut self,
        group: &Group,
        segment: &Segment,
        module: Option<&Module>,
        searched: &mut impl FnMut(Option<PageRange>),
    ) {
        if !segment.prot.executable() || !segment.prot.readable() {
            return;
        }
        let memory = elf::Memory::of(group);
        let memory = module.map_or(&memory, Module::memory);
        let window = memory.window(segment.range.start());
        let bytes = window.and_then(|w| memory.bytes(w.start(), usize::try_from(w.len()).ok()?));
        let Some(bytes) = bytes else { return };
        let text = Text {
            base: segment.range.start(),
            bytes,
            libc: group.origin == Origin::Libc,
            module,
            config: self.patches.config,
            landed: [0; 2],
        };
        let mut from = 0;
        while from < bytes.len() {
            let to = from
                .saturating_add(windows::WINDOW as usize)
                .min(bytes.len());
            self.text(&text, from..to, !segment.prot.shared());
            if to < bytes.len() {
                let at = |n: usize| text.base.saturating_add(n as u64);
                searched(PageRange::new(at(from), at(to)));
            }
            from = to;
        }
    }

    /// What begins within `part`.
    pub(super) fn text(&mut self, text: &Text<'_>, part: Range<usize>, patch: bool) {
        self.room.clear();
        // Of one that begins right before the end, the second byte is behind it.
        let end = part.end.saturating_add(1).min(text.bytes.len());
        let bytes = text.bytes.get(..end).unwrap_or(&[]);
        let mut from = part.start;
        while let Some(at) = next_syscall(bytes, from) {
            self.candidate(text, at, patch);
            from = at.saturating_add(2);
        }
    }

    fn candidate(&mut self, text: &Text<'_>, at: usize, patch: bool) {
        let site = text.base.saturating_add(at as u64);
        let before = text.bytes.get(..at).unwrap_or(&[]);
        if self.patches.has(site, before) {
            self.report.already = self.report.already.saturating_add(1);
            return;
        }
        let landed = self.patches.landed(site);
        self.patches.forget_site(site);
        match patch.then(|| self.mend_copy(site, before)).flatten() {
            // What is searched is a copy, too, and does not show it.
            Some(true) if self.in_use != Use::Left => (),
            Some(_) => return self.report.refuse(site),
            None => (),
        }
        let anew = Text { landed, ..*text };
        match inspect(&anew, at, self.room) {
            Verdict::Nothing => (),
            Verdict::Refuse => self.report.refuse(site),
            Verdict::Cancellable => {
                self.report.refuse(site);
                self.report.cancellable = true;
            }
            Verdict::Patch(..) if !patch => self.report.refuse(site),
            Verdict::Patch(plan, ..) if self.in_use.at_once() && !plan.is_one_store() => {
                self.report.refuse(site);
            }
            Verdict::Patch(plan, function, leaky) => {
                self.patch(&plan, function, text);
                if leaky {
                    self.report.refuse(site);
                }
            }
        }
    }

    /// Puts back what one of our jumps has replaced, where the program has copied it with its
    /// code. `None`: it has not; false: it can't be put back.
    fn mend_copy(&mut self, site: u64, before: &[u8]) -> Option<bool> {
        let (moved, len) = self.patches.copied(before, self.writer)?;
        let start = before.len().saturating_sub(len);
        let there = before.get(start..).unwrap_or(&[]);
        let moved = moved.get(..len).unwrap_or(&[]);
        let alone = len == plan::JUMP_BYTES || !self.in_use.at_once();
        let at = site.saturating_sub(len as u64);
        self.room.clear();
        Some(alone && self.writer.patch(at, there, moved, self.in_use).is_ok())
    }

    #[inline(never)] // for the stack's sake: `inspect` is called from the same place
    fn patch(&mut self, plan: &plan::Plan, function: u64, text: &Text<'_>) {
        let mut applied = Applied::default();
        let site = Found {
            function,
            libc: text.libc,
            file: text.module.is_some(),
            in_use: self.in_use,
        };
        let result = self.patches.apply(plan, &site, self.writer, &mut applied);
        self.report.map(&applied);
        match result {
            Ok(()) => self.report.patched = self.report.patched.saturating_add(1),
            Err(errno) => {
                self.report.write_errno = Some(errno);
                self.report.refuse(plan.site);
            }
        }
    }
}
