//! Who holds memory registered. The ledger knows what is there, `policy` what
//! is to be done with it; a registrar does it and says what came of it.

use crate::policy::Want;
use crate::sys::Result;
use regall_directory::addr::PageRange;

pub mod hca;
pub mod pin;

/// Something that memory can be registered with. Called without any lock held,
/// with nothing of libc at hand.
pub trait Registrar {
    /// Registers `range` as `how` says. On failure it may be registered in part:
    /// the caller knows whether it may [`Registrar::deregister`] it.
    /// Errors: the kernel's.
    fn register(&self, range: PageRange, how: Want) -> Result<()>;
    /// Lets go of `range`.
    fn deregister(&self, range: PageRange) -> Result<()>;
}
