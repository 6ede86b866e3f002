//! The memory regions of one domain, by address. They don't overlap. Changed
//! under the track lock; looked up by any thread without one ([`View`]).

use super::records::RecordId;
use crate::ledger::index::{Index, Memory, Pos, Row, View};
use regall_directory::addr::PageRange;

/// What holds a range, or why nothing does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its addresses.
    pub range: PageRange,
    /// lkey | rkey << 32; 0: nothing holds it.
    pub keys: u64,
    /// The number of the region's record.
    pub record: RecordId,
}

impl Node {
    fn of(row: Row) -> Option<Self> {
        Some(Self {
            range: PageRange::new(row.start, row.end)?,
            keys: row.attr,
            record: RecordId::from_raw(row.tag),
        })
    }

    fn row(self) -> Row {
        Row {
            start: self.range.start(),
            end: self.range.end(),
            attr: self.keys,
            id: u64::from(self.record.get()),
            tag: self.record.get(),
            ..Row::NONE
        }
    }
}

/// An ordered map of nodes.
pub struct Regions {
    index: Index,
}

/// Leaves that any one change needs at the most.
const LEAVES: usize = 2;

impl Regions {
    /// An empty one, whose readers use `view`; a view has one.
    pub const fn new(view: &'static View) -> Self {
        Self {
            index: Index::new(view),
        }
    }

    /// Makes sure that the next change has room. `false`: there is no memory.
    pub fn reserve(&mut self, memory: &mut impl Memory) -> bool {
        self.index.reserve(memory, LEAVES)
    }

    /// Nodes.
    pub const fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.index.len() == 0
    }

    /// The first node that ends above `addr`: the one that holds it, or the next.
    pub fn next_from(&self, addr: u64) -> Option<Node> {
        Node::of(self.index.row(self.place(addr))?)
    }

    /// The first node that begins at `addr` or above.
    pub fn starting_from(&self, addr: u64) -> Option<Node> {
        let at = match self.index.find(addr) {
            None => Index::FIRST,
            Some(at) if self.index.row(at)?.start == addr => at,
            Some(at) => self.next(at),
        };
        Node::of(self.index.row(at)?)
    }

    /// The node that ends at `addr`.
    pub fn ending_at(&self, addr: u64) -> Option<Node> {
        let node = Node::of(self.index.row(self.index.find(addr.checked_sub(1)?)?)?)?;
        (node.range.end() == addr).then_some(node)
    }

    /// `node` comes into a hole.
    pub fn add(&mut self, node: Node) {
        let at = match self.index.find(node.range.start()) {
            Some(before) => self.index.behind(before),
            None => Index::FIRST,
        };
        if self.index.has_room(at, 1) {
            self.index.splice(at, 0, &[node.row()]);
        }
    }

    /// What begins in `range` goes. Nothing may reach out of it.
    pub fn remove(&mut self, range: PageRange) {
        let from = self.place(range.start());
        let mut to = from;
        while self.index.row(to).is_some_and(|r| r.start < range.end()) {
            to = self.next(to);
        }
        if to != from {
            self.index.cut(from, to);
            self.index.tidy(from);
        }
    }

    /// The node that begins at `start` becomes these, which lie in it, at one moment
    /// for readers.
    pub fn split(&mut self, start: u64, parts: [Option<Node>; 2]) {
        let Some(at) = self.index.find(start) else {
            return;
        };
        let rows = match parts {
            [Some(a), Some(b)] => [a.row(), b.row()],
            [Some(a), None] | [None, Some(a)] => [a.row(), a.row()],
            [None, None] => {
                self.index.cut(at, self.next(at));
                return self.index.tidy(at);
            }
        };
        let many = parts.iter().flatten().count();
        if self.index.has_room(at, 1) {
            self.index
                .splice(at, 1, rows.get(..many).unwrap_or_default());
        }
    }

    /// Empties the map. Keeps its memory. Readers may be at work, and it may have been
    /// left half-way.
    pub fn rebuild(&mut self) {
        self.index.rebuild();
    }

    /// The place of the first node that ends above `addr`.
    fn place(&self, addr: u64) -> Pos {
        let Some(at) = self.index.find(addr) else {
            return Index::FIRST;
        };
        match self.index.row(at) {
            Some(row) if row.end > addr => at,
            _ => self.next(at),
        }
    }

    fn next(&self, at: Pos) -> Pos {
        self.index.settle(self.index.behind(at))
    }
}
