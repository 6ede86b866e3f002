//! Whose the memory is that code is in, by the ledger.

use regall_directory::vocab::Kind;
use regall_ledger::{Found, View};

/// Memory as the ledger knows it.
#[derive(Clone, Copy)]
pub struct Memory(Option<&'static View>);

impl Memory {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self(None);

    /// What a ledger says of which this is the view.
    pub const fn known_by(view: &'static View) -> Self {
        Self(Some(view))
    }

    /// The ledger's entry at `at`. `None`: it has none, or can't say so now.
    pub fn entry(self, at: u64) -> Option<Found> {
        self.0?.lookup(at).ok().flatten()
    }

    /// Whether `at` is memory of the program's own, where what it executes is of its own making.
    pub fn is_generated(self, at: u64) -> bool {
        self.entry(at).is_some_and(|f| f.attr().kind == Kind::Anon)
    }

    /// Whether `at` is a file's text in memory of this process's own, as it was when it was
    /// patched: what is shared is others' too, and the file's.
    pub fn is_private_text(self, at: u64) -> bool {
        match self.entry(at) {
            Some(found) => {
                let attr = found.attr();
                let text = attr.prot.executable() && !attr.prot.shared();
                text && attr.kind == Kind::File
            }
            // Unit tests have no ledger.
            None => cfg!(test),
        }
    }
}
