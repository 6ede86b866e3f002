//! What is drawn as one: a mapping, or, where there are too many to be read,
//! neighbours that say much the same. Pure.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use regall_directory::vocab::Prot;

use super::kind::{Fill, Kinds};
use crate::rows::Row;

/// How many blocks a person can read.
pub const MOST: usize = 64;

/// Names that a block of many can tell.
const NAMES: usize = 3;

/// One box of the picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Bytes of it that are mapped.
    pub mapped: u64,
    /// What is done with them, the kinds in order.
    pub parts: Vec<Part>,
    /// Names of mappings, each once, in the order of addresses; `None`: more of them.
    pub names: Vec<Option<String>>,
    /// The protection, if all have the same.
    pub prot: Option<Prot>,
}

/// As much of a block as the same is done with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// The kind's number.
    pub kind: usize,
    /// How many bytes.
    pub bytes: u64,
    /// How many mappings, or pieces of them.
    pub pieces: usize,
}

impl Block {
    fn of(row: &Row, kinds: &mut Kinds) -> Self {
        let bytes = row.range.len();
        let kind = kinds.number(row);
        Self {
            start: row.range.start(),
            end: row.range.end(),
            mapped: bytes,
            parts: vec![Part {
                kind,
                bytes,
                pieces: 1,
            }],
            names: vec![Some(row.mapping.name.clone())],
            prot: Some(row.mapping.prot),
        }
    }

    /// How many mappings, or pieces of them.
    pub fn pieces(&self) -> usize {
        self.parts.iter().map(|p| p.pieces).sum()
    }

    /// With all of the next one.
    fn join(&mut self, next: &Self) {
        self.end = next.end;
        self.mapped = self.mapped.saturating_add(next.mapped);
        if self.prot != next.prot {
            self.prot = None;
        }
        for part in &next.parts {
            match self.parts.iter_mut().find(|p| p.kind == part.kind) {
                Some(own) => {
                    own.bytes = own.bytes.saturating_add(part.bytes);
                    own.pieces += part.pieces;
                }
                None => self.parts.push(*part),
            }
        }
        self.parts.sort_by_key(|p| p.kind);
        for name in &next.names {
            let full = self.names.len() > NAMES;
            if !full && !self.names.contains(name) {
                let room = self.names.len() < NAMES;
                self.names.push(name.clone().filter(|_| room));
            }
        }
    }

    /// The kind's share of the block.
    fn share(&self, kind: usize) -> f64 {
        let part = self.parts.iter().find(|p| p.kind == kind);
        part.map_or(0.0, |p| p.bytes as f64) / self.mapped.max(1) as f64
    }

    /// How much a reader loses if this and the next one become one: pages that
    /// are no longer seen for what they are, names, a hole between them.
    fn loss(&self, next: &Self, kinds: &Kinds) -> f64 {
        const OTHER_NAME: f64 = 16.0;
        const OTHER_GAP: f64 = 1e9;
        let pages = |b: &Self| (b.mapped / 4096).max(1) as f64;
        let (here, there) = (pages(self), pages(next));
        let all = self.parts.iter().chain(&next.parts).map(|p| p.kind);
        let mut apart = 0.0;
        let mut loss = 0.0;
        for kind in all {
            let differ = self.share(kind) - next.share(kind);
            // A kind that both have is counted twice, which does no harm.
            apart += differ * differ;
            if differ != 0.0 && kinds.fill(kind) == Fill::Gap {
                loss += OTHER_GAP;
            }
        }
        loss += apart * here * there / (here + there);
        if self.names != next.names {
            loss += OTHER_NAME;
        }
        let hole = next.start.saturating_sub(self.end) / 4096;
        if hole > 0 {
            loss += OTHER_NAME + (hole as f64).log2();
        }
        // Of equals, the small ones first.
        loss + (here + there).log2() / 1000.0
    }
}

/// The rows as blocks, [`MOST`] at the most.
pub fn blocks(rows: &[Row], kinds: &mut Kinds) -> Vec<Block> {
    let single: Vec<_> = rows.iter().map(|row| Block::of(row, kinds)).collect();
    fewer(single, MOST, kinds)
}

/// The loss of joining two small mappings, or the parts of a library.
const TRIFLE: f64 = 2.0;

/// Joins the neighbours of which the least is lost, until there are `most` and
/// nothing is left that could as well be joined.
fn fewer(blocks: Vec<Block>, most: usize, kinds: &Kinds) -> Vec<Block> {
    let mut left = blocks.len();
    let mut all: Vec<Option<Block>> = blocks.into_iter().map(Some).collect();
    let mut list = Neighbours::new(left);
    let mut heap = BinaryHeap::new();
    // A loss is never negative: its bits are in its order.
    let weigh = |all: &[Option<Block>], a: usize, b: usize| {
        let pair = all.get(a)?.as_ref().zip(all.get(b)?.as_ref());
        pair.map(|(x, y)| Reverse((x.loss(y, kinds).to_bits(), a, b, x.end, y.end)))
    };
    if left > most {
        heap.extend((1..left).filter_map(|n| weigh(&all, n - 1, n)));
    }
    while let Some(Reverse((loss, a, b, a_end, b_end))) = heap.pop() {
        if left <= most && f64::from_bits(loss) > TRIFLE {
            break;
        }
        let end = |n: usize| all.get(n).and_then(Option::as_ref).map(|b| b.end);
        // Either has been joined with another one since it was weighed.
        if end(a) != Some(a_end) || end(b) != Some(b_end) {
            continue;
        }
        let gone = all.get_mut(b).and_then(Option::take);
        let own = all.get_mut(a).and_then(Option::as_mut);
        let (Some(gone), Some(own)) = (gone, own) else {
            break;
        };
        own.join(&gone);
        left -= 1;
        list.remove(b);
        heap.extend(list.before(a).and_then(|p| weigh(&all, p, a)));
        heap.extend(list.after(a).and_then(|n| weigh(&all, a, n)));
    }
    all.into_iter().flatten().collect()
}

