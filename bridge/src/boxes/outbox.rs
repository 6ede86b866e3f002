//! The sender's side of a peer's box: it is mapped at the first message, and a ring in it claimed
//! once there were some. In a child of fork all of it is begun anew: the mapping is not inherited,
//! so that a child can't write into what its parent has.

use super::hold::Hold;
use super::layout::{Head, Shape};
use super::mailbox::{Mailbox, Place, Sender};
use super::message::Kind;
use super::ring::{Control, Lines, No, Turn, Writer};
use super::summary::{EVENT, SLEEPS};
pub use super::target::Parcel;
use super::target::{name, open, Target, MOST};
use crate::link;
use crate::lock::{self, Lock};
use crate::window::source;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use regall_directory::layout::Counter;
use regall_sys::arch::ticks;
use regall_sys::file::{self, Fd, Kept, Stat};
use regall_sys::{time, Errno, Result};

/// The receiver is looked at before a message if it was not for so long, in nanoseconds; sooner
/// where there is no room, which may be because it is gone.
const UNSEEN: u64 = 10_000_000;
const UNSEEN_FULL: u64 = 1_000_000;
/// How often another thread's turn is waited for before there is no room; from a number on others
/// are let run.
const TURNS: u32 = 2000;
const SPINS: u32 = 100;
/// The same for a message for which room was kept, in so many times [`TURNS`].
const PATIENCE: u32 = 1000;
/// Messages by the mailbox between two looks for a free ring.
const AGAIN: u64 = 64;
/// Bits of [`Outbox::ring`] in which the ring's number is, plus 1; the others are its
/// [`Turn::whose`].
const NUMBER: u64 = 0x3ff;

/// Room that is kept for a message without data, but a number.
#[derive(Clone, Copy)]
pub enum Room {
    /// In the ring that was had as this ([`Outbox::ring`]).
    Ring(u64),
    /// A cell of the mailbox.
    Cell(Place),
}

/// What is known of a peer's box.
pub struct Outbox {
    /// The process that has mapped it, as locks have it; 0: none.
    process: AtomicU32,
    /// Where.
    at: AtomicU64,
    limit: AtomicU64,
    first_ring: AtomicU64,
    size: AtomicU64,
    /// The ring, as [`NUMBER`] says; 0: none.
    ring: AtomicU64,
    writer: Writer,
    /// Whether the descriptor by which the peer is woken is here.
    can_signal: AtomicBool,
    slow: Lock<Slow>,
}

/// What is needed where there is no ring.
struct Slow {
    shape: Option<Shape>,
    /// Bytes that are mapped.
    bytes: u64,
    from: Sender,
    /// Messages by the mailbox, and after how many a ring is looked for.
    sent: u64,
    look: u64,
    /// The box's file, in a sender whose pid the receiver does not know: by it cells are held.
    hold: Option<Hold>,
    /// Which file that is.
    file: Option<Stat>,
    /// Cells that are kept, a bit each.
    kept: u64,
    event: Option<Kept>,
}

impl Slow {
    const NONE: Self = Self {
        shape: None,
        bytes: 0,
        from: Sender { pid: 0, start: 0 },
        sent: 0,
        look: 0,
        hold: None,
        file: None,
        kept: 0,
        event: None,
    };
}

impl Slow {
    /// By what cells are held, if the program has not closed it.
    fn held(&self) -> Option<Kept> {
        self.hold.as_ref().and_then(Hold::file)
    }

    /// The same, opened anew if need be. What was kept by one that is closed is nobody's any more.
    fn holder(&mut self, peer: &Target) -> Result<Option<Kept>> {
        if self.from.pid != 0 {
            return Ok(None);
        }
        if let Some(held) = self.held() {
            return Ok(Some(held));
        }
        self.kept = 0;
        self.hold.take().into_iter().for_each(Hold::close);
        let (fd, hold) = Hold::new(|| open(peer))?;
        let now = fd.stat();
        let is_it = now.is_ok_and(|now| self.file.is_some_and(|then| then.is_same_file(&now)));
        match hold.file().filter(|_| is_it) {
            Some(held) => {
                self.hold = Some(hold);
                Ok(Some(held))
            }
            None => {
                hold.close();
                Err(Errno::STALE)
            }
        }
    }
}

/// A cell that was taken, and by what it is held; or why there is none.
type Taken<'a> = core::result::Result<(Mailbox<'a>, Option<Kept>, Place), Tried>;

