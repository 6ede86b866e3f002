//! Memory regions of RDMA adapters. One *domain* for each protection domain and
//! class of access that was asked for in it: everything that is mapped and can be
//! registered is registered there. What is here is the account, behind the track
//! lock; `track::registering` carries it out.

mod ahead;
pub mod candidates;
pub mod closing;
pub mod files;
pub mod given;
pub mod growth;
pub mod idle;
pub mod marks;
pub mod pairs;
pub mod records;
pub mod regions;
pub mod sizes;
#[cfg(test)]
pub mod trial;

use crate::ledger::index::{Memory, View};
use crate::uverbs::{Channel, MrHandle, PdHandle};
use candidates::Candidates;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use files::FileId;
use records::{Life, Record, RecordId, Records};
use regall_directory::addr::PageRange;
use regall_directory::vocab::Access;
use regions::{Node, Regions};

/// Domains at one time: 32 adapters, two protection domains on each, two classes of access for each
/// ordering. What is asked for beyond them is passed on.
pub const DOMAINS: usize = 256;

/// Access that a borrowed handle can have.
pub const SERVED: Access = Access::LOCAL_WRITE
    .with(ALL_REMOTE)
    .with(Access::MW_BIND)
    .with(Access::RELAXED_ORDERING);
/// Access of peers.
pub const ALL_REMOTE: Access = Access::REMOTE_WRITE
    .with(Access::REMOTE_READ)
    .with(Access::REMOTE_ATOMIC);
/// Access that memory which can't be written can have.
const OF_READ_ONLY: Access = Access::REMOTE_READ
    .with(Access::RELAXED_ORDERING)
    .with(Access::ON_DEMAND);

/// Domains in use. Read without the lock by everyone who asks whether there is
/// anything to do.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
/// Numbers of domains that were ever in use lie below this.
static HIGH: AtomicU32 = AtomicU32::new(0);
static VIEWS: [View; DOMAINS] = [const { View::new() }; DOMAINS];
/// For look-ups without the lock: the address of each domain's `struct ibv_pd`; [`NO_PD`]
/// where there is no domain or its regions are rotated, 0 for our own.
static PDS: [AtomicU64; DOMAINS] = [const { AtomicU64::new(NO_PD) }; DOMAINS];
const NO_PD: u64 = u64::MAX;

/// Whether there is any domain.
#[inline]
pub fn active() -> bool {
    ACTIVE.load(Relaxed) != 0
}

/// The number of a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DomainId(u32);

impl DomainId {
    /// Its place in a table of [`DOMAINS`].
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// As the directory and the log name it: 0 is none there.
    pub const fn named(self) -> u64 {
        self.0 as u64 + 1
    }
}

/// The numbers that domains may have at this moment.
#[inline]
pub fn numbers() -> impl Iterator<Item = DomainId> {
    (0..HIGH.load(Relaxed)).map(DomainId)
}

/// Whose a domain is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Address of the application's `struct ibv_pd`; 0: the shim's own.
    pub pd: u64,
    /// Address of its `struct ibv_context`; 0: the shim's own.
    pub context: u64,
}

/// How a domain is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not in use.
    Free,
    /// Kept in step with what is mapped.
    Alive,
    /// The domain is closing: nothing is registered in it or served from it any more.
    Closing,
}

/// What the kernel needs to know of a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// By which descriptor the device's context was reached last: the program may have another file
    /// there by now. -1: it is closed.
    pub hint: Channel,
    /// Handle of the protection domain.
    pub pd: PdHandle,
    /// The open file that it is.
    pub file: FileId,
    /// Whether the shim has opened it for itself.
    pub ours: bool,
}

/// How far a domain has come that is being filled with what was mapped when it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filling {
    /// Another one for each domain that was ever filled.
    pub stamp: u32,
    /// What has this [`rank`](crate::policy::rank) is looked at.
    pub rank: u8,
    /// Where, from this address on.
    pub from: u64,
    /// How much there is, if anybody is to be told.
    pub total: u64,
}