/// Who stands beside whom, when some have gone.
struct Neighbours {
    before: Vec<Option<usize>>,
    after: Vec<Option<usize>>,
}

impl Neighbours {
    fn new(count: usize) -> Self {
        Self {
            before: (0..count).map(|n| n.checked_sub(1)).collect(),
            after: (1..=count).map(|n| (n < count).then_some(n)).collect(),
        }
    }

    fn before(&self, n: usize) -> Option<usize> {
        self.before.get(n).copied().flatten()
    }

    fn after(&self, n: usize) -> Option<usize> {
        self.after.get(n).copied().flatten()
    }

    fn remove(&mut self, n: usize) {
        let (before, after) = (self.before(n), self.after(n));
        if let Some(link) = before.and_then(|b| self.after.get_mut(b)) {
            *link = after;
        }
        if let Some(link) = after.and_then(|a| self.before.get_mut(a)) {
            *link = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::fixtures::{entry, mapping};
    use regall_directory::vocab::{self, Reason};
    use regall_reader::{Entry, Mapping};

    /// Mappings by page numbers, with whether each is held and its name.
    fn parts(all: &[(u64, u64, bool, &str)]) -> Vec<(Mapping, Entry)> {
        let part = |&(start, end, held, name): &(u64, u64, bool, &str)| {
            let (mut m, mut e) = (mapping(start, end), entry(start, end));
            m.name = name.to_string();
            if !held {
                e.attr.pin = vocab::Column::no(Reason::NoAccess);
                e.attr.hca = vocab::Column::no(Reason::NoAccess);
            }
            (m, e)
        };
        all.iter().map(part).collect()
    }

    fn joined(parts: &[(Mapping, Entry)], most: usize) -> Vec<Block> {
        let rows: Vec<_> = parts.iter().map(|(m, e)| Row::new(m, Some(e))).collect();
        let mut kinds = Kinds::default();
        let single: Vec<_> = rows.iter().map(|r| Block::of(r, &mut kinds)).collect();
        fewer(single, most, &kinds)
    }

    fn pages(blocks: &[Block]) -> Vec<(u64, u64, usize)> {
        let all = blocks.iter();
        all.map(|b| (b.start >> 12, b.end >> 12, b.pieces()))
            .collect()
    }

    #[test]
    fn few_stand_alone() {
        let all = parts(&[(1, 2, true, "a"), (2, 3, true, "a"), (3, 4, true, "a")]);
        assert_eq!(pages(&joined(&all, 3)), [(1, 2, 1), (2, 3, 1), (3, 4, 1)]);
        assert_eq!(pages(&joined(&[], 3)), []);
    }

    #[test]
    fn what_alternates_becomes_one_and_the_rest_stays() {
        let mut all = vec![(10, 500, true, "big"), (600, 700, true, "[heap]")];
        all.extend((1000..21_000).map(|n| (n, n + 1, n % 2 == 0, "")));
        all.push((30_000, 31_000, false, ""));
        let blocks = joined(&parts(&all), 10);
        let expected = [
            (10, 500, 1),
            (600, 700, 1),
            (1000, 21_000, 20_000),
            (30_000, 31_000, 1),
        ];
        assert_eq!(pages(&blocks), expected);
        let bytes: Vec<_> = blocks[2].parts.iter().map(|p| p.bytes >> 12).collect();
        assert_eq!(bytes, [10_000, 10_000]);
        assert_eq!(blocks[2].mapped >> 12, 20_000);
    }

    #[test]
    fn there_are_never_more_than_can_be_read_and_no_byte_is_lost() {
        // Nothing that goes together: names, sizes, holes all differ.
        let names: Vec<_> = (0..5000).map(|n| format!("file{n}")).collect();
        let mut at = 1;
        let mut all = Vec::new();
        for (n, name) in names.iter().enumerate() {
            let size = 1 + (n * 7919 % 1000) as u64;
            all.push((at, at + size, n % 3 != 0, name.as_str()));
            at += size + (n % 5) as u64;
        }
        let blocks = joined(&parts(&all), 50);
        assert!(blocks.len() <= 50, "{}", blocks.len());
        let mapped: u64 = blocks.iter().map(|b| b.mapped >> 12).sum();
        assert_eq!(mapped, all.iter().map(|(s, e, ..)| e - s).sum::<u64>());
        assert_eq!(blocks.iter().map(Block::pieces).sum::<usize>(), 5000);
        assert!(blocks.windows(2).all(|w| w[0].end <= w[1].start));
        assert!(blocks.iter().all(|b| b.names.len() <= NAMES + 1));
    }

    #[test]
    fn a_gap_is_not_lost_among_many() {
        let all: Vec<_> = (0..1000).map(|n| (n, n + 1, n % 2 == 0, "")).collect();
        let all = parts(&all);
        let rows = all.iter().enumerate();
        let rows: Vec<_> = rows
            .map(|(n, (m, e))| Row::new(m, (n != 500).then_some(e)))
            .collect();
        let mut kinds = Kinds::default();
        let single: Vec<_> = rows.iter().map(|r| Block::of(r, &mut kinds)).collect();
        let blocks = fewer(single, 10, &kinds);
        assert_eq!(
            pages(&blocks),
            [(0, 500, 500), (500, 501, 1), (501, 1000, 499)]
        );
    }
}