/// What came of an attempt.
enum Tried {
    Done,
    Full,
    /// All cells are taken.
    NoCell,
    /// The ring is not ours any more.
    Gone,
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Outbox {
    /// Of a box that is not mapped.
    pub const fn new() -> Self {
        Self {
            process: AtomicU32::new(0),
            at: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            first_ring: AtomicU64::new(0),
            size: AtomicU64::new(0),
            ring: AtomicU64::new(0),
            writer: Writer::new(),
            can_signal: AtomicBool::new(false),
            slow: Lock::new(Slow::NONE),
        }
    }

    /// Sends a message.
    ///
    /// EAGAIN: there is no room; EMSGSIZE: it is longer than the peer takes; ENOTCONN: the peer has
    /// no box yet; ESRCH, ESTALE: it is gone; EPERM: its box is not for us; errors of open(2) and
    /// mmap(2).
    ///
    /// # Safety
    /// The data are valid to be read.
    #[inline]
    pub unsafe fn send(&self, peer: &Target, parcel: &Parcel) -> Result<()> {
        self.ready(peer)?;
        if parcel.len > self.limit.load(Relaxed) {
            return Err(Errno::MSGSIZE);
        }
        loop {
            let ring = self.ring.load(Acquire);
            let tried = match ring {
                // SAFETY: by the contract above.
                0 => unsafe { self.by_mailbox(peer, parcel) }?,
                // SAFETY: likewise.
                _ => unsafe { self.by_ring(ring, parcel) },
            };
            match tried {
                Tried::Done => break,
                Tried::Full => return Err(self.full(peer)),
                Tried::NoCell => return Err(self.no_cell(peer)),
                Tried::Gone => self.lose(ring),
            }
        }
        peer.host().tally(Counter::BoxSent, 1);
        Ok(())
    }

    /// The peer lives, and its box is mapped in this process.
    #[inline]
    fn ready(&self, peer: &Target) -> Result<()> {
        if self.process.load(Acquire) != lock::process() {
            self.attach(peer)?;
        }
        let now = ticks();
        if time::nanos(now.wrapping_sub(peer.seen())) >= UNSEEN {
            peer.check(now)?;
        }
        if self.head().has_event.load(Relaxed) != 0 && !self.can_signal.load(Relaxed) {
            self.learn_to_signal(peer)?;
        }
        Ok(())
    }

    #[cold]
    fn full(&self, peer: &Target) -> Errno {
        let now = ticks();
        if time::nanos(now.wrapping_sub(peer.seen())) >= UNSEEN_FULL {
            if let Err(e) = peer.check(now) {
                return e;
            }
        }
        peer.host().tally(Counter::BoxFull, 1);
        Errno::AGAIN
    }

    /// Dead senders may have all cells: the receiver is to look, and is woken if it sleeps.
    #[cold]
    fn no_cell(&self, peer: &Target) -> Errno {
        self.head().wanted.store(1, Release);
        self.wake(self.head().summary.ways());
        self.full(peer)
    }

    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: mapped until the peer is closed (`Outbox::attach` has come before).
        unsafe { &*(self.at.load(Relaxed) as *const Head) }
    }

    /// The ring that is had as `ring`.
    #[inline]
    fn lines(&self, ring: u64) -> Option<(usize, &Control, Lines<'_>)> {
        let n = (ring & NUMBER).checked_sub(1)?;
        let size = self.size.load(Relaxed);
        let at = self.at.load(Relaxed) + self.first_ring.load(Relaxed) + n * size;
        let control = self.head().controls.get(n as usize)?;
        // SAFETY: number `n` was below the number of rings when the ring was claimed, and all
        // rings are mapped.
        Some((n as usize, control, unsafe { Lines::new(at, size) }))
    }

    /// The turn in the ring, waited for a while.
    #[inline]
    fn turn(&self, control: &Control, ring: u64) -> core::result::Result<Turn, No> {
        match control.lock(ring & !NUMBER) {
            Err(No::Busy) => wait_for_turn(control, ring & !NUMBER),
            other => other,
        }
    }

    /// # Safety
    /// As [`Outbox::send`].
    #[inline]
    unsafe fn by_ring(&self, ring: u64, parcel: &Parcel) -> Tried {
        let Some((n, control, lines)) = self.lines(ring) else {
            return Tried::Gone;
        };
        let held = match self.turn(control, ring) {
            Ok(held) => held,
            Err(No::Busy) => return Tried::Full,
            Err(No::Gone) => return Tried::Gone,
        };
        let Parcel {
            kind,
            tag,
            data,
            len,
        } = *parcel;
        // SAFETY: by the contract above; the length was compared with the box's limit.
        let written = unsafe { self.writer.write(control, &lines, kind, tag, (data, len)) };
        control.unlock(held);
        match written {
            Some(true) => self.wake(self.head().summary.ring(n)),
            Some(false) => (),
            None => return Tried::Full,
        }
        Tried::Done
    }

