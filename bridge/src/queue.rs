//! Copies that go on while the program does something else. One thread of the process
//! carries them all out, in the order in which they were started ([`Engine`]); what came of
//! each waits in a [`Queue`] until it is asked for.
//!
//! Room is bounded: for [`JOBS`] copies not finished, and in each queue for [`ROOM`] that
//! are not finished or not asked for.

use crate::cookie::circle::Circle;
use crate::cookie::Cookie;
use crate::host::Host;
use crate::kind::Order;
use crate::lock::{self, Lock};
use crate::memory;
use crate::notify::transfer_and_tell;
use crate::peer::Peer;
use crate::transfer::{transfer, Outcome, Way};
use crate::vector::Segment;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::*};
use regall_sys::file::{self, Kept};
use regall_sys::{time, Errno, Result};

/// Copies of a process that are not finished, at the most.
pub const JOBS: usize = 512;
/// Copies of one queue that are not finished or not asked for, at the most.
pub const ROOM: usize = 256;
/// How long somebody sleeps before he looks again, in nanoseconds.
const NAP: u64 = 500_000_000;

/// A side of a copy.
#[derive(Clone, Copy)]
pub enum Vector {
    /// One segment.
    One(Segment),
    /// The caller's own vector, which stays as it is until the copy is finished.
    Many(NonNull<Segment>, usize),
}

impl Vector {
    /// The vector's segments.
    ///
    /// # Safety
    /// A vector of the caller's is still valid.
    unsafe fn segments(&self) -> &[Segment] {
        match self {
            Self::One(one) => core::slice::from_ref(one),
            // SAFETY: by the contract above.
            Self::Many(at, count) => unsafe { core::slice::from_raw_parts(at.as_ptr(), *count) },
        }
    }
}

/// What is to be done. Another kind is another variant, and a line in each function here.
#[derive(Clone, Copy)]
pub enum Job {
    /// See [`transfer`].
    Transfer {
        /// The peer whose memory it is.
        peer: NonNull<Peer>,
        /// Whether it is a get or a put.
        way: Way,
        /// Our memory.
        local: Vector,
        /// The peer's memory.
        remote: Vector,
        /// What the peer is told with when it is done; `None`: it is not told.
        notice: Option<u64>,
    },
    /// See [`Circle::transfer`].
    Region {
        /// Those whose regions were used.
        circle: &'static Circle,
        /// In which order mechanisms are tried.
        order: Order,
        /// Whether it is read or written.
        way: Way,
        /// The region, and where in it.
        region: (Cookie, u64),
        /// Our memory.
        local: Vector,
    },
    /// See [`Circle::copy`].
    Regions {
        /// Those whose regions were used.
        circle: &'static Circle,
        /// In which order mechanisms are tried.
        order: Order,
        /// The region that is read, and where in it.
        from: (Cookie, u64),
        /// The region that is written, and where in it.
        to: (Cookie, u64),
        /// Bytes, at the most.
        length: u64,
    },
}

impl Job {
    /// Carries the job out.
    ///
    /// # Safety
    /// What it is about is still valid.
    unsafe fn carry_out(&self, host: &'static dyn Host) -> Outcome {
        match self {
            Self::Transfer {
                peer,
                way,
                local,
                remote,
                notice,
            } => {
                // SAFETY: by the contract above.
                let (peer, local, remote) =
                    unsafe { (peer.as_ref(), local.segments(), remote.segments()) };
                match notice {
                    // SAFETY: by the contract above.
                    None => unsafe { transfer(peer, *way, local, remote) },
                    // SAFETY: likewise.
                    Some(tag) => unsafe { transfer_and_tell(peer, *way, local, remote, *tag) },
                }
            }
            Self::Region {
                circle,
                order,
                way,
                region,
                local,
            } => {
                // SAFETY: by the contract above.
                let local = unsafe { local.segments() };
                // SAFETY: by the contract above.
                unsafe { circle.transfer(host, *order, *way, *region, local) }
            }
            Self::Regions {
                circle,
                order,
                from,
                to,
                length,
            } => circle.copy(host, *order, *from, *to, *length),
        }
    }

    /// Whether it needs `peer`.
    fn uses(&self, of: NonNull<Peer>) -> bool {
        match self {
            Self::Transfer { peer, .. } => *peer == of,
            // They open the owners themselves.
            Self::Region { .. } | Self::Regions { .. } => false,
        }
    }
}

/// What a process has under way.
pub struct Engine {
    ring: Lock<Ring>,
    /// Counts jobs; the thread sleeps on it.
    sequence: AtomicU32,
}

