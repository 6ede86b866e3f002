//! Calls that throw pages away, look at them or say where they go, as the application makes them:
//! madvise, process_madvise, userfaultfd, mbind, io_uring.

use super::discard::{self, keep_lazy, replaces_pages, GUARD_INSTALL, NEEDS_UNLOCKED};
use super::settling::settle;
use super::unpinning::let_go;
use super::{
    backed, begin_work, end, failed, guards, lock, open, real, retracting, subscribers, USER_END,
};
use crate::arch::Frame;
use crate::base::{copies, counters, settings, unseen};
use crate::config::Pin;
use crate::policy;
use crate::registrar::pin;
use crate::share;
use crate::sys::{self, file};
use crate::text::{number, Text};
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::layout::Call;
use regall_directory::planted;
use regall_directory::vocab::{Attr, Flags, Kind};

/// UFFDIO_REGISTER_MODE_MISSING.
const MODE_MISSING: u64 = 1;
/// madvise(2).
#[inline(never)]
pub fn madvise(frame: &mut Frame) -> i64 {
    if let Some(answer) = copies::answer(frame.args[2]) {
        return answer;
    }
    let advice = frame.args[2] as i32;
    if (share::any() || share::on()) && backed::concerns(advice) {
        if let Some(value) = backed::madvise(frame) {
            return value;
        }
    }
    discard::madvise(frame)
}

/// process_madvise(2), as far as it is about this very process.
#[cold]
#[inline(never)]
pub fn process_madvise(frame: &mut Frame) -> i64 {
    let [pidfd, _, _, advice, ..] = frame.args;
    let advised = advice as i32;
    if advised == GUARD_INSTALL {
        guards::guarded_somewhere();
    }
    let concerned = share::any() && backed::concerns(advised);
    let locked = NEEDS_UNLOCKED.contains(&advised) && pin::locks();
    counters::count_call(Call::ProcessMadvise);
    match (concerned || locked || replaces_pages(advised)) && is_self(pidfd as i32) {
        true => one_by_one(frame).unwrap_or_else(|| real(frame)),
        false => real(frame),
    }
}

/// The most ranges that a call takes (UIO_MAXIOV).
const MOST_RANGES: u64 = 1024;
/// Ranges that are worked on at a time.
const BATCH: usize = 64;

/// Some of a vector's ranges: address and length.
pub struct Batch {
    ranges: [[u64; 2]; BATCH],
    known: usize,
}

impl Batch {
    /// The ranges from number `n` on, of `count`. The vector may be anything: it is copied the way the
    /// kernel would. `None`: it can't be read.
    pub fn read(vector: u64, n: u64, count: u64) -> Option<Self> {
        let mut ranges = [[0u64; 2]; BATCH];
        let known = (count.saturating_sub(n) as usize).min(BATCH);
        let from = vector.wrapping_add(16 * n);
        // SAFETY: so many entries of 16 bytes fit.
        let copied = unsafe { sys::copy_checked(from, ranges.as_mut_ptr().cast(), known * 16) };
        (copied == Ok(known * 16)).then_some(Self { ranges, known })
    }

    /// The ranges that were read: address and length.
    pub fn known(&self) -> &[[u64; 2]] {
        self.ranges.get(..self.known).unwrap_or(&[])
    }

    /// Whether the kernel has nothing against any of them before it begins.
    fn is_usual(&self) -> bool {
        let mut all = self.known().iter();
        all.all(|[at, len]| at.saturating_add(*len) <= USER_END)
    }
}

/// The most bytes that a call is about (MAX_RW_COUNT): the kernel cuts its ranges there.
const MOST_BYTES: u64 = 0x7fff_f000;

