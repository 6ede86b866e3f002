//! Where a row is.

use super::leaf::{Leaf, LEAF_ROWS};
use super::row::Row;

/// Where a row is: leaf number in the top, row number in the leaf. Valid until
/// the next change. A row number one past the leaf's last is a place to insert.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Pos {
    pub(super) leaf: usize,
    pub(super) row: usize,
}

impl Pos {
    /// Number of the leaf.
    #[inline]
    pub const fn leaf(self) -> usize {
        self.leaf
    }

    /// The place after `leaves` leaves were added before it.
    #[inline]
    pub const fn moved(self, leaves: usize) -> Self {
        Self {
            leaf: self.leaf.wrapping_add(leaves),
            row: self.row,
        }
    }
}

/// A row with its leaf at hand. Most changes stay within one leaf and need not look
/// for it again; what does not goes by [`Pos`]. Valid until the next change. Two
/// words, so that it is handed on in registers.
#[derive(Clone, Copy)]
pub struct Spot {
    pub(super) leaf: &'static Leaf,
    /// Number of the leaf and, in the lowest bits, of the row.
    pub(super) at: usize,
}

impl Spot {
    #[inline]
    pub(super) const fn new(leaf: &'static Leaf, number: usize, row: usize) -> Self {
        let at = number.wrapping_mul(LEAF_ROWS) | (row % LEAF_ROWS);
        Self { leaf, at }
    }

    #[inline]
    pub(super) const fn row_number(self) -> usize {
        self.at % LEAF_ROWS
    }

    #[inline]
    pub(super) const fn leaf_number(self) -> usize {
        self.at / LEAF_ROWS
    }

    /// Where it is.
    #[inline]
    pub const fn pos(self) -> Pos {
        Pos {
            leaf: self.leaf_number(),
            row: self.row_number(),
        }
    }

    /// The row.
    #[inline]
    pub fn row(self) -> Row {
        self.leaf.read(self.row_number())
    }

    /// The row before it, if that is in the same leaf.
    #[inline]
    pub fn before(self) -> Option<Self> {
        let at = self.at.wrapping_sub(1);
        (self.row_number() != 0).then_some(Self { at, ..self })
    }

    /// The row behind it, if that is in the same leaf.
    #[inline]
    pub fn behind(self) -> Option<Self> {
        let at = self.at.wrapping_add(1);
        let more = self.row_number().wrapping_add(1) < self.leaf.count();
        more.then_some(Self { at, ..self })
    }

    /// Whether its leaf can take `more` rows than it has.
    #[inline]
    pub fn has_room_for(self, more: usize) -> bool {
        self.leaf.count().saturating_add(more) <= LEAF_ROWS
    }
}

/// A row that a reader found, and by what it can tell that it is still true.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) row: Row,
    pub(super) leaf: &'static Leaf,
    pub(super) version: u64,
}
