//! The figures of a job's processes, a column each.

use std::collections::HashMap;

use regall_directory::layout::{Call, Counter};
use regall_directory::vocab::Reason;
use regall_documents::Known;

/// Figures that this version does not know, of others: more than any of them has beside these.
const MOST_UNKNOWN: usize = 64;

/// The figures of all processes, by name.
#[derive(Default)]
pub struct Figures {
    all: Vec<(String, Values)>,
    /// How many of them this version does not know.
    unknown: usize,
    /// By group, and the name in it.
    places: HashMap<String, HashMap<String, Option<usize>>>,
}

impl Figures {
    /// Whether there is a place for such a figure.
    pub fn set(&mut self, group: &str, name: &str, at: usize, value: Known) -> bool {
        let known = self.places.get(group).and_then(|names| names.get(name));
        let place = match known {
            Some(place) => *place,
            None => self.new_place(group, name),
        };
        let column = place.and_then(|n| self.all.get_mut(n));
        column.map(|(_, column)| column.set(at, value)).is_some()
    }

    /// A new figure; none if it has no name that can be printed, or nobody has so many. Those that
    /// this version knows have a place, whatever others have made up.
    fn new_place(&mut self, group: &str, name: &str) -> Option<usize> {
        let good = |b: u8| b.is_ascii_alphanumeric() || b"_-:".contains(&b);
        let plain = name.len() < 64 && name.bytes().all(good);
        let known = is_known(group, name);
        if !plain || !known && self.unknown >= MOST_UNKNOWN {
            return None;
        }
        self.unknown += usize::from(!known);
        let place = self.all.len();
        let full = if group.is_empty() {
            name.into()
        } else {
            format!("{group}.{name}")
        };
        self.all.push((full, Values::default()));
        let names = self.places.entry(group.to_string()).or_default();
        names.insert(name.to_string(), Some(place));
        Some(place)
    }

    /// All of them, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = &(String, Values)> {
        self.all.iter()
    }

    pub fn get(&self, group: &str, name: &str) -> Option<&Values> {
        let place = (*self.places.get(group)?.get(name)?)?;
        self.all.get(place).map(|(_, values)| values)
    }
}

/// Whether this version has such a figure.
fn is_known(group: &str, name: &str) -> bool {
    let alone = ["mappings", "unpublished", "budget_bytes", "memlock_bytes"];
    // (Those that mlock and adapters' drivers return.)
    let errno = |n: u8| n <= 34 || matches!(n, 95 | 105 | 110);
    let refused = || name.strip_prefix("refused:").and_then(|n| n.parse().ok());
    match group {
        "" => alone.contains(&name),
        "sites" => ["patched", "refused"].contains(&name),
        "events" => Call::ALL.iter().any(|call| call.word() == name),
        "counters" => Counter::ALL.iter().any(|counter| counter.word() == name),
        "bytes.state" => ["registered", "excluded"].contains(&name),
        "bytes.reason" | "bytes.pin" | "bytes.hca" => {
            let word = name == "yes" || Reason::ALL.iter().any(|reason| reason.word() == name);
            word || refused().is_some_and(errno)
        }
        _ => false,
    }
}

/// One figure of all processes, by their places; 0 where nothing was said.
#[derive(Default)]
pub struct Values {
    /// What the first `upto` have, while all have the same.
    same: Option<Known>,
    upto: usize,
    each: Vec<Known>,
}

impl Values {
    const NOTHING: Known = Known::ZERO;

    /// Places come in ascending order.
    pub fn set(&mut self, at: usize, value: Known) {
        if self.each.is_empty() {
            let skipped = self.upto < at;
            let same = self
                .same
                .unwrap_or(if skipped { Self::NOTHING } else { value });
            if same == value && (!skipped || value == Self::NOTHING) {
                (self.same, self.upto) = (Some(same), at + 1);
                return;
            }
            self.each = vec![same; self.upto];
        }
        self.each.resize(at, Self::NOTHING);
        self.each.push(value);
    }

    /// What a process has.
    pub fn get(&self, at: usize) -> Known {
        match self.each.is_empty() {
            true if at < self.upto => self.same.unwrap_or(Self::NOTHING),
            true => Self::NOTHING,
            false => self.each.get(at).copied().unwrap_or(Self::NOTHING),
        }
    }

    /// What all of `count` have, if that is the same.
    pub fn same(&self, count: usize) -> Option<Known> {
        let same = self.same.unwrap_or(Self::NOTHING);
        let all = self.upto >= count || same == Self::NOTHING;
        (self.each.is_empty() && all).then_some(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_was_set() {
        let lists: [&[(usize, u64)]; 7] = [
            &[],
            &[(0, 7), (1, 7), (2, 7)],
            &[(0, 7), (1, 7), (2, 8), (3, 7)],
            &[(2, 0), (5, 0)],
            &[(2, 7), (5, 7)],
            &[(0, 7), (4, 7)],
            &[(0, 0), (4, 7), (5, 0)],
        ];
        for list in lists {
            let mut values = Values::default();
            list.iter().for_each(|(at, n)| values.set(*at, (*n).into()));
            let expected: Vec<_> = (0..8)
                .map(|at| list.iter().find(|(n, _)| *n == at).map_or(0, |(_, v)| *v))
                .collect();
            let got: Vec<_> = (0..8).filter_map(|at| values.get(at).get()).collect();
            assert_eq!(got, expected, "{list:?}");
            let same = expected.iter().all(|n| *n == expected[0]);
            if let Some(value) = values.same(8) {
                assert!(same && value.get() == Some(expected[0]), "{list:?}");
            }
        }
    }
}