/// process_madvise(2) of this process's own memory: range by range, each by madvise(2). `None`: the kernel
/// refuses the call before it begins.
#[cold]
#[inline(never)]
fn one_by_one(frame: &Frame) -> Option<i64> {
    let [_, vector, count, advice, ..] = frame.args;
    let mut none = *frame;
    none.args[2] = 0;
    let mut batches = (0..count.min(MOST_RANGES)).step_by(BATCH);
    let usual = batches.all(|n| Batch::read(vector, n, count).is_some_and(|b| b.is_usual()));
    let most = planted!("process-madvise-ranges", MOST_RANGES - 1, MOST_RANGES);
    if !usual || count > most || real(&none) != 0 {
        return None;
    }
    let (mut done, mut n) = (0, 0);
    while let Some(batch) = Batch::read(vector, n, count).filter(|_| n < count) {
        for [addr, len] in batch.known() {
            let len = (*len).min(MOST_BYTES - done);
            if len == 0 {
                continue;
            }
            let mut one = Frame {
                nr: libc::SYS_madvise as u64,
                args: [*addr, len, advice, 0, 0, 0],
            };
            let value = madvise(&mut one);
            if failed(value) {
                let none = planted!("process-madvise-errno", 0, value);
                return Some(if done > 0 { done as i64 } else { none });
            }
            done += len;
        }
        n += batch.known().len() as u64;
    }
    Some(done as i64)
}

/// Whether a pidfd stands for this process: the kernel says so in fdinfo.
#[cold]
#[inline(never)]
pub fn is_self(pidfd: i32) -> bool {
    // PIDFD_SELF_THREAD and PIDFD_SELF_THREAD_GROUP (Linux 6.14).
    if matches!(pidfd, -10000 | -10001) {
        return true;
    }
    let path: Text<64> = Text::of(format_args!("/proc/self/fdinfo/{pidfd}"));
    let mut buf = [0u8; 512];
    // (Not by a child: it has few of these descriptors.)
    let Some(Ok(text)) = path.as_cstr().map(|p| file::read_small_here(p, &mut buf)) else {
        return false;
    };
    text.split(|b| *b == b'\n')
        .find_map(|line| line.strip_prefix(b"Pid:\t"))
        .and_then(number)
        .is_some_and(|pid| {
            let same = pid == u64::from(sys::getpid());
            planted!("process-madvise-any-pid", true, same)
        })
}

/// The range of a struct uffdio_register, and the mode.
#[cold]
#[inline(never)]
fn userfault_range(frame: &Frame) -> Option<(PageRange, u64)> {
    let mut words = [0u64; 3];
    // SAFETY: three words of room.
    let copied = unsafe { sys::copy_checked(frame.args[2], words.as_mut_ptr().cast(), 24) };
    let range = PageRange::from_call(words[0], words[1]).filter(|_| copied == Ok(24));
    range.map(|range| (range, words[2]))
}

/// ioctl(UFFDIO_REGISTER): from here on a missing page is the application's
/// business. What we populated and nobody has written is given back, so that
/// it is missing again, and stays locked on fault.
#[cold]
#[inline(never)]
pub fn userfault(frame: &mut Frame) -> i64 {
    let asked = userfault_range(frame);
    if let (true, Some((range, _))) = (share::any(), asked) {
        // What is copied is for a while not what is published.
        let flight = begin_work();
        backed::about_to_watch(range);
        end(flight);
    }
    let missing = asked.filter(|(_, mode)| mode & MODE_MISSING != 0);
    let ours = missing.map(|(range, _)| range).filter(|range| {
        let pinned = pin::locks();
        pinned && only_ours_to_drop(*range)
    });
    if let Some(range) = ours {
        // Before the call: afterwards the kernel may announce to the application what goes
        // (UFFD_EVENT_REMOVE), and waits until somebody has read it. Nobody may be there yet.
        let flight = begin_work();
        planted!("userfault-populated", (), give_back_untouched(range));
        end(flight);
    }
    let value = real(frame);
    if failed(value) {
        if let Some(range) = ours {
            let flight = begin_work();
            settle(range);
            end(flight);
        }
        return value;
    }
    // Pages that are missing are its business, whatever it says of them then.
    guards::guarded_somewhere();
    // Noted where nothing holds memory yet, too: an adapter may from its first domain on.
    let flight = open(Call::Userfault);
    if let Some((range, _)) = asked {
        keep_lazy(range);
        retracting::refresh(range);
        settle(range);
    }
    end(flight);
    value
}

