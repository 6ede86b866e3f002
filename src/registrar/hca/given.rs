//! Regions whose keys somebody has looked up. Nobody gives such keys back, so these regions are not
//! replaced by larger ones of the same memory.

use super::regions::Node;
use super::{marks, DomainId, Hca, HIGH, PDS, VIEWS};
use core::sync::atomic::Ordering::Acquire;
use regall_directory::addr::PageRange;

/// So often one begins anew where the region is being replaced: it may be a signal handler on top of
/// who does that.
const AGAIN: usize = 1_000;

impl Node {
    /// Whether somebody has looked its keys up.
    pub fn is_given(&self) -> bool {
        marks::is_given(self.record.get(), self.keys)
    }
}

impl Hca {
    /// No look-up gives keys of regions of domain `d` in `range` from now on, since they are replaced
    /// at once. False: one has, and all may be looked up again.
    pub fn withhold(&self, d: DomainId, range: PageRange) -> bool {
        let all = || self.in_range(d, range);
        let given = all().find(|node| !marks::withhold(node.record.get(), node.keys));
        if let Some(given) = given {
            all()
                .take_while(|node| *node != given)
                .for_each(|node| marks::release(node.record.get()));
        }
        given.is_none()
    }

    /// They may be looked up again after all.
    pub fn release(&self, d: DomainId, range: PageRange) {
        self.in_range(d, range)
            .for_each(|node| marks::release(node.record.get()));
    }

    /// The nodes of domain `d` that touch `range`.
    fn in_range(&self, d: DomainId, range: PageRange) -> impl Iterator<Item = Node> + '_ {
        let mut at = range.start();
        core::iter::from_fn(move || {
            let (node, _) = self.next_from(d, at)?;
            at = node.range.end();
            (node.range.start() < range.end()).then_some(node)
        })
    }
}

/// A region as it is found without the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// lkey | rkey << 32.
    pub keys: u64,
}

/// The region that holds all of `addr..end` in the protection domain at `pd` (0: our own), as it
/// was at some moment during the call. From then on it stays as long as its memory does. No lock, no
/// system call.
#[inline]
pub fn look(pd: u64, addr: u64, end: u64) -> Option<Held> {
    (0..AGAIN).find_map(|_| look_once(pd, addr, end))?
}

/// One try; the outer `None`: the region that was found is being replaced.
#[inline]
fn look_once(pd: u64, addr: u64, end: u64) -> Option<Option<Held>> {
    let all = PDS.iter().zip(&VIEWS).take(HIGH.load(Acquire) as usize);
    let mut found = all
        .filter(|(at, _)| at.load(Acquire) == pd)
        .filter_map(|(_, view)| {
            let row = view.row_at(addr).ok().flatten()?;
            (row.attr != 0).then_some((view, row))
        });
    let Some((view, row)) = found.next().filter(|(_, row)| end <= row.end) else {
        return Some(None);
    };
    let stands = || view.row_at(addr).is_ok_and(|now| now == Some(row));
    marks::give(row.tag, row.attr, stands).then_some(Some(Held {
        start: row.start,
        end: row.end,
        keys: row.attr,
    }))
}
