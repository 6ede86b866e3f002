//! Which protection domains are adopted, and when: one is adopted when the application's own
//! registrations there have cost as much as adopting it would. So a program pays at most about twice
//! what it would without the shim, however it uses its protection domains, and never for one in which
//! it hardly registers.
//!
//! Both sides are counted in bytes. A region costs what its bytes cost, and as much as [`REGION`]
//! more: a device takes both at its own rate, which so need not be known.
//!
//! A domain that ends before its loans have saved what it has cost was adopted too early: it doubles
//! the price for its context, and one that has saved that halves it again.

use super::{DomainId, Hca};
use regall_directory::vocab::Access;

/// A registration costs as much as so many bytes of one do, beside its own: UCX reckons with 16 µs
/// and 0.06 ns a byte, Soft-RoCE takes 15 µs and 0.085 ns.
const REGION: u64 = 256 << 10;
/// Protection domains, with their classes, that are remembered at a time.
const MANY: usize = 128;
/// Contexts that are remembered at a time.
const CONTEXTS: usize = 64;
/// The price of a context is doubled so often at the most.
const DOUBLINGS: u8 = 16;
/// What adopting costs is reckoned anew after so many nanoseconds: all that is mapped is looked at ...
const PAUSE: u64 = 100_000_000;
/// ... up to this price, or up to twice what has been paid.
const WORTH: u64 = cost(256, 0);

/// What so many regions with so many bytes cost, in bytes.
pub const fn cost(regions: u64, bytes: u64) -> u64 {
    regions.saturating_mul(REGION).saturating_add(bytes)
}

/// A protection domain that is not adopted for a class of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Address of the protection domain.
    pub pd: u64,
    /// Address of its context.
    pub context: u64,
    /// What a domain there would register with.
    pub class: Access,
}

/// A registration that the application makes itself, since its protection domain is not adopted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Charge {
    /// Where it is made.
    pub to: Candidate,
    /// How much of memory it is, in bytes.
    pub bytes: u64,
}

/// What a candidate has paid.
#[derive(Clone, Copy)]
struct Account {
    of: Option<Candidate>,
    paid: u64,
}

/// What is known of a context.
#[derive(Clone, Copy)]
struct Context {
    /// Its address; 0: none.
    at: u64,
    /// The user leaves its device out.
    left_out: bool,
    /// So often is its price doubled.
    doublings: u8,
}

/// Whether a candidate is to be adopted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// It has paid for it.
    Now,
    /// It has not.
    NotYet,
    /// It may have: what adopting costs is to be reckoned.
    Reckon,
}

/// Protection domains that are not adopted, and what is known of contexts.
pub struct Candidates {
    accounts: [Account; MANY],
    contexts: [Context; CONTEXTS],
    /// The place for the next one, where all are taken.
    next_context: usize,
    /// What adopting a protection domain costs, in bytes ...
    price: u64,
    /// ... as of this time, in nanoseconds; 0: it is not known.
    reckoned: u64,
}

impl Candidates {
    /// None is known.
    pub const fn new() -> Self {
        let (of, at) = (None, 0);
        Self {
            accounts: [Account { of, paid: 0 }; MANY],
            contexts: [Context {
                at,
                left_out: false,
                doublings: 0,
            }; CONTEXTS],
            next_context: 0,
            price: 0,
            reckoned: 0,
        }
    }

    /// Returns whether `candidate` is to be adopted, at `now`, in nanoseconds.
    pub fn due(&self, candidate: Candidate, now: u64) -> Due {
        let (paid, price) = (self.paid(candidate), self.price_in(candidate.context));
        let fresh = now.saturating_sub(self.reckoned) < PAUSE;
        match paid >= price {
            _ if self.reckoned == 0 => Due::Reckon,
            // It was reckoned for this very question.
            true if now == self.reckoned => Due::Now,
            true => Due::Reckon,
            // It may cost less by now.
            false if !fresh && paid >= price / 2 => Due::Reckon,
            false => Due::NotYet,
        }
    }

    fn paid(&self, candidate: Candidate) -> u64 {
        let account = self.accounts.iter().find(|a| a.of == Some(candidate));
        account.map_or(0, |a| a.paid)
    }

    /// Returns the price from which on it makes no difference to `candidate`, for some time.
    pub fn worth_knowing(&self, candidate: Candidate) -> u64 {
        let doublings = self.doublings(candidate.context);
        (2 * (self.paid(candidate) >> doublings)).max(WORTH)
    }

    fn doublings(&self, context: u64) -> u8 {
        self.context(context).map_or(0, |c| c.doublings)
    }

    /// Adopting a protection domain costs `price` at `now`.
    pub fn reckon(&mut self, price: u64, now: u64) {
        self.price = price.max(1);
        self.reckoned = now;
    }

    /// What adopting costs, as it was last reckoned.
    pub const fn price(&self) -> u64 {
        self.price
    }

