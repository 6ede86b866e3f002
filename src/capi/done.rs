//! What the C interface says of a copy, and takes for one.

use regall_bridge::transfer::Outcome;
use regall_bridge::vector::Segment;

/// `struct regall_done`.
#[repr(C)]
pub struct Done {
    bytes: u64,
    generation: u64,
    mechanism: u32,
    reserved: u32,
}

impl From<&Outcome> for Done {
    fn from(outcome: &Outcome) -> Self {
        Self {
            bytes: outcome.bytes,
            generation: outcome.generation.get(),
            mechanism: outcome.mechanism.map_or(0, |kind| kind as u32 + 1),
            reserved: 0,
        }
    }
}

/// A vector of one segment.
pub(super) fn one(addr: u64, len: usize) -> Segment {
    Segment {
        addr,
        len: len as u64,
    }
}

#[cfg(test)]
mod tests {
    use regall_bridge::kind::Kind;

    #[test]
    fn the_header_names_every_mechanism() {
        let header = include_str!("../../include/regall.h");
        for kind in Kind::ALL {
            let word = kind.word().to_uppercase();
            let line = format!("\tREGALL_COPY_{word} = {}", kind as u32 + 1);
            assert!(header.contains(&line), "include/regall.h: no {line:?}");
        }
    }
}
