//! How a domain ends.
//!
//! Its number, and the descriptor of its device, stay taken as long as calls are at work in it.
//! What such a call has the kernel do, or undo, so happens in the context that it was meant for: in
//! another one the same handles stand for other regions.

use super::candidates::Candidates;
use super::pairs::{self, Pairs};
use super::{numbers, Device, Domain, DomainId, Hca, State, ACTIVE, DOMAINS, NO_PD, PDS};
use core::sync::atomic::Ordering::*;

impl Domain {
    /// Whether another one can have its number.
    pub(super) fn is_free(&self) -> bool {
        self.is_left() && self.device.is_none()
    }

    /// Whether it is closed, and nobody is at work in it.
    fn is_left(&self) -> bool {
        self.state == State::Free && self.at_work == 0
    }
}

impl Hca {
    /// A call begins to work in domain `d`.
    pub fn work_begins(&mut self, d: DomainId) {
        if let Some(domain) = self.domain_mut(d) {
            domain.at_work = domain.at_work.saturating_add(1);
        }
    }

    /// A call's work in domain `d` is over. The device, if the domain was closed meanwhile and this
    /// was the last such call: its descriptor is to be closed.
    #[must_use = "the descriptor is to be closed"]
    pub fn work_ends(&mut self, d: DomainId) -> Option<Device> {
        self.work_has_ended(d, 1);
        let device = self.let_go_of(d)?;
        self.drop_bound(device);
        Some(device)
    }

    /// As [`Hca::work_ends`], of so many calls that could not say so then. If the domain was closed
    /// meanwhile its descriptor stays open.
    pub fn work_has_ended(&mut self, d: DomainId, calls: u32) {
        if let Some(domain) = self.domain_mut(d) {
            domain.at_work = domain.at_work.saturating_sub(calls);
        }
    }

    /// Domain `d` is no more. Its regions are gone. Its device, if no call is at work there any
    /// longer: its descriptor is to be closed.
    #[must_use = "the descriptor is to be closed"]
    pub fn close(&mut self, d: DomainId) -> Option<Device> {
        let domain = self.domain_mut(d)?;
        if domain.state == State::Free {
            return None;
        }
        domain.state = State::Free;
        domain.filling = None;
        if let Some(regions) = &mut domain.regions {
            regions.rebuild();
        }
        self.ends(d);
        if let Some(pd) = PDS.get(d.index()) {
            pd.store(NO_PD, Release);
        }
        ACTIVE.fetch_sub(1, Relaxed);
        if let Some(device) = self.domain(d).and_then(|domain| domain.device) {
            self.drop_bound(device);
        }
        self.let_go_of(d)
    }

    /// All that there was in its protection domain goes with it.
    fn drop_bound(&mut self, device: Device) {
        // Another class of access, or a new one of the same number.
        let there = |x: &Domain| x.device.is_some_and(|x| x.is_one_with(&device));
        if self.find(there).next().is_some() {
            return;
        }
        for n in 0..self.bound.room() {
            let _ = self.bound.take(n, |it| it.device.is_one_with(&device));
        }
    }

    /// The device of domain `d`, if the number is free.
    fn let_go_of(&mut self, d: DomainId) -> Option<Device> {
        let domain = self.domain_mut(d).filter(|domain| domain.is_left())?;
        domain.device.take()
    }

    /// In a child: everything here is its parent's, and nobody is at work. `each` is told of every
    /// descriptor.
    pub fn forget(&mut self, mut each: impl FnMut(Device)) {
        for d in numbers() {
            if let Some(domain) = self.domain_mut(d) {
                domain.at_work = 0;
            }
            if let Some(device) = self.close(d).or_else(|| self.let_go_of(d)) {
                each(device);
            }
        }
        self.records.clear();
        self.bound.clear();
        self.candidates = Candidates::new();
        self.pairs = Pairs::new();
        pairs::child();
        self.refused = [0; DOMAINS];
        self.bytes = 0;
        self.retired = 0;
        self.ahead = 0;
    }
}