#[derive(Clone, Copy)]
struct Entry {
    queue: NonNull<Queue>,
    tag: u64,
    job: Job,
}

struct Ring {
    entries: [MaybeUninit<Entry>; JOBS],
    first: usize,
    count: usize,
    /// The one that was taken out and is being carried out.
    current: Option<Job>,
}

// SAFETY: what the pointers point to is valid as long as the job is there, by the contract
// of `Queue::start`, and used by one thread at a time.
unsafe impl Send for Ring {}

impl Ring {
    fn push(&mut self, entry: Entry) -> bool {
        if self.count == JOBS {
            return false;
        }
        if let Some(place) = self.entries.get_mut((self.first + self.count) % JOBS) {
            place.write(entry);
            self.count += 1;
        }
        true
    }

    fn pop(&mut self) -> Option<Entry> {
        self.count = self.count.checked_sub(1)?;
        let place = self.entries.get(self.first)?;
        self.first = (self.first + 1) % JOBS;
        // SAFETY: between first and first + count all have been written.
        let entry = unsafe { place.assume_init() };
        self.current = Some(entry.job);
        Some(entry)
    }

    fn jobs(&self) -> impl Iterator<Item = &Job> {
        let waiting = (0..self.count).filter_map(|n| {
            let place = self.entries.get((self.first + n) % JOBS)?;
            // SAFETY: as in `pop`.
            Some(&unsafe { place.assume_init_ref() }.job)
        });
        waiting.chain(&self.current)
    }
}

impl Engine {
    /// One with nothing to do, in memory of its own.
    pub fn new(host: &dyn Host) -> Result<NonNull<Self>> {
        memory::place(
            host,
            Self {
                ring: Lock::new(Ring {
                    entries: [const { MaybeUninit::uninit() }; JOBS],
                    first: 0,
                    count: 0,
                    current: None,
                }),
                sequence: AtomicU32::new(0),
            },
        )
    }

    /// The thread's work, as long as `lives` says so; it is asked when there is nothing to do.
    pub fn work(&self, lives: impl Fn() -> bool) {
        loop {
            let sequence = self.sequence.load(Acquire);
            let next = self.ring.lock().pop();
            let Some(Entry { queue, tag, job }) = next else {
                if regall_sys::futex_wait(&self.sequence, sequence, NAP as u32) && !lives() {
                    return;
                }
                continue;
            };
            // SAFETY: by the contract of `Queue::start`.
            let host = unsafe { queue.as_ref() }.host;
            // SAFETY: likewise.
            let outcome = unsafe { job.carry_out(host) };
            // Whoever is told may close the peer.
            self.ring.lock().current = None;
            // SAFETY: a queue is not closed as long as a job of its is not finished.
            unsafe { queue.as_ref() }.finish(tag, outcome);
        }
    }

    /// In a child of fork: nothing is under way here.
    pub fn forget(&self) {
        let mut ring = self.ring.lock();
        ring.count = 0;
        ring.current = None;
    }

    /// Whether a copy of `peer`'s memory is under way.
    pub fn uses(&self, peer: NonNull<Peer>) -> bool {
        self.ring.lock().jobs().any(|job| job.uses(peer))
    }
}

/// What came of a copy: `struct regall_completion`.
#[derive(Clone, Copy)]
pub struct Completion {
    /// The tag that its starter gave it.
    pub tag: u64,
    /// What came of it.
    pub outcome: Outcome,
}

/// Where what came of copies waits.
pub struct Queue {
    host: &'static dyn Host,
    /// The process that opened it.
    process: u32,
    /// A pipe: readable as long as something waits.
    event: Kept,
    finished: Lock<Finished>,
    /// Counts finished copies; those who wait sleep on it.
    sequence: AtomicU32,
}

struct Finished {
    ring: [MaybeUninit<Completion>; ROOM],
    first: usize,
    count: usize,
    /// Copies under way.
    coming: usize,
}

impl Queue {
    /// A new one.
    ///
    /// ENOMEM; EMFILE, ENFILE: no descriptor for its pipe; ENOENT: no /proc.
    pub fn open(host: &'static dyn Host) -> Result<NonNull<Self>> {
        lock::in_some_process();
        let event = Kept::new(&file::pipe()?)?;
        memory::place(
            host,
            Self {
                host,
                process: regall_sys::getpid(),
                event,
                finished: Lock::new(Finished {
                    ring: [const { MaybeUninit::uninit() }; ROOM],
                    first: 0,
                    count: 0,
                    coming: 0,
                }),
                sequence: AtomicU32::new(0),
            },
        )
        .inspect_err(|_| event.close())
    }