/// One domain.
pub struct Domain {
    /// The domain's state.
    pub state: State,
    /// Whose it is.
    pub owner: Owner,
    /// Where it is.
    pub device: Option<Device>,
    /// The class: what is registered with memory that can be written.
    pub access: Access,
    /// While it is new: what ranks higher ([`crate::policy::rank`]) has to wait.
    pub upto_rank: u8,
    /// What is still to be done until everything is registered in it, if a thread does that.
    pub filling: Option<Filling>,
    /// One region over all addresses, which the adapter pages on demand.
    pub implicit: bool,
    /// What is large waits until it is touched or asked for.
    pub waits: bool,
    /// Its regions are rotated after they were lent, so nobody looks keys up in it.
    pub rotates: bool,
    /// Regions that the shim may have on the device.
    pub most_regions: usize,
    /// Bytes that the device registers at once, whole pages.
    pub most_bytes: u64,
    /// Bytes registered in it or about to be, retired regions included.
    pub bytes: u64,
    /// Calls that register or deregister in it at this moment.
    pub at_work: u32,
    /// What it is still to save of what it has cost; 0: nothing, or it was not paid for.
    to_save: u64,
    regions: Option<Regions>,
}

impl Device {
    /// Whether it is the same protection domain.
    pub fn is_one_with(&self, other: &Self) -> bool {
        self.file == other.file && self.pd == other.pd
    }

    /// The region `handle` there, to be forgotten.
    pub const fn deregistration(self, handle: MrHandle) -> Deregistration {
        Deregistration {
            device: self,
            handle,
        }
    }
}

impl Domain {
    /// Whether nothing in it is pinned.
    pub const fn on_demand(&self) -> bool {
        self.access.has(Access::ON_DEMAND)
    }

    const fn free() -> Self {
        Self {
            state: State::Free,
            owner: Owner { pd: 0, context: 0 },
            device: None,
            access: Access::NONE,
            upto_rank: 0,
            filling: None,
            implicit: false,
            waits: false,
            rotates: false,
            most_regions: 0,
            most_bytes: 0,
            bytes: 0,
            at_work: 0,
            to_save: 0,
            regions: None,
        }
    }

    /// The domain's regions, if it ever had any.
    pub fn regions(&self) -> Option<&Regions> {
        self.regions.as_ref()
    }

    /// Regions, and ranges that are known not to become any.
    pub fn many(&self) -> usize {
        self.regions.as_ref().map_or(0, Regions::len)
    }

    /// With what access memory is registered in it.
    pub fn access_for(&self, writable: bool) -> Access {
        // On demand the processor's page tables decide at the time of access.
        if writable || self.on_demand() {
            self.access
        } else {
            self.access.only(OF_READ_ONLY)
        }
    }
}

/// All domains, and their regions.
pub struct Hca {
    domains: [Domain; DOMAINS],
    /// Every region that the kernel was asked for.
    pub records: Records,
    /// Bytes registered or about to be, over all domains, retired ones included.
    pub bytes: u64,
    /// Bytes that only retired regions hold.
    pub retired: u64,
    /// Bytes of regions that nobody had touched before; see [`Record::ahead`].
    pub ahead: u64,
    /// What is left of the budget, as of when it was last reckoned.
    pub headroom: u64,
    /// What the kernel would not forget yet: a memory window is bound to it.
    pub bound: idle::Bound,
    /// What is not to be large regions.
    pub hurried: sizes::Hurried,
    /// Protection domains that are not adopted yet.
    pub candidates: Candidates,
    /// Queue pairs of the program's.
    pub pairs: pairs::Pairs,
    /// Contexts of devices that can't be served; 0: none.
    refused: [u64; DOMAINS],
}

impl Hca {
    /// An account without domains.
    pub const fn new() -> Self {
        Self {
            domains: [const { Domain::free() }; DOMAINS],
            records: Records::new(),
            bytes: 0,
            retired: 0,
            ahead: 0,
            headroom: 0,
            bound: idle::Bound::new(),
            hurried: sizes::Hurried::new(),
            candidates: Candidates::new(),
            pairs: pairs::Pairs::new(),
            refused: [0; DOMAINS],
        }
    }

    /// The domains that were ever in use, by number.
    fn used(&self) -> &[Domain] {
        let many = HIGH.load(Relaxed) as usize;
        self.domains.get(..many).unwrap_or(&self.domains)
    }

    /// Domain number `d`, if it is alive.
    pub fn alive(&self, d: DomainId) -> Option<&Domain> {
        self.domains
            .get(d.index())
            .filter(|d| d.state == State::Alive)
    }

    /// Domain number `d`, however it is.
    pub fn domain(&self, d: DomainId) -> Option<&Domain> {
        self.domains.get(d.index())
    }

    /// Domain number `d`, to be changed.
    pub fn domain_mut(&mut self, d: DomainId) -> Option<&mut Domain> {
        self.domains.get_mut(d.index())
    }

