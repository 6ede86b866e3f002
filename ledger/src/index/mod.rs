//! The ordered array under the ledger: one writer, any number of readers that
//! take no lock and make no system call.
//!
//! Two levels. A *leaf* holds up to [`LEAF_ROWS`] rows in the order of their
//! start addresses. The *top* holds every leaf's first start and its pointer, in
//! order, under a small tree of samples (every 8th key, every 64th, ...): a look-up
//! counts, cache line by cache line, the keys that are not above the address,
//! without a branch that depends on the data.
//!
//! **Readers and the writer.** The top and every leaf has a version, odd while the
//! writer is in it. A reader takes the top's version, finds the leaf, takes the
//! leaf's version, *then* looks whether the top's is still the same: at that
//! moment the leaf was the one for the address. Only the leaf's own version has to
//! hold from there on. Every word that a reader reads is an atomic, and no memory
//! is ever given back, so a late reader reads nonsense at the worst, and the
//! version tells it so.
//!
//! **Versions only go up**, also when a leaf leaves the top and is used again
//! elsewhere. That is what makes a [`Hint`] valid by its leaf's version alone.
//!
//! **Memory** is taken in [`Index::reserve`] alone. A change that needs a leaf
//! takes it from the pool that was filled there.

#[cfg(test)]
mod check;
mod hint;
mod keys;
mod leaf;
mod memory;
mod place;
mod pool;
mod row;
mod top;
mod version;
mod view;
mod writer;

pub use hint::Hint;
pub use leaf::LEAF_ROWS;
pub use memory::Memory;
pub use place::{Pos, Spot};
pub use row::Row;
pub use view::{Busy, View};
pub use writer::Index;
