//! What a row says.

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
    /// A number that the map's user keeps with it.
    pub tag: u32,
    /// Which mapping it is of, or a part of: rows that were split off each other have the same.
    pub origin: u32,
}

impl Row {
    /// All zeros.
    pub const NONE: Self = Self::halves(0);

    #[inline]
    pub(super) const fn tag_and_origin(&self) -> u64 {
        (self.origin as u64) << 32 | self.tag as u64
    }

    /// A row that has only what [`Row::tag_and_origin`] packed.
    #[inline]
    pub(super) const fn halves(word: u64) -> Self {
        Self {
            start: 0,
            end: 0,
            attr: 0,
            id: 0,
            tag: word as u32,
            origin: (word >> 32) as u32,
        }
    }
}
