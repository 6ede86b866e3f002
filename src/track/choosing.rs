//! What is to be registered next in a domain, and as how large a region: looked for under the
//! lock, in the ledger and among the regions that are there.

use super::entering::column_of;
use super::waiting::{self, Backing, Reach, Verdict};
use super::State;
use crate::base::{phase, settings};
use crate::ledger::Entry;
use crate::limits;
use crate::policy::{self, Registering};
use crate::registrar::hca::growth::Growth;
use crate::registrar::hca::records::{Life, Record};
use crate::registrar::hca::sizes::CHUNK;
use crate::registrar::hca::{Device, Domain, DomainId};
use core::ops::ControlFlow;
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::vocab::{Access, Attr, Column, Kind, Reason};

/// Regions that were replaced while they were lent have this part of the budget at the most. (At a
/// tenth nothing is lent any more.)
const KEPT: u64 = 20;

/// One region to be registered.
#[derive(Clone, Copy)]
pub(super) struct Job {
    /// All of the region. Memory of one entry of the ledger that nothing holds, and regions before it
    /// that become one with it.
    pub range: PageRange,
    /// What of it is new.
    pub gap: PageRange,
    /// With what access.
    pub access: Access,
    /// See [`Record::of_others`].
    pub of_others: bool,
    /// See [`Record::cut`].
    pub cut: bool,
    /// See [`Record::growth`].
    pub growth: Growth,
    /// See [`Record::ahead`].
    pub ahead: u64,
    /// The device that it is registered with.
    pub device: Device,
}

/// What comes next in a domain.
pub(super) enum Step {
    /// There is something to be registered.
    Job(Job),
    /// What of this is resident is to be seen.
    Look(PageRange, Backing),
}

/// How the next step is looked for.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// How much is registered.
    pub reach: Reach,
    /// What was just seen to be resident.
    pub known: Option<PageRange>,
    /// What has just been refused as one region: it becomes small ones.
    pub small: Option<PageRange>,
    /// What a thread does at a time, where one registers what was there.
    pub most: u64,
}

/// What is known of a domain while the next step in it is looked for.
struct Search<'a> {
    state: &'a State,
    d: DomainId,
    domain: &'a Domain,
    /// The HCA column is about it.
    primary: bool,
    how: How,
}

/// What is to be done with a piece of memory.
enum Found {
    /// The HCA column of a range says something else from now on.
    Say(PageRange, Column),
    Look(PageRange, Backing),
    /// A gap of the entry, which may be written to or not, is to be registered.
    Register {
        gap: PageRange,
        entry: PageRange,
        writable: bool,
        of_others: bool,
        cut: bool,
        ahead: u64,
    },
}

impl<'a> Search<'a> {
    fn of(state: &'a State, d: DomainId, domain: &'a Domain, how: How) -> Self {
        Self {
            state,
            d,
            domain,
            primary: state.hca.primary() == Some(d),
            how,
        }
    }