/// What we populated. The rest is left alone: a userfaultfd may watch it already.
fn is_populated(attr: &Attr) -> bool {
    policy::has_our_lock(*attr) && !attr.flags.has(Flags::ONFAULT)
}

/// Gives back the pages of `range` that we populated and that hold nothing but zeroes.
#[cold]
#[inline(never)]
fn give_back_untouched(range: PageRange) {
    let mut rest = Some(range);
    while let Some(range) = rest {
        let mut found = None;
        if let Some(guard) = lock() {
            guard.ledger.for_each(range, |part, e| {
                if is_populated(&e.attr) {
                    found = Some(part);
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
        }
        let Some(part) = found else {
            return;
        };
        let_go(part);
        drop_untouched(part);
        rest = range.after(part.end());
    }
}

/// Whether all of `range` is private anonymous memory, where a page of zeroes that
/// goes comes back as zeroes, and some of it was populated by us. A process with
/// other threads may be writing there at this moment: then nothing is dropped.
fn only_ours_to_drop(range: PageRange) -> bool {
    let (mut any, mut all) = (false, true);
    if let Some(guard) = lock() {
        guard.ledger.for_each(range, |_, e| {
            any |= is_populated(&e.attr);
            all &= e.attr.kind == Kind::Anon && !e.attr.prot.shared();
            ControlFlow::Continue(())
        });
    }
    any && all && subscribers::alone()
}

/// Gives back pages that hold nothing but zeroes.
#[cold]
#[inline(never)]
fn drop_untouched(range: PageRange) {
    let mut page = [0u64; (PAGE / 8) as usize];
    let mut at = range.start();
    while at < range.end() {
        // SAFETY: the buffer is a page.
        let copied = unsafe { sys::copy_checked(at, page.as_mut_ptr().cast(), PAGE as usize) };
        if copied == Ok(PAGE as usize) && page.iter().all(|w| *w == 0) {
            // SAFETY: it is all zeroes afterwards, too; no other thread writes to it.
            let _ = unsafe { sys::advise_any(at, PAGE, libc::MADV_DONTNEED) };
        }
        at += PAGE;
    }
}

/// mbind(2): memory that we populated on the allocating node moves to where
/// the application now wants it.
#[cold]
#[inline(never)]
pub fn mbind(frame: &mut Frame) -> i64 {
    const MPOL_MF_MOVE: u64 = 2;
    let flight = open(Call::Mbind);
    let mut moving = *frame;
    if settings::config().pin == Pin::Populate {
        moving.args[5] |= MPOL_MF_MOVE;
    }
    if share::any() {
        backed::about_to_bind(frame);
    }
    let value = real(&moving);
    if value == 0 && share::any() {
        backed::bound(frame);
    }
    end(flight);
    value
}

/// io_uring_setup(2), and io_uring_enter(2), by which a ring of another process's is used. Advice
/// that is given through a ring (IORING_OP_MADVISE) is carried out by a thread of the kernel's: no
/// call is made that we could step aside for.
#[cold]
#[inline(never)]
pub fn ring(frame: &mut Frame) -> i64 {
    static SAID: AtomicBool = AtomicBool::new(false);
    unseen::ring();
    if frame.nr == libc::SYS_io_uring_enter as u64 {
        return real(frame);
    }
    let call = Call::IoUringSetup;
    planted!("ring-not-counted", (), counters::count_call(call));
    let value = real(frame);
    if !failed(value) && pin::locks() && !SAID.swap(true, Relaxed) {
        log::info!(
            "io_uring is used: IORING_OP_MADVISE with DONTNEED, FREE, COLD or PAGEOUT fails with \
             EINVAL on memory that is pinned"
        );
    }
    value
}
