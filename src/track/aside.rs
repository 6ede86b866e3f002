//! What calls in progress have taken out of the ledger, beyond the few parts that each
//! remembers itself: should the kernel refuse the call, all of it has to be put back, with what
//! the kernel does not show (the application's locks, what it opted out, advice about children).

use crate::arena::Arena;
use crate::base::claims::{self, Claim};
use crate::ledger::{Ledger, Origin, Sink, View};
use core::ops::ControlFlow;
use regall_directory::addr::PageRange;
use regall_directory::layout::SlotRef;
use regall_directory::vocab::Attr;

/// A part of memory, what was said of it, and what it is a part of.
pub type Part = (PageRange, Attr, Origin);

/// A view that nobody looks anything up in.
static UNSEEN: View = View::new();

/// Publishes nothing.
struct Nowhere;

impl Sink for Nowhere {
    fn publish(&mut self, _: PageRange, _: Attr, _: u64) -> Option<SlotRef> {
        None
    }

    fn retire(&mut self, _: Option<SlotRef>, _: PageRange, _: Attr) {}
}

/// The parts, by their addresses.
pub type Aside = claims::Aside<Ledger>;

/// No parts.
pub const fn none() -> Aside {
    Aside::new(Ledger::new(&UNSEEN))
}

/// Empty, from whatever state a change that was left half-way made of it.
pub fn rebuild(aside: &mut Aside) {
    aside.parts.rebuild();
    aside.forget_claims();
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
        let parts = &mut self.aside.parts;
        is_ready(parts, self.arena)
            && parts
                .insert_part(range, attr, Some(origin), &mut Nowhere)
                .is_ok()
    }

    /// A call sets aside what it takes out of `range`.
    pub fn begin(&mut self, range: PageRange) -> Claim {
        let Self { aside, arena } = self;
        aside.begin(range, |parts, old| remove(parts, arena, old))
    }

    /// The first part that ends above `addr` of what `claim` is about.
    pub fn next(&self, claim: Claim, addr: u64) -> Option<Part> {
        let rest = self.aside.range(claim)?.after(addr)?;
        let mut first = None;
        self.aside.parts.for_each(rest, |part, entry| {
            first = Some((part, entry.attr, entry.origin));
            ControlFlow::Break(())
        });
        first
    }

    /// The last part of what `claim` is about.
    pub fn last(&self, claim: Claim) -> Option<Part> {
        // There may be a hole at its end.
        let mut last = None;
        let all = self.aside.range(claim)?;
        self.aside.parts.for_each(all, |part, entry| {
            last = Some((part, entry.attr, entry.origin));
            ControlFlow::Continue(())
        });
        last
    }

    /// Forgets what `claim` is about.
    pub fn end(&mut self, claim: Claim) {
        if let Some(range) = self.aside.end(claim) {
            remove(&mut self.aside.parts, self.arena, range);
        }
    }
}

fn remove(parts: &mut Ledger, arena: &mut Arena, range: PageRange) {
    if !parts.is_empty() && is_ready(parts, arena) {
        let _ = parts.remove(range, &mut Nowhere, |_, _| ());
    }
}

/// Room for one change.
fn is_ready(parts: &mut Ledger, arena: &mut Arena) -> bool {
    parts.reserve(arena, 2)
}