    /// The ring that was had as `ring` is not ours any more.
    #[cold]
    fn lose(&self, ring: u64) {
        let mut slow = self.slow.lock();
        let lost = self.ring.compare_exchange(ring, 0, AcqRel, Relaxed);
        if lost.is_ok() {
            (slow.sent, slow.look) = (0, 0);
        }
    }

    /// # Safety
    /// As [`Outbox::send`].
    #[cold]
    unsafe fn by_mailbox(&self, peer: &Target, parcel: &Parcel) -> Result<Tried> {
        let mut slow = self.slow.lock();
        let (mailbox, holder, place) = match self.take_cell(peer, &mut slow, parcel.len)? {
            Ok(taken) => taken,
            Err(tried) => return Ok(tried),
        };
        let (what, data) = ((parcel.kind, parcel.tag), (parcel.data, parcel.len));
        // SAFETY: by the contract above; the cell has room.
        let ways = unsafe { mailbox.fill(&holder, place, slow.from, what, data) };
        slow.sent += 1;
        drop(slow);
        self.wake(ways);
        Ok(Tried::Done)
    }

    /// Takes a cell for `len` bytes, unless there is a ring by now.
    fn take_cell(&self, peer: &Target, slow: &mut Slow, len: u64) -> Result<Taken<'_>> {
        let Some(shape) = slow.shape else {
            return Ok(Err(Tried::Full));
        };
        if self.ring.load(Relaxed) != 0 || self.gets_ring(peer, slow, &shape) {
            // By the ring, then.
            return Ok(Err(Tried::Gone));
        }
        let (mailbox, holder) = (self.mailbox(shape), slow.holder(peer)?);
        let taken = mailbox.take(&holder, (slow.from.pid, len), slow.kept)?;
        Ok(taken
            .map(|place| (mailbox, holder, place))
            .ok_or(Tried::NoCell))
    }

    fn mailbox(&self, shape: Shape) -> Mailbox<'_> {
        // SAFETY: the box is mapped until the peer is closed.
        unsafe { Mailbox::new(self.at.load(Relaxed), shape) }
    }

    /// Claims a ring, if it is time. Not while a cell is kept: what comes by it would come behind
    /// what is sent by the ring.
    fn gets_ring(&self, peer: &Target, slow: &mut Slow, shape: &Shape) -> bool {
        if slow.sent < shape.threshold.max(slow.look) || slow.kept != 0 || slow.from.pid == 0 {
            return false;
        }
        let head = self.head();
        for (n, control) in (0..shape.rings as usize).zip(&head.controls) {
            let Some(turn) = control.claim(slow.from.pid) else {
                continue;
            };
            let at = self.at.load(Relaxed) + shape.ring(n).unwrap_or(0);
            if !is_there(at, shape.size) {
                control.give_up(turn);
                break;
            }
            // SAFETY: ring `n` of the box, which is mapped.
            self.writer.begin(&unsafe { Lines::new(at, shape.size) });
            control.start.store(slow.from.start, Relaxed);
            control.open(turn);
            self.ring.store(turn.whose() | (n as u64 + 1), Release);
            peer.host().tally(Counter::BoxRings, 1);
            return true;
        }
        if shape.rings > 0 {
            head.wanted.store(1, Relaxed);
        }
        slow.look = slow.sent + AGAIN;
        false
    }

    /// Wakes the peer in these ways.
    #[inline]
    fn wake(&self, ways: u64) {
        if ways != 0 {
            self.wake_it(ways);
        }
    }

    #[cold]
    fn wake_it(&self, ways: u64) {
        if ways & SLEEPS != 0 {
            let sequence = &self.head().sequence;
            sequence.fetch_add(1, AcqRel);
            regall_sys::futex_wake_shared(sequence);
        }
        if ways & EVENT != 0 {
            let event = self.slow.lock().event;
            if let Some(event) = event.and_then(|e| e.ours()) {
                let _ = file::borrow(event).write_all(b"!");
            }
        }
    }
}

