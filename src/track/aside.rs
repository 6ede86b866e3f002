//! What calls in progress have taken out of the ledger, beyond the few parts that each
//! remembers itself: should the kernel refuse the call, all of it has to be put back, with what
//! the kernel does not show (the application's locks, what it opted out, advice about children).

use crate::arena::Arena;
use crate::base::claims::{Claim, Claims};
use crate::ledger::{Ledger, Origin, Sink, View};
use core::ops::ControlFlow;
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::vocab::Attr;

/// A part of memory, what was said of it, and what it is a part of.
pub type Part = (PageRange, Attr, Origin);

/// Nobody looks anything up here.
static UNSEEN: View = View::new();

/// Publishes nothing.
struct Nowhere;

impl Sink for Nowhere {
    fn publish(&mut self, _: PageRange, _: Attr, _: u64) -> u32 {
        0
    }

    fn retire(&mut self, _: u32, _: PageRange, _: Attr) {}
}

/// The parts, by their addresses.
pub struct Aside {
    parts: Ledger,
    claims: Claims,
}

impl Default for Aside {
    fn default() -> Self {
        Self::new()
    }
}

impl Aside {
    /// None.
    pub const fn new() -> Self {
        Self {
            parts: Ledger::new(&UNSEEN),
            claims: Claims::new(),
        }
    }

    /// Empty, from whatever state a change that was left half-way made of it.
    pub fn rebuild(&mut self) {
        self.parts.rebuild();
        self.claims = Claims::new();
    }
}

/// The same, with where it gets memory from. Who is done with it enters what the arena has
/// mapped ([`super::State::adopt_own_memory`]).
pub struct AsideRoom<'a> {
    pub(super) aside: &'a mut Aside,
    pub(super) arena: &'a mut Arena,
}

impl AsideRoom<'_> {
    /// Keeps a part. False if there is no memory for it.
    pub fn put(&mut self, (range, attr, origin): Part) -> bool {
        self.is_ready() && {
            let parts = &mut self.aside.parts;
            let put = parts.insert_part(range, attr, Some(origin), &mut Nowhere);
            put.is_ok()
        }
    }

    /// A call sets aside what it takes out of `range`.
    pub fn begin(&mut self, range: PageRange) -> Claim {
        // Who held an overlapping claim has come back from the kernel, or never will.
        let mut ended = [None; 4];
        let mut places = ended.iter_mut();
        let claim = self.aside.claims.begin(range, |old| {
            if let Some(place) = places.next() {
                *place = Some(old);
            }
        });
        ended.iter().flatten().for_each(|old| self.remove(*old));
        self.remove(range);
        claim
    }

    /// The first part that ends above `addr` of what `claim` is about.
    pub fn next(&self, claim: Claim, addr: u64) -> Option<Part> {
        let rest = self.aside.claims.range(claim)?.after(addr)?;
        let mut first = None;
        self.aside.parts.for_each(rest, |part, entry| {
            first = Some((part, entry.attr, entry.origin));
            ControlFlow::Break(())
        });
        first
    }

    /// The last part of what `claim` is about.
    pub fn last(&self, claim: Claim) -> Option<Part> {
        let end = self.aside.claims.range(claim)?.end();
        self.next(claim, end - PAGE)
    }

    /// Forgets what `claim` is about.
    pub fn end(&mut self, claim: Claim) {
        if let Some(range) = self.aside.claims.end(claim) {
            self.remove(range);
        }
    }

    fn remove(&mut self, range: PageRange) {
        if !self.aside.parts.is_empty() && self.is_ready() {
            let _ = self.aside.parts.remove(range, &mut Nowhere, |_, _| ());
        }
    }

    /// Room for one change.
    fn is_ready(&mut self) -> bool {
        self.aside.parts.reserve(self.arena, 2)
    }
}