    /// Numbers of the domains that `which` says yes to, among those in use.
    pub fn find(&self, which: impl Fn(&Domain) -> bool) -> impl Iterator<Item = DomainId> {
        let mut found = [false; DOMAINS];
        for (found, x) in found.iter_mut().zip(self.used()) {
            *found = x.state != State::Free && which(x);
        }
        numbers().filter(move |d| found.get(d.index()).copied().unwrap_or(false))
    }

    /// The domain that the HCA column tells of: our own, else the first that is alive.
    pub fn primary(&self) -> Option<DomainId> {
        let alive = |d: &&Domain| d.state == State::Alive;
        let own = |d: &Domain| d.state == State::Alive && d.owner.pd == 0;
        let first = self.used().iter().position(|d| alive(&d));
        let found = self.used().iter().position(own).or(first);
        found.map(|n| DomainId(n as u32))
    }

    /// A new domain; its number, or `None` if there are too many or no memory.
    pub fn open(
        &mut self,
        memory: &mut impl Memory,
        owner: Owner,
        device: Device,
        (access, rotates): (Access, bool),
        (most_regions, most_bytes): (usize, u64),
    ) -> Option<DomainId> {
        let d = self.domains.iter().position(Domain::is_free)?;
        let (domain, view) = (self.domains.get_mut(d)?, VIEWS.get(d)?);
        let regions = domain.regions.get_or_insert_with(|| Regions::new(view));
        if !regions.reserve(memory) {
            return None;
        }
        domain.owner = owner;
        domain.device = Some(device);
        domain.access = access;
        domain.upto_rank = 0;
        domain.filling = None;
        domain.implicit = false;
        domain.waits = false;
        domain.rotates = rotates;
        domain.most_regions = most_regions;
        domain.most_bytes = most_bytes;
        domain.bytes = 0;
        domain.at_work = 0;
        domain.to_save = 0;
        domain.state = State::Alive;
        if let Some(pd) = PDS.get(d) {
            pd.store(if rotates { NO_PD } else { owner.pd }, Release);
        }
        // Who looks at it without the lock finds the whole of it.
        HIGH.fetch_max(d as u32 + 1, Release);
        ACTIVE.fetch_add(1, Relaxed);
        Some(DomainId(d as u32))
    }

    /// Whether the device behind `context` was found not to be one that can be served.
    pub fn refuses(&self, context: u64) -> bool {
        self.refused.contains(&context)
    }

    /// The device behind `context` can't be served.
    pub fn refuse(&mut self, context: u64) {
        if self.refuses(context) {
            return;
        }
        if let Some(place) = self.refused.iter_mut().find(|c| **c == 0) {
            *place = context;
        }
    }

    /// The context is closed; another one may come to its address.
    pub fn accept(&mut self, context: u64) {
        for place in self.refused.iter_mut().filter(|c| **c == context) {
            *place = 0;
        }
        self.candidates.forget_context(context);
    }

    /// Nothing of domain `d` is known any more: its context is closed.
    pub fn drop_records(&mut self, d: DomainId) {
        for n in self.records.numbers() {
            if let Some(record) = self.records.get_mut(n) {
                if record.life != Life::Free && record.domain == d {
                    record.borrowers = 0;
                    let _ = self.destroy(n);
                }
            }
        }
    }

    /// Every region is to be registered anew; what is not lent is to be deregistered.
    pub fn rebuild(&mut self) {
        for domain in &mut self.domains {
            // The one region for all addresses goes, too: what is there is registered by parts.
            domain.implicit = false;
            if let Some(regions) = &mut domain.regions {
                regions.rebuild();
            }
        }
        for n in self.records.numbers() {
            let Some(record) = self.records.get_mut(n) else {
                continue;
            };
            record.slot = None;
            if matches!(record.life, Life::Live | Life::Spoiled) {
                record.life = Life::Retired;
                let ahead = core::mem::take(&mut record.ahead);
                self.ahead = self.ahead.saturating_sub(ahead);
                self.retired = self.retired.saturating_add(record.range.len());
            } else if matches!(record.life, Life::Refused(_)) {
                let _ = self.destroy(n);
            }
        }
    }

    /// A region that is retired and not lent, which only [`Hca::rebuild`] leaves behind.
    pub fn forgotten(&mut self) -> Option<Deregistration> {
        let lone = |r: &Record| r.life == Life::Retired && r.borrowers == 0;
        let found = self.records.each().find(|(_, r)| lone(r));
        let n = found.map(|(n, _)| n)?;
        self.destroy(n)
    }

    /// `len` bytes are about to be registered in domain `d`.
    pub fn charge(&mut self, d: DomainId, len: u64) {
        self.bytes = self.bytes.saturating_add(len);
        if let Some(domain) = self.domain_mut(d) {
            domain.bytes = domain.bytes.saturating_add(len);
        }
    }