/// The turn, once the thread that has it is done. Busy: it is not for long.
#[cold]
fn wait_for_turn(control: &Control, whose: u64) -> core::result::Result<Turn, No> {
    for n in 0..TURNS {
        match control.lock(whose) {
            Err(No::Busy) if n < SPINS => core::hint::spin_loop(),
            Err(No::Busy) => regall_sys::yield_now(),
            other => return other,
        }
    }
    Err(No::Busy)
}

/// Whether the memory of a ring could be had: if not now, then to touch it would be a signal.
fn is_there(at: u64, bytes: u64) -> bool {
    match regall_sys::advise(at, bytes, libc::MADV_POPULATE_WRITE) {
        // Linux before 5.14 can't.
        Ok(()) | Err(Errno::INVAL) => true,
        Err(_) => false,
    }
}

impl Outbox {
    /// Keeps room for a message that tells of bytes that are put or got. Errors as
    /// [`Outbox::send`]'s.
    pub fn keep(&self, peer: &Target) -> Result<Room> {
        self.ready(peer)?;
        loop {
            let ring = self.ring.load(Acquire);
            let kept = match ring {
                0 => self.keep_cell(peer)?,
                _ => self.keep_lines(ring),
            };
            match kept {
                Ok(room) => return Ok(room),
                Err(Tried::Gone) => self.lose(ring),
                Err(Tried::NoCell) => return Err(self.no_cell(peer)),
                Err(_) => return Err(self.full(peer)),
            }
        }
    }

    fn keep_cell(&self, peer: &Target) -> Result<core::result::Result<Room, Tried>> {
        let mut slow = self.slow.lock();
        let taken = self.take_cell(peer, &mut slow, NOTE)?;
        Ok(taken.map(|(_, _, place)| {
            slow.kept |= place.bit();
            Room::Cell(place)
        }))
    }

    fn keep_lines(&self, ring: u64) -> core::result::Result<Room, Tried> {
        let (_, control, lines) = self.lines(ring).ok_or(Tried::Gone)?;
        let held = self.turn(control, ring).map_err(|no| match no {
            No::Busy => Tried::Full,
            No::Gone => Tried::Gone,
        })?;
        let kept = self.writer.keep(control, &lines, NOTE, held);
        control.unlock(kept.unwrap_or(held));
        kept.map(|_| Room::Ring(ring)).ok_or(Tried::Full)
    }

    /// Uses the room: tells of `bytes` bytes. Without a note gives it back. ESTALE: the peer has
    /// taken the room away.
    pub fn settle(&self, peer: &Target, room: Room, note: Option<(Kind, u64, u64)>) -> Result<()> {
        match room {
            Room::Ring(ring) => self.settle_lines(ring, note)?,
            Room::Cell(place) => self.settle_cell(place, note)?,
        }
        if note.is_some() {
            peer.host().tally(Counter::BoxSent, 1);
        }
        Ok(())
    }

    fn settle_lines(&self, ring: u64, note: Option<(Kind, u64, u64)>) -> Result<()> {
        let (n, control, lines) = self.lines(ring).ok_or(Errno::STALE)?;
        // It was promised, and whoever has the turn is at work on it.
        let mut turns = (0..PATIENCE).map(|_| self.turn(control, ring));
        let held = turns.find(|turn| *turn != Err(No::Busy));
        let held = held.and_then(|turn| turn.ok()).ok_or(Errno::STALE)?;
        let held = self.writer.let_go(NOTE, held);
        let written = note.map(|(kind, tag, bytes)| {
            let data = (&raw const bytes as u64, NOTE);
            // SAFETY: the bytes of a number here.
            unsafe { self.writer.write(control, &lines, kind, tag, data) }
        });
        control.unlock(held);
        match written {
            Some(None) => return Err(Errno::STALE),
            Some(Some(true)) => self.wake(self.head().summary.ring(n)),
            _ => (),
        }
        Ok(())
    }

    fn settle_cell(&self, place: Place, note: Option<(Kind, u64, u64)>) -> Result<()> {
        let mut slow = self.slow.lock();
        let shape = slow.shape.ok_or(Errno::STALE)?;
        let mailbox = self.mailbox(shape);
        let holder = slow.held();
        let is_kept = slow.kept & place.bit() != 0 && (slow.from.pid != 0 || holder.is_some());
        is_kept.then_some(()).ok_or(Errno::STALE)?;
        slow.kept &= !place.bit();
        let ways = match note {
            None => {
                mailbox.give_back(&holder, place);
                0
            }
            Some((kind, tag, bytes)) => {
                slow.sent += 1;
                let data = (&raw const bytes as u64, NOTE);
                // SAFETY: the bytes of a number here; the cell has room for them.
                unsafe { mailbox.fill(&holder, place, slow.from, (kind, tag), data) }
            }
        };
        drop(slow);
        self.wake(ways);
        Ok(())
    }
}