    /// The first thing to do in `rest`.
    fn first(&self, rest: PageRange) -> Option<Found> {
        let mut found = None;
        self.state.ledger.for_each(rest, |piece, entry| {
            found = self.of_piece(piece, entry);
            match found {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        });
        found
    }

    fn of_piece(&self, piece: PageRange, entry: &Entry) -> Option<Found> {
        let attr = entry.attr;
        // Nothing that comes later in the order of a budget, unless it is asked for while a thread
        // goes through the rest.
        let asked = matches!(self.how.reach, Reach::Asked(_)) && self.domain.filling.is_some();
        if policy::rank(attr) > self.domain.upto_rank && !asked {
            return None;
        }
        let scope = settings::config().scope_data;
        let on_demand = self.domain.on_demand();
        match policy::registering(attr, entry.range.len(), on_demand, scope) {
            Registering::Leave(column) => {
                (self.primary && attr.hca != column).then_some(Found::Say(piece, column))
            }
            Registering::With(_) if self.domain.implicit => {
                (self.primary && !attr.hca.held()).then_some(Found::Say(piece, Column::YES))
            }
            Registering::With(_) if self.domain.waits && policy::is_on_request(attr) => {
                self.on_request(piece, entry)
            }
            Registering::With(writable) => self.gap_in(piece, entry, writable),
        }
    }

    /// What is done with a piece of memory that is registered exactly as it is asked for. Of files
    /// nothing is: the program's own registration is the only one that is right.
    fn on_request(&self, piece: PageRange, entry: &Entry) -> Option<Found> {
        let asked = match self.how.reach {
            Reach::Asked(bytes) if entry.attr.kind != Kind::File => piece.intersection(bytes),
            _ => None,
        };
        let found = asked.and_then(|part| self.gap_in(part, entry, entry.attr.prot.writable()));
        let says = self.primary && entry.attr.hca.reason == Reason::Off;
        let word = Column::no(Reason::OnRequest);
        found.or_else(|| says.then_some(Found::Say(piece, word)))
    }

    fn gap_in(&self, piece: PageRange, entry: &Entry, writable: bool) -> Option<Found> {
        let (attr, hca) = (entry.attr, &self.state.hca);
        // A call that read the kernel's list was faster than the one that
        // mapped this, which then entered it knowing nothing of the region.
        let said = attr.hca.reason;
        if self.primary && matches!(said, Reason::Off | Reason::Untouched | Reason::OnRequest) {
            if let Some((part, life)) = hca.held_by(self.d, piece) {
                return Some(Found::Say(part, column_of(life)));
            }
        }
        let mut from = Some(piece);
        while let Some(gap) = from.and_then(|p| hca.first_gap(self.d, p)) {
            let (first, cut) = self.one_region_of(gap, entry);
            let verdict = if self.domain.waits {
                self.verdict(attr, gap, first)
            } else {
                Verdict::Register(first, 0)
            };
            match verdict {
                Verdict::Register(gap, ahead) => {
                    return Some(Found::Register {
                        gap,
                        entry: entry.range,
                        writable,
                        of_others: policy::is_of_others(attr),
                        cut,
                        ahead,
                    });
                }
                Verdict::Look(backing) => return Some(Found::Look(gap, backing)),
                Verdict::Wait if self.primary && said == Reason::Off => {
                    return Some(Found::Say(gap, Column::no(Reason::Untouched)));
                }
                Verdict::Wait => from = piece.after(gap.end()),
            }
        }
        None
    }

    /// What of `gap` may become one region, and whether it is memory of small ones.
    fn one_region_of(&self, gap: PageRange, entry: &Entry) -> (PageRange, bool) {
        let refused = self.how.small.is_some_and(|s| s.contains(gap.start()));
        let same = |addr| {
            let there = self.state.ledger.get(addr);
            there.is_some_and(|e| e.origin == entry.origin)
        };
        let cut = refused || self.state.hca.is_cut(self.d, gap, same);
        let upto = |most| gap.start().saturating_add(most);
        let end = upto(
            self.domain
                .most_of(entry.range.len(), cut, self.state.total),
        );
        let end = match self.how.reach {
            // Who asks for much has it in one region, if that can be.
            Reach::Asked(bytes) if !refused => {
                end.max(upto(self.domain.most_asked()).min(bytes.end()))
            }
            _ => end.min(upto(self.how.most)),
        };
        (gap.before(end).unwrap_or(gap), cut)
    }

    /// What is done with `gap`, of which `first` may be one region, in a domain that waits. Memory
    /// that another domain has pinned is resident: it does not count again, and need not wait.
    fn verdict(&self, attr: Attr, gap: PageRange, first: PageRange) -> Verdict {
        let pinned = |range| match waiting::may_lack_room(attr) {
            true => (0, 0),
            false => self.state.hca.pinned_elsewhere(self.d, range),
        };
        let (there, pinned_first) = pinned(gap);
        let how = (self.how.reach, self.how.known);
        let verdict = waiting::verdict(self.state, attr, (gap, there), first, how);
        if let Verdict::Register(part, ahead) = verdict {
            let ahead = ahead.min(part.len() - pinned(part).0);
            return Verdict::Register(part, ahead);
        }
        let begins = first.before(gap.start() + pinned_first);
        begins.map_or(verdict, |part| Verdict::Register(part, 0))
    }
}

/// What is to be done next in domain `d`. Ranges that are only to be described are.
pub(super) fn next_step(state: &mut State, d: DomainId, rest: PageRange, how: How) -> Option<Step> {
    let device = state.hca.alive(d)?.device?;
    loop {
        let domain = state.hca.alive(d)?;
        let found = Search::of(state, d, domain, how).first(rest);
        if !phase::tracking() {
            return None;
        }
        match found? {
            Found::Say(piece, column) => {
                state.update(piece, |_, a| Attr { hca: column, ..a });
            }
            Found::Look(gap, backing) => return Some(Step::Look(gap, backing)),
            Found::Register {
                gap,
                entry,
                writable,
                of_others,
                cut,
                ahead,
            } => {
                let mut job = Job {
                    range: gap,
                    gap,
                    access: domain.access_for(writable),
                    of_others,
                    cut,
                    growth: Growth::NEW,
                    ahead,
                    device,
                };
                if !how.small.is_some_and(|s| s.contains(gap.start())) {
                    take_earlier(state, d, &mut job, entry, how.reach == Reach::Small);
                }
                return Some(Step::Job(job));
            }
        }
    }
}

/// Memory that grows a little at a time would be a region for every step: a new piece takes those
/// before it in that are no larger, so that each byte is registered again no more often than the
/// size has doubled. What is `new` takes a larger one in, too, if requests lie across it and what it
/// grows by. Regions whose keys were looked up stay as they are.
fn take_earlier(state: &State, d: DomainId, job: &mut Job, entry: PageRange, new: bool) {
    let Some(domain) = state.hca.domain(d) else {
        return;
    };
    let most = CHUNK.min(domain.most_bytes);
    let mut grown = None;
    while let Some((node, record)) = state.hca.ending_at(d, job.range.start()) {
        let like = record.life == Life::Live
            && record.access == job.access
            && record.of_others == job.of_others;
        let len = node.range.len();
        if !like || node.is_given() || len + job.range.len() > most {
            break;
        }
        let small = is_small_beside(record, job) && node.range.start() >= entry.start();
        if new && grows_from(state, job.range.start()) && spans(state, domain, record, job) {
            let growth = record.growth.grown(job.gap.start());
            job.growth = grown.map_or(growth, |before: Growth| before.or(growth));
            grown = Some(job.growth);
        } else if !small {
            break;
        }
        let Some(range) = PageRange::new(node.range.start(), job.range.end()) else {
            break;
        };
        job.range = range;
        job.cut |= record.cut;
        job.ahead = job.ahead.saturating_add(record.ahead);
    }
}

/// Whether the region of `record`, which nobody borrows, is no larger than what takes it in.
fn is_small_beside(record: &Record, job: &Job) -> bool {
    record.borrowers == 0 && record.range.len() <= job.range.len()
}

/// Whether requests lie, or may, across the region of `record` and what comes behind it. One that
/// is lent stays beside the new one until it is given back.
fn spans(state: &State, domain: &Domain, record: &Record, job: &Job) -> bool {
    let len = record.range.len();
    let room = domain.bytes.saturating_add(len + job.range.len()) <= state.total;
    if !room || !Growth::is_worth(len, job.gap.len()) {
        return false;
    }
    let kept = state.hca.retired.saturating_add(len);
    let wanted = match record.borrowers {
        0 => {
            let tried = record.growth.is_tried(record.asked != 0);
            record.growth.is_proven() || tried && !record.cut
        }
        _ => record.growth.is_proven() && kept <= state.total / KEPT,
    };
    wanted && !limits::still_binds()
}

/// Whether the memory from `addr` on is what the heap before it has grown by.
fn grows_from(state: &State, addr: u64) -> bool {
    let is_heap = |addr| {
        let entry = state.ledger.get(addr);
        entry.is_some_and(|entry| entry.attr.kind == Kind::Heap)
    };
    is_heap(addr - PAGE) && is_heap(addr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registrar::hca::trial::{account, add, device};
    use crate::registrar::hca::{given, marks};
    use regall_directory::vocab::{Flags, Prot};

    fn pages(from: u64, to: u64) -> PageRange {
        PageRange::new(from * PAGE, to * PAGE).unwrap()
    }

    /// The heap's pages 100 to 200, and so many domains. Once in a process: so often there are views.
    fn heap(domains: usize) -> State {
        let mut state = State::new();
        state.hca = account(domains);
        let attr = Attr {
            prot: Prot::from_call(3, false),
            kind: Kind::Heap,
            flags: Flags::EMPTY,
            pin: Column::YES,
            hca: Column::YES,
        };
        state.insert(pages(100, 200), attr);
        state
    }

    /// The one region of domain `d`, of which a request has been served.
    fn only(state: &mut State, range: PageRange, growth: Growth) {
        state
            .hca
            .regions_mut(first())
            .unwrap()
            .remove(pages(1, 1000));
        region(state, first(), range, growth, 7);
    }

    /// A region of domain `d`, of which a request has been served.
    fn region(state: &mut State, d: DomainId, range: PageRange, growth: Growth, keys: u32) {
        let mut record = Record::new(range, d, Access::LOCAL_WRITE, Life::Live);
        record.growth = growth;
        record.asked = PAGE;
        (record.lkey, record.rkey) = (keys, keys);
        add(&mut state.hca, record);
    }

    /// What of domain `d` is registered with pages that the heap has grown by.
    fn joined(state: &State, d: DomainId, gap: PageRange, new: bool) -> Job {
        let mut job = Job {
            range: gap,
            gap,
            access: Access::LOCAL_WRITE,
            of_others: false,
            cut: false,
            growth: Growth::NEW,
            ahead: 0,
            device: device(),
        };
        take_earlier(state, d, &mut job, gap, new);
        job
    }

    fn first() -> DomainId {
        crate::registrar::hca::numbers().next().unwrap()
    }

    #[test]
    fn the_heap_takes_in_what_requests_lie_across() {
        let mut state = heap(1);
        for (growth, new, from) in [
            (Growth::PROVEN, true, 100),
            // For a trial, since something was asked for in it.
            (Growth::NEW, true, 100),
            (Growth::NEW.grown(3), true, 190),
            // Memory that is not new, as where a domain is filled.
            (Growth::PROVEN, false, 190),
        ] {
            only(&mut state, pages(100, 190), growth);
            let job = joined(&state, first(), pages(190, 200), new);
            assert_eq!(job.range, pages(from, 200), "{growth:?} {new}");
            let seam = job.growth == growth.grown(190 * PAGE);
            assert_eq!(seam, from == 100, "{growth:?} {new}");
        }
    }

    #[test]
    fn what_it_is_too_small_for_is_left_alone() {
        // 33 times what it grows by; the budget has no room for both; it is not the heap.
        let mut state = heap(1);
        let whole = u64::MAX;
        for (before, gap, total, taken) in [
            (pages(101, 197), pages(197, 200), whole, true),
            // More than 32 times what it grows by.
            (pages(100, 197), pages(197, 200), whole, false),
            // The budget has room for both, or not.
            (pages(100, 190), pages(190, 200), 100 * PAGE, true),
            (pages(100, 190), pages(190, 200), 99 * PAGE, false),
            // It is not the heap.
            (pages(150, 200), pages(200, 210), whole, false),
        ] {
            state.total = total;
            only(&mut state, before, Growth::PROVEN);
            let job = joined(&state, first(), gap, true);
            assert_eq!(job.range != gap, taken, "{before:?} {gap:?}");
        }
    }

    #[test]
    fn what_is_lent_is_taken_in_as_long_as_little_is_kept() {
        let mut state = heap(1);
        state.total = 10_000 * PAGE;
        for (retired, from) in [(0, 100), (410, 100), (411, 190)] {
            only(&mut state, pages(100, 190), Growth::PROVEN);
            let (node, _) = state.hca.next_from(first(), 0).unwrap();
            state.hca.records.get_mut(node.record).unwrap().borrowers = 1;
            state.hca.retired = retired * PAGE;
            let job = joined(&state, first(), pages(190, 200), true);
            assert_eq!(job.range, pages(from, 200), "{retired}");
        }
    }

    #[test]
    fn keys_that_were_looked_up_stay_in_their_domain() {
        let mut state = heap(2);
        let both = || crate::registrar::hca::numbers();
        for (d, keys) in both().zip([7, 8]) {
            region(&mut state, d, pages(100, 190), Growth::PROVEN, keys);
        }
        let node = |state: &State, d| state.hca.next_from(d, 0).unwrap().0;
        let looked_up = node(&state, both().next().unwrap());
        assert!(marks::give(looked_up.record.get(), looked_up.keys, || true));
        assert!(looked_up.is_given());
        let of = |state: &State| {
            let all = both().map(|d| joined(state, d, pages(190, 200), true).range);
            all.collect::<Vec<_>>()
        };
        assert_eq!(of(&state), [pages(190, 200), pages(100, 200)]);
        // Nor may what was chosen before the look-up take its place.
        let withheld: Vec<_> = both()
            .map(|d| state.hca.withhold(d, pages(100, 200)))
            .collect();
        assert_eq!(withheld, [false, true]);
        // And keys that are withheld are not found.
        assert!(given::look(3, 100 * PAGE, 101 * PAGE).is_none());
    }

    #[test]
    fn if_one_was_looked_up_all_may_be_after_all() {
        let mut state = heap(1);
        for (n, keys) in [(0, 7), (1, 8), (2, 9)] {
            let range = pages(100 + 10 * n, 110 + 10 * n);
            region(&mut state, first(), range, Growth::NEW, keys);
        }
        let nodes: Vec<_> = [100, 110, 120]
            .map(|p| state.hca.next_from(first(), p * PAGE).unwrap().0)
            .into();
        let give = |n: usize| marks::give(nodes[n].record.get(), nodes[n].keys, || true);
        assert!(give(1));
        assert!(!state.hca.withhold(first(), pages(100, 130)));
        assert!(give(0), "it was left withheld");
        assert!(state.hca.withhold(first(), pages(120, 130)));
        assert!(!give(2));
        state.hca.release(first(), pages(120, 130));
        assert!(give(2));
    }
}
