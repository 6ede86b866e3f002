//! Searches code that nobody waits for any more: it may be unmapped at any moment, and may be
//! running. So it is copied first, its file's tables are read as a debugger reads them, and a
//! patch is one store, or none.

use super::discover::Text;
use super::elf::Module;
use super::queue::{self, Job};
use super::write::{Use, Writer};
use super::{module_around, modules, Report, Scanner, State, COPY_BYTES};
use regall_directory::addr::PAGE;

/// Bytes on either side of what is copied that are only there to be decoded.
const COPY_MARGIN: usize = 16 << 10;

impl State {
    /// Searches what was left to whoever has the lock.
    #[cold]
    pub(super) fn search_left(&mut self, report: &mut Report) {
        queue::drain(|job, waits| {
            if job.gone {
                self.patches.forget(job.range);
            } else if waits {
                self.search(job, report);
            } else {
                self.search_copied(job, report);
            }
        });
        if queue::take_everything() {
            self.search_everything(report);
        }
    }

    fn search_everything(&mut self, report: &mut Report) {
        // The list's buffer is not to be borrowed for as long as the search takes.
        let mut from = 0;
        let [ours, _] = self.patches.entries;
        while let Some((job, next)) = next_code(from, ours, &mut self.buffer) {
            from = next;
            self.search_copied(job, report);
        }
    }

    /// Searches what may be unmapped at any moment, and may be running.
    pub(super) fn search_copied(&mut self, job: Job, report: &mut Report) {
        let mut writer = Writer::default();
        self.patches.put_back(job.range, &mut writer);
        let module = module_around(job.range, &mut self.buffer, Module::open_fleeting);
        let mut from = job.range.start();
        while from < job.range.end() {
            // With a margin on either side, where there is more.
            let base = from
                .saturating_sub(COPY_MARGIN as u64)
                .max(job.range.start());
            let end = base.saturating_add(COPY_BYTES as u64).min(job.range.end());
            let State {
                patches,
                room,
                copy,
                ..
            } = self;
            let bytes = copy.get_mut(..(end - base) as usize).unwrap_or(&mut []);
            for (n, page) in bytes.chunks_mut(PAGE as usize).enumerate() {
                let at = base.saturating_add(n as u64 * PAGE);
                if !writer.read(at, page) {
                    page.fill(0);
                }
            }
            let to = if end < job.range.end() {
                end - COPY_MARGIN as u64
            } else {
                end
            };
            let text = Text {
                base,
                bytes,
                libc: false,
                module: module.as_ref(),
                config: patches.config,
                landed: [0; 2],
            };
            Scanner {
                patches,
                room,
                writer: &mut writer,
                report,
                in_use: Use::Left,
            }
            .text(
                &text,
                (from - base) as usize..(to - base) as usize,
                job.patch,
            );
            from = to;
        }
    }
}

/// The first code at or behind `from` that has not `ours` in it, and where to go on behind it.
fn next_code(from: u64, ours: u64, buffer: &mut [u8]) -> Option<(Job, u64)> {
    let mut found = None;
    let listed = modules::lines_from(from, buffer, |line| {
        let kernel = line.inode == 0 && line.name.starts_with(b"[v");
        let code = line.prot.executable() && line.prot.readable() && !kernel;
        if code && line.range.start() >= from && !line.range.contains(ours) {
            let job = Job {
                range: line.range,
                running: true,
                patch: !line.prot.shared(),
                gone: false,
            };
            found = Some((job, line.range.end()));
        }
        found.is_none()
    });
    listed.ok()?;
    found
}