    fn price_in(&self, context: u64) -> u64 {
        self.price.saturating_mul(1 << self.doublings(context))
    }

    /// The application has made a registration itself.
    pub fn pays(&mut self, charge: Charge) {
        let of = Some(charge.to);
        // One that has paid little makes place.
        let least = |a: &&mut Account| if a.of.is_some() { a.paid } else { 0 };
        let known = self.accounts.iter().any(|a| a.of == of);
        let place = match known {
            true => self.accounts.iter_mut().find(|a| a.of == of),
            false => self.accounts.iter_mut().min_by_key(least),
        };
        if let Some(account) = place {
            let before = if known { account.paid } else { 0 };
            let paid = before.saturating_add(cost(1, charge.bytes));
            *account = Account { of, paid };
        }
    }

    /// `candidate` begins anew: it is adopted, or can't be.
    pub fn begin_anew(&mut self, candidate: Candidate) {
        self.forget_those(|of| *of == candidate);
    }

    /// The protection domain at `pd` is no more: another one may come to its address.
    pub fn forget(&mut self, pd: u64) {
        self.forget_those(|of| of.pd == pd);
    }

    fn forget_those(&mut self, are: impl Fn(&Candidate) -> bool) {
        for account in &mut self.accounts {
            if account.of.as_ref().is_some_and(&are) {
                account.of = None;
            }
        }
    }

    fn context(&self, at: u64) -> Option<&Context> {
        self.contexts.iter().find(|c| at != 0 && c.at == at)
    }

    /// The same to be changed; it is remembered from now on.
    fn context_mut(&mut self, at: u64) -> Option<&mut Context> {
        if at == 0 {
            return None;
        }
        let place = |at| self.contexts.iter().position(|c| c.at == at);
        let known = place(at).or_else(|| place(0));
        let n = known.unwrap_or(self.next_context);
        if known.is_none() {
            self.next_context = (n + 1) % CONTEXTS;
        }
        let context = self.contexts.get_mut(n)?;
        if context.at != at {
            *context = Context {
                at,
                left_out: false,
                doublings: 0,
            };
        }
        Some(context)
    }

    /// A domain of the context at `at` has ended before it had saved what it had cost.
    pub fn died_young(&mut self, at: u64) {
        if let Some(context) = self.context_mut(at) {
            context.doublings = DOUBLINGS.min(context.doublings + 1);
        }
    }

    /// A domain of the context at `at` has saved what it had cost.
    pub fn has_lived(&mut self, at: u64) {
        let known = self.contexts.iter_mut().find(|c| c.at == at);
        if let Some(context) = known {
            context.doublings = context.doublings.saturating_sub(1);
        }
    }

    /// Whether the device behind the context at `at` is known to be left out.
    pub fn is_left_out(&self, at: u64) -> bool {
        self.context(at).is_some_and(|c| c.left_out)
    }

    /// The device behind the context at `at` is left out.
    pub fn leave_out(&mut self, at: u64) {
        if let Some(context) = self.context_mut(at) {
            context.left_out = true;
        }
    }

    /// The context is closed; another one may come to its address.
    pub fn forget_context(&mut self, at: u64) {
        self.forget_those(|of| of.context == at);
        for context in self.contexts.iter_mut().filter(|c| c.at == at) {
            context.at = 0;
        }
    }
}

impl Hca {
    /// Domain `d` has been opened since `candidate` has paid for it.
    pub fn is_bought(&mut self, d: DomainId) {
        let cost = self.candidates.price();
        if let Some(domain) = self.domain_mut(d) {
            domain.to_save = cost;
        }
    }

    /// A registration of `bytes` was served from domain `d`.
    pub fn saves(&mut self, d: DomainId, bytes: u64) {
        let Some(domain) = self.domain_mut(d).filter(|d| d.to_save != 0) else {
            return;
        };
        domain.to_save = domain.to_save.saturating_sub(cost(1, bytes));
        if domain.to_save == 0 {
            let context = domain.owner.context;
            self.candidates.has_lived(context);
        }
    }

    /// Domain `d` ends.
    pub(super) fn ends(&mut self, d: DomainId) {
        let Some(domain) = self.domain_mut(d) else {
            return;
        };
        let young = core::mem::take(&mut domain.to_save) != 0;
        let context = domain.owner.context;
        if young {
            self.candidates.died_young(context);
        }
    }
}

impl Default for Candidates {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registrar::hca::numbers;
    use crate::registrar::hca::trial::account;

    const PRICE: u64 = cost(10, 1 << 20);
    const NOW: u64 = 5;

    fn candidate(pd: u64) -> Candidate {
        Candidate {
            pd,
            context: 7,
            class: Access::LOCAL_WRITE,
        }
    }

    fn priced() -> Candidates {
        let mut all = Candidates::new();
        assert_eq!(all.due(candidate(1), NOW), Due::Reckon);
        all.reckon(PRICE, NOW);
        all
    }

