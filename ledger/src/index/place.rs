//! What a row says, and where it is.

use super::leaf::{Leaf, LEAF_ROWS};

/// A row: one range and what is said of it, as plain words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Packed attributes.
    pub attr: u64,
    /// Unique number.
    pub id: u64,
    /// Slot in the directory.
    pub slot: u32,
    /// Which mapping it is of, or a part of: rows that were split off each other have the same.
    pub origin: u32,
}

impl Row {
    /// All zeros.
    pub const NONE: Self = Self::halves(0);

    #[inline]
    pub(super) const fn slot_and_origin(&self) -> u64 {
        (self.origin as u64) << 32 | self.slot as u64
    }

    /// Nothing but what [`Row::slot_and_origin`] said.
    #[inline]
    pub(super) const fn halves(word: u64) -> Self {
        Self {
            start: 0,
            end: 0,
            attr: 0,
            id: 0,
            slot: word as u32,
            origin: (word >> 32) as u32,
        }
    }
}

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

    /// The same place after `leaves` leaves were added before it.
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