    /// The descriptor that is readable as long as something waits.
    pub fn event(&self) -> i32 {
        self.event.raw()
    }

    /// ECHILD in a child of the process that opened it.
    fn ours(&self) -> Result<()> {
        match self.process == regall_sys::getpid() {
            true => Ok(()),
            false => Err(Errno::CHILD),
        }
    }

    /// Has `engine` do `job`. EAGAIN: there is no room; ECHILD: in a child of fork.
    ///
    /// # Safety
    /// What the job is about stays valid until its completion has been polled.
    pub unsafe fn start(&self, engine: &Engine, job: Job, tag: u64) -> Result<()> {
        self.ours()?;
        let mut finished = self.finished.lock();
        if finished.count + finished.coming >= ROOM {
            return Err(Errno::AGAIN);
        }
        let queue = NonNull::from(self);
        if !engine.ring.lock().push(Entry { queue, tag, job }) {
            return Err(Errno::AGAIN);
        }
        finished.coming += 1;
        drop(finished);
        engine.sequence.fetch_add(1, Release);
        regall_sys::futex_wake(&engine.sequence);
        Ok(())
    }

    /// A copy is finished. Nothing of the queue is touched once the lock is free again:
    /// it may be closed then.
    fn finish(&self, tag: u64, outcome: Outcome) {
        let sequence = &raw const self.sequence;
        {
            let mut finished = self.finished.lock();
            let place = (finished.first + finished.count) % ROOM;
            if let Some(place) = finished.ring.get_mut(place) {
                place.write(Completion { tag, outcome });
            }
            finished.count += 1;
            finished.coming -= 1;
            if finished.count == 1 {
                self.signal();
            }
            self.sequence.fetch_add(1, Release);
        }
        // SAFETY: the address alone is used: the kernel looks for sleepers on it.
        regall_sys::futex_wake_all(unsafe { &*sequence });
    }

    /// The first has come.
    fn signal(&self) {
        if let Some(event) = self.event.ours() {
            let _ = file::borrow(event).write_all(b"!");
        }
    }

    /// The last has gone.
    fn quiet(&self) {
        if let Some(event) = self.event.ours() {
            let _ = file::borrow(event).read(&mut [0]);
        }
    }

    /// Takes up to `room` completions, oldest first, and hands them to `tell`; how many.
    /// ECHILD: in a child of fork.
    pub fn poll(&self, room: usize, mut tell: impl FnMut(usize, &Completion)) -> Result<usize> {
        self.ours()?;
        let mut finished = self.finished.lock();
        let taken = room.min(finished.count);
        for n in 0..taken {
            if let Some(place) = finished.ring.get(finished.first) {
                // SAFETY: between first and first + count all have been written.
                tell(n, unsafe { place.assume_init_ref() });
            }
            finished.first = (finished.first + 1) % ROOM;
            finished.count -= 1;
        }
        if taken > 0 && finished.count == 0 {
            self.quiet();
        }
        Ok(taken)
    }

    /// As [`Queue::poll`], but waits until there is one, nothing is under way, or `nanos` are over
    /// (`None`: without end).
    pub fn wait(
        &self,
        room: usize,
        nanos: Option<u64>,
        mut tell: impl FnMut(usize, &Completion),
    ) -> Result<usize> {
        let since = time::now();
        loop {
            let sequence = self.sequence.load(Acquire);
            let taken = self.poll(room, &mut tell)?;
            if taken > 0 || room == 0 || self.is_idle() {
                return Ok(taken);
            }
            let spent = time::now().saturating_sub(since);
            let left = nanos.map_or(NAP, |n| n.saturating_sub(spent).min(NAP));
            if left == 0 {
                return Ok(0);
            }
            regall_sys::futex_wait(&self.sequence, sequence, left as u32);
        }
    }

    /// Whether nothing is under way or waits.
    fn is_idle(&self) -> bool {
        let finished = self.finished.lock();
        finished.coming == 0 && finished.count == 0
    }

    /// Closes it when nothing is under way any more. In a child of fork, its copy, at once.
    ///
    /// # Safety
    /// It is from [`Queue::open`], and nobody else uses it any more.
    pub unsafe fn close(queue: NonNull<Self>) {
        // SAFETY: by the contract above.
        let this = unsafe { queue.as_ref() };
        while this.ours().is_ok() {
            let sequence = this.sequence.load(Acquire);
            if this.finished.lock().coming == 0 {
                break;
            }
            regall_sys::futex_wait(&this.sequence, sequence, NAP as u32);
        }
        this.event.close();
        let host = this.host;
        // SAFETY: by the contract above; the copy thread is done with it.
        unsafe { memory::take(host, queue) };
    }
}