    /// So many registrations of a page each until `of` is adopted.
    fn paid_until_adopted(all: &mut Candidates, of: Candidate) -> u64 {
        for n in 0.. {
            match all.due(of, NOW) {
                Due::NotYet => all.pays(Charge {
                    to: of,
                    bytes: 4096,
                }),
                Due::Now => {
                    all.begin_anew(of);
                    return n;
                }
                Due::Reckon => panic!("it is known"),
            }
        }
        unreachable!()
    }

    #[test]
    fn a_protection_domain_is_adopted_when_it_has_paid_as_much() {
        let mut all = priced();
        let many = PRICE.div_ceil(cost(1, 4096));
        assert_eq!(paid_until_adopted(&mut all, candidate(1)), many);
        // It begins anew, and so does one that comes to the address of one that went.
        assert_eq!(paid_until_adopted(&mut all, candidate(1)), many);
        let charge = |pd, bytes| Charge {
            to: candidate(pd),
            bytes,
        };
        all.pays(charge(2, PRICE));
        assert_eq!(all.due(candidate(2), NOW), Due::Now);
        all.forget(2);
        assert_eq!(all.due(candidate(2), NOW), Due::NotYet);
        // Another class of access pays for itself.
        all.pays(charge(3, PRICE));
        let other = Candidate {
            class: Access::LOCAL_WRITE.with(Access::REMOTE_READ),
            ..candidate(3)
        };
        assert_eq!(all.due(candidate(3), NOW), Due::Now);
        assert_eq!(all.due(other, NOW), Due::NotYet);
    }

    #[test]
    fn what_it_costs_is_reckoned_before_it_is_adopted_and_now_and_then() {
        let mut all = priced();
        let later = NOW + PAUSE;
        let pays = |all: &mut Candidates| {
            let (to, bytes) = (candidate(1), PRICE / 2);
            all.pays(Charge { to, bytes });
        };
        assert_eq!(all.due(candidate(1), later), Due::NotYet);
        pays(&mut all);
        assert_eq!(all.due(candidate(1), later - 1), Due::NotYet);
        assert_eq!(all.due(candidate(1), later), Due::Reckon);
        pays(&mut all);
        assert_eq!(all.due(candidate(1), NOW + 1), Due::Reckon);
        // More has been mapped since.
        all.reckon(2 * PRICE, NOW + 1);
        assert_eq!(all.due(candidate(1), NOW + 1), Due::NotYet);
        assert_eq!(all.due(candidate(1), NOW + 2), Due::NotYet);
        all.reckon(PRICE, NOW + 3);
        assert_eq!(all.due(candidate(1), NOW + 3), Due::Now);
    }

    #[test]
    fn more_than_can_be_remembered_take_turns() {
        let mut all = priced();
        for pd in 1..=MANY as u64 + 1 {
            all.pays(Charge {
                to: candidate(pd),
                bytes: if pd == 7 { PRICE } else { PRICE + pd },
            });
        }
        // Who had paid least has made place for the last.
        assert_eq!(all.due(candidate(7), NOW), Due::NotYet);
        assert_eq!(all.due(candidate(1), NOW), Due::Now);
        assert_eq!(all.due(candidate(MANY as u64 + 1), NOW), Due::Now);
    }

    #[test]
    fn who_dies_young_doubles_the_price_and_who_lives_halves_it() {
        let mut hca = account(2);
        let both: Vec<_> = numbers().collect();
        for d in &both {
            hca.domain_mut(*d).unwrap().owner.context = 7;
        }
        hca.candidates.reckon(PRICE, NOW);
        let page = cost(1, 4096);
        let times = |hca: &mut Hca| paid_until_adopted(&mut hca.candidates, candidate(1));
        let many = |times: u64| (PRICE << times).div_ceil(page);
        // One that nobody has paid for, as where keys are looked up, counts for nothing.
        hca.ends(both[0]);
        assert_eq!(times(&mut hca), many(0));
        for n in 1..4 {
            hca.is_bought(both[0]);
            hca.saves(both[0], PRICE - cost(1, 0) - 1);
            hca.ends(both[0]);
            assert_eq!(times(&mut hca), many(n));
        }
        hca.is_bought(both[1]);
        hca.saves(both[1], PRICE);
        assert_eq!(times(&mut hca), many(2));
        // Once for each, whatever it saves yet, and though it ends.
        hca.saves(both[1], PRICE);
        hca.ends(both[1]);
        assert_eq!(times(&mut hca), many(2));
        // In other contexts it is what it was.
        let other = Candidate {
            context: 8,
            ..candidate(1)
        };
        assert_eq!(paid_until_adopted(&mut hca.candidates, other), many(0));
    }

    #[test]
    fn a_device_is_left_out_until_it_is_closed() {
        let mut all = Candidates::new();
        assert!(!all.is_left_out(7));
        all.leave_out(7);
        assert!(all.is_left_out(7) && !all.is_left_out(8));
        all.forget_context(7);
        assert!(!all.is_left_out(7));
    }
}