    /// `len` bytes were not registered in domain `d`, or are no more.
    pub fn refund(&mut self, d: DomainId, len: u64) {
        self.bytes = self.bytes.saturating_sub(len);
        if let Some(domain) = self.domain_mut(d) {
            domain.bytes = domain.bytes.saturating_sub(len);
        }
    }

    /// Memory in `range` has gone or changed in a way that the adapter was not told of
    /// in time: regions there are lent no more.
    pub fn spoil(&mut self, range: PageRange) {
        for d in numbers() {
            let mut from = range.start();
            while let Some((node, _)) = self.next_from(d, from) {
                if node.range.start() >= range.end() {
                    break;
                }
                from = node.range.end();
                let implicit = self.domain(d).is_some_and(|d| d.implicit);
                if let Some(record) = self.records.get_mut(node.record) {
                    if record.life == Life::Live && !implicit {
                        record.life = Life::Spoiled;
                    }
                }
            }
        }
    }

    /// Room for one more region in domain `d`.
    pub fn reserve(&mut self, memory: &mut impl Memory, d: DomainId) -> bool {
        let regions = self.domain_mut(d).and_then(|d| d.regions.as_mut());
        regions.is_some_and(|r| r.reserve(memory)) && self.records.reserve(memory)
    }

    /// The first node of domain `d` that ends above `addr`.
    pub fn next_from(&self, d: DomainId, addr: u64) -> Option<(Node, &Record)> {
        let node = self.domain(d)?.regions()?.next_from(addr)?;
        Some((node, self.records.get(node.record)?))
    }

    /// The regions of domain `d`, to be changed.
    pub fn regions_mut(&mut self, d: DomainId) -> Option<&mut Regions> {
        self.domain_mut(d)?.regions.as_mut()
    }

    /// The node of domain `d` that ends at `addr`.
    pub fn ending_at(&self, d: DomainId, addr: u64) -> Option<(Node, &Record)> {
        let node = self.domain(d)?.regions()?.ending_at(addr)?;
        Some((node, self.records.get(node.record)?))
    }

    /// The first node of domain `d` from `addr` on that begins within `new` and is not
    /// `new` itself.
    pub fn following(&self, d: DomainId, addr: u64, new: Node) -> Option<Node> {
        let regions = self.domain(d)?.regions()?;
        let node = regions.starting_from(addr)?;
        (node.range.start() < new.range.end() && node.record != new.record).then_some(node)
    }

    /// The beginning of `piece` as far as one node of domain `d` covers it, and what
    /// that node is.
    pub fn held_by(&self, d: DomainId, piece: PageRange) -> Option<(PageRange, Life)> {
        let (node, record) = self.next_from(d, piece.start())?;
        let held = node.range.intersection(piece)?;
        (held.start() == piece.start()).then_some((held, record.life))
    }

    /// A region has got its last borrower back, or never had one, and is out of its
    /// domain: what the kernel has to be told.
    pub fn destroy(&mut self, n: RecordId) -> Option<Deregistration> {
        let record = *self.records.get(n)?;
        if record.borrowers != 0 || record.life == Life::Free {
            return None;
        }
        self.hand_over(n);
        let record = *self.records.get(n)?;
        let len = record.range.len();
        self.ahead = self.ahead.saturating_sub(record.ahead);
        let held = !matches!(record.life, Life::Refused(_));
        if held {
            self.refund(record.domain, len);
        }
        if record.life == Life::Retired {
            self.retired = self.retired.saturating_sub(len);
        }
        let device = self.domain(record.domain).and_then(|d| d.device);
        self.records.remove(n);
        held.then_some(device?.deregistration(record.handle))
    }

    /// A region leaves its domain. If it is borrowed it stays until it is given back.
    pub fn retire(&mut self, n: RecordId) -> Option<Deregistration> {
        let record = self.records.get_mut(n)?;
        if record.borrowers == 0 {
            return self.destroy(n);
        }
        record.life = Life::Retired;
        // Who has borrowed it has asked for it.
        let ahead = core::mem::take(&mut record.ahead);
        let len = record.range.len();
        self.ahead = self.ahead.saturating_sub(ahead);
        self.retired = self.retired.saturating_add(len);
        None
    }
}

/// A region that the kernel is to be told to forget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deregistration {
    /// Where it is registered.
    pub device: Device,
    /// The region's handle.
    pub handle: MrHandle,
}

impl Default for Hca {
    fn default() -> Self {
        Self::new()
    }
}
