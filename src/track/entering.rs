//! How regions get into a domain and the directory, and leave both.

use super::deregistering::Deregistrations;
use super::state::{State, USER_END};
use super::waiting;
use crate::base::settings;
use crate::policy;
use crate::registrar::hca::records::{Life, Record, RecordId};
use crate::registrar::hca::regions::Node;
use crate::registrar::hca::{Device, DomainId};
use regall_directory::addr::PageRange;
use regall_directory::vocab::{Access, Attr, Column, Reason};
use regall_directory::writer::Region;

/// The HCA column of what is mapped in `range`, where this is the primary domain.
pub fn say(state: &mut State, range: PageRange, column: Column) {
    state.update(range, |_, a| {
        // What no registrar may have says so itself.
        if policy::excluded(a).is_some() && !column.held() {
            a
        } else {
            Attr { hca: column, ..a }
        }
    });
}

/// What came of a new region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entered {
    /// It is in its domain.
    Yes,
    /// It is not: the domain is on its way out, or there is no memory for it.
    No,
    /// It is not: somebody has looked up keys of a region that it was to replace.
    Given,
}

/// The region of `record` is there: it takes the place of those that it took in, or goes.
pub fn enter(
    state: &mut State,
    d: DomainId,
    device: Device,
    record: Record,
    leaving: &mut Deregistrations,
) -> Entered {
    let entered = replace(state, d, record, leaving);
    if entered != Entered::Yes {
        leaving.add(device.deregistration(record.handle));
        state.hca.refund(d, record.range.len());
    }
    entered
}

fn replace(
    state: &mut State,
    d: DomainId,
    record: Record,
    leaving: &mut Deregistrations,
) -> Entered {
    let range = record.range;
    // Not on the way out (a PD that is being freed at this moment).
    if state.hca.alive(d).is_none() || !state.hca_ready(d) {
        return Entered::No;
    }
    if !state.hca.withhold(d, range) {
        return Entered::Given;
    }
    // Published before what it replaces goes.
    let Some(node) = publish(state, d, record) else {
        state.hca.release(d, range);
        return Entered::No;
    };
    let first = state.hca.next_from(d, range.start());
    let first = first
        .map(|(n, _)| n)
        .filter(|n| n.range.start() < range.end());
    let mut old = first;
    match (state.hca.regions_mut(d), first) {
        (Some(regions), Some(first)) => regions.split(first.range.start(), [Some(node), None]),
        (Some(regions), None) => regions.add(node),
        (None, _) => return Entered::Yes,
    }
    while let Some(gone) = old {
        let next = state.hca.following(d, gone.range.end(), node);
        leave(state, d, gone, Some(gone) == first, leaving);
        old = next;
    }
    // (What all addresses are registered for says nothing of what is mapped.)
    let implicit = state.hca.domain(d).is_some_and(|x| x.implicit);
    if state.hca.primary() == Some(d) && !implicit {
        say(state, range, Column::YES);
    }
    Entered::Yes
}

/// Keeps `record` and shows it to others.
pub fn publish(state: &mut State, d: DomainId, record: Record) -> Option<Node> {
    let n = state.hca.records.add(record)?;
    state.hca.ahead = state.hca.ahead.saturating_add(record.ahead);
    if record.life == Life::Live {
        let pd = state.hca.domain(d)?.device?.pd;
        let generation = state.generation();
        // What peers may not do they get no key for.
        let mask = if policy::beyond(record.access, settings::config().access) {
            u64::from(u32::MAX)
        } else {
            u64::MAX
        };
        let region = Region {
            domain: d.named() | (u64::from(pd.0) << 32),
            keys: record.keys() & mask,
        };
        let slot = state.writer.publish_region(
            generation,
            record.range,
            record.access,
            u64::from(n.get()),
            region,
        );
        if let Some(kept) = state.hca.records.get_mut(n) {
            kept.slot = slot;
        }
    }
    Some(Node {
        range: record.range,
        keys: record.keys(),
        record: n,
    })
}

/// `node` leaves its domain and the directory.
pub fn leave(
    state: &mut State,
    d: DomainId,
    node: Node,
    replaced: bool,
    leaving: &mut Deregistrations,
) {
    if let (Some(regions), false) = (state.hca.regions_mut(d), replaced) {
        regions.remove(node.range);
    }
    retract_slot(state, node.record);
    if let Some(deregistration) = state.hca.retire(node.record) {
        leaving.add(deregistration);
    }
}

/// What the directory says of `record` goes.
pub fn retract_slot(state: &mut State, record: RecordId) {
    let Some(record) = state.hca.records.get_mut(record) else {
        return;
    };
    match record.slot.take() {
        Some(slot) => state.writer.retire(slot),
        None if record.life == Life::Live => state.writer.unpublished_gone(),
        None => (),
    }
}

/// Nothing holds `gap`, and for what reason.
pub fn refuse(state: &mut State, d: DomainId, gap: PageRange, life: Life) {
    if state.hca.alive(d).is_none() || !state.hca_ready(d) {
        return;
    }
    let mut record = Record::new(gap, d, Access::NONE, life);
    // The kernel has refused more than a small region has, or there is no room for one.
    record.cut = true;
    let Some(node) = publish(state, d, record) else {
        return;
    };
    if let Some(regions) = state.hca.regions_mut(d) {
        regions.add(node);
    }
    if let (Life::Refused(errno), true) = (life, state.hca.primary() == Some(d)) {
        say(state, gap, refusal(errno));
    }
}

/// The column for memory in a domain's map.
pub fn column_of(life: Life) -> Column {
    match life {
        Life::Refused(errno) => refusal(errno),
        _ => Column::YES,
    }
}

/// The column for memory that is [`Life::Refused`].
pub fn refusal(errno: u8) -> Column {
    match errno {
        0 => Column::no(Reason::Limit),
        errno => Column::refused(errno),
    }
}

/// The HCA column tells of another domain from now on, or of none.
pub fn new_primary(state: &mut State) {
    let (primary, all) = (state.hca.primary(), PageRange::new(0, USER_END));
    if let Some(all) = all {
        state.update(all, |_, a| policy::unregistered(a));
        if let Some(d) = primary.filter(|d| state.hca.alive(*d).is_some_and(|d| d.waits)) {
            // What has a region says so below, and so does what is left out, when it is
            // settled.
            waiting::waits(state, d, all);
        }
    }
    let mut from = 0;
    while let Some(node) = primary.and_then(|d| state.hca.next_from(d, from)) {
        let (node, life) = (node.0, node.1.life);
        from = node.range.end();
        state.ready();
        say(state, node.range, column_of(life));
    }
    state.show_regions();
}
