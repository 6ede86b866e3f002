//! An account for unit tests: domains without adapters.

use super::records::Record;
use super::regions::{Node, Regions};
use super::{Device, Hca, State, DOMAINS, HIGH, VIEWS};
use crate::registrar::heap::Heap;
use core::sync::atomic::Ordering::Relaxed;

/// An account with so many domains that are alive.
pub fn account(domains: usize) -> Hca {
    let mut hca = Hca::new();
    for (domain, view) in hca.domains.iter_mut().zip(&VIEWS).take(domains) {
        let mut regions = Regions::new(view);
        assert!(regions.reserve(&mut Heap));
        domain.regions = Some(regions);
        domain.state = State::Alive;
        domain.most_bytes = u64::MAX;
    }
    assert!(domains <= DOMAINS);
    HIGH.store(domains as u32, Relaxed);
    hca
}

/// The region of `record` is there.
pub fn add(hca: &mut Hca, record: Record) -> Node {
    let d = record.domain;
    assert!(hca.reserve(&mut Heap, d));
    let node = Node {
        range: record.range,
        keys: record.keys().max(1),
        record: hca.records.add(record).unwrap(),
    };
    hca.regions_mut(d).unwrap().add(node);
    node
}

/// A device that nobody has.
pub fn device() -> Device {
    // SAFETY: numbers, and a kind whose first one has a number alone.
    unsafe { core::mem::zeroed() }
}
