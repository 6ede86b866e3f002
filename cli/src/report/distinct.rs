//! What is the same in many processes, kept once.

use std::collections::HashMap;
use std::hash::Hash;

/// Values, each once, and their places.
pub struct Distinct<T> {
    places: HashMap<T, u32>,
    /// In the order in which they came.
    pub all: Vec<T>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Self {
            places: HashMap::new(),
            all: Vec::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Distinct<T> {
    /// The place of a value; none if it is new, and `room` has none for it.
    pub fn place(&mut self, value: T, room: impl FnOnce(&T) -> bool) -> Option<u32> {
        if let Some(place) = self.places.get(&value) {
            return Some(*place);
        }
        if !room(&value) {
            return None;
        }
        let place = self.all.len() as u32;
        self.all.push(value.clone());
        self.places.insert(value, place);
        Some(place)
    }
}
