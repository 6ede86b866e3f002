//! What processes have in common, as text that may be printed.

use regall_documents::Kind;

use crate::units::printable;

/// A process's kind in text that may be printed.
pub fn plain(told: Kind) -> Kind {
    Kind {
        library: told.library.as_deref().map(printable),
        exe: printable(&told.exe),
        settings: told
            .settings
            .into_iter()
            .map(|(name, value)| (printable(&name), printable(&value)))
            .collect(),
        selftest_missed: told.selftest_missed.iter().map(|m| printable(m)).collect(),
        ..told
    }
}