/// Bytes of data of a message that tells of others.
const NOTE: u64 = 8;

impl Outbox {
    /// Maps the peer's box in this process.
    #[cold]
    fn attach(&self, peer: &Target) -> Result<()> {
        let mut slow = self.slow.lock();
        let us = lock::process();
        if self.process.load(Relaxed) == us {
            return Ok(());
        }
        self.forget(&mut slow);
        // (By what cells are held is opened with the first.)
        let fd = open(peer)?;
        self.map(peer, &mut slow, &fd)
    }

    fn map(&self, peer: &Target, slow: &mut Slow, fd: &Fd) -> Result<()> {
        let file = fd.stat()?;
        let bytes = file.size;
        if !source::is_sealed(fd) || bytes < size_of::<Head>() as u64 || bytes > MOST {
            return Err(Errno::PERM);
        }
        let at = peer.host().attach(fd, 0, bytes, true)?;
        // SAFETY: mapped just now, by nobody else; a child is to have none of it.
        let apart = unsafe { regall_sys::advise_any(at, bytes, libc::MADV_DONTFORK) };
        // SAFETY: as many bytes are mapped, and can't be cut short.
        let shape = unsafe { &*(at as *const Head) }.shape(bytes);
        let ready = apart.and_then(|()| shape.ok_or(Errno::NOTCONN));
        let (shape, from) = match ready.and_then(|shape| Ok((shape, name(peer)?))) {
            Ok(found) => found,
            Err(e) => {
                // SAFETY: as above; nobody has heard of it.
                unsafe { peer.host().unmap(at, bytes) };
                return Err(e);
            }
        };
        (slow.shape, slow.bytes, slow.from) = (Some(shape), bytes, from);
        slow.file = Some(file);
        self.at.store(at, Relaxed);
        self.limit.store(shape.limit, Relaxed);
        self.first_ring.store(shape.first_ring(), Relaxed);
        self.size.store(shape.size, Relaxed);
        self.process.store(lock::process(), Release);
        Ok(())
    }

    /// What is here is of another process, or of none.
    fn forget(&self, slow: &mut Slow) {
        if let (Some(event), false) = (slow.event, file::are_inherited_shared()) {
            event.close();
        }
        // (In a child its copy of the descriptor went when it began.)
        let is_ours = self.process.load(Relaxed) == lock::process();
        let hold = slow.hold.take().filter(|_| is_ours);
        hold.into_iter().for_each(Hold::close);
        *slow = Slow::NONE;
        self.ring.store(0, Relaxed);
        self.can_signal.store(false, Relaxed);
        self.process.store(0, Relaxed);
    }

    /// Has the peer's helper pass the descriptor by which the peer is woken.
    #[cold]
    fn learn_to_signal(&self, peer: &Target) -> Result<()> {
        let mut slow = self.slow.lock();
        if slow.event.is_none() {
            let fd = link::box_event(peer, peer.link)?;
            slow.event = Some(Kept::new(&fd)?);
        }
        self.can_signal.store(true, Relaxed);
        Ok(())
    }

    /// Leaves the ring to the peer, and unmaps the box. Nobody uses it any more.
    pub fn close(&self, peer: &Target) {
        let mut slow = self.slow.lock();
        let us = lock::process();
        if us == 0 || self.process.load(Relaxed) != us {
            return;
        }
        if let Some((n, control, _)) = self.lines(self.ring.load(Relaxed)) {
            if control.leave(self.ring.load(Relaxed) & !NUMBER) {
                let ways = self.head().summary.ring(n);
                let event = slow.event.take();
                self.wake(ways & SLEEPS);
                if let Some(event) = event {
                    let ours = event.ours().filter(|_| ways & EVENT != 0);
                    let _ = ours.map(|fd| file::borrow(fd).write_all(b"!"));
                    event.close();
                }
            }
        }
        let (at, bytes) = (self.at.load(Relaxed), slow.bytes);
        self.forget(&mut slow);
        // SAFETY: mapped by `attach`; nobody uses it, by the contract of `Peer::close`.
        unsafe { peer.host().unmap(at, bytes) };
    }
}
