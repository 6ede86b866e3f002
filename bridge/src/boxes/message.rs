//! A message, as a box has it: what it is and how long, in one word.

/// Bytes of a line of the processor's cache: what a message is aligned to.
pub const LINE: u64 = 64;
/// Bytes in front of a message's data in a ring.
pub const RING_HEAD: u64 = 16;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Bytes that were sent.
    Data = 1,
    /// Bytes were put into the receiver's memory; the message's data are how many.
    Put = 2,
    /// Bytes were got from it.
    Get = 3,
}

impl Kind {
    /// From a word of the box.
    pub fn from_raw(kind: u64) -> Option<Self> {
        match kind {
            1 => Some(Self::Data),
            2 => Some(Self::Put),
            3 => Some(Self::Get),
            _ => None,
        }
    }
}

/// A message's kind and length as one word, and back.
pub fn described(kind: Kind, len: u64) -> u64 {
    (kind as u64) << 32 | len
}

/// See [`described`]. `None`: it is no such word, or the message would be longer than `limit`.
pub fn understood(word: u64, limit: u64) -> Option<(Kind, u64)> {
    let (kind, len) = (Kind::from_raw(word >> 32 & 0xff)?, word & 0xffff_ffff);
    let fits = match kind {
        Kind::Data => len <= limit,
        Kind::Put | Kind::Get => len == 8,
    };
    fits.then_some((kind, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_kinds_are_checked() {
        assert_eq!(
            understood(described(Kind::Data, 10), 10),
            Some((Kind::Data, 10))
        );
        assert_eq!(understood(described(Kind::Data, 11), 10), None);
        assert_eq!(understood(described(Kind::Put, 9), 100), None);
        assert_eq!(understood(4 << 32, 100), None);
    }
}
