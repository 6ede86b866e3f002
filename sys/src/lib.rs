//! The only code that enters the kernel. Raw system calls: no libc, no errno,
//! nothing that takes a lock in user space.
#![cfg_attr(not(test), no_std)]

pub mod arch;
pub mod credentials;
mod descriptors;
pub mod dispatch;
mod entry;
mod errno;
pub mod file;
pub mod filter;
pub mod folder;
mod identity;
pub mod lasting;
mod links;
pub mod mappings;
mod memory;
pub mod netlink;
mod own_table;
pub mod pagemap;
pub mod process;
pub mod scheduling;
pub mod signal;
mod sleep;
pub mod socket;
mod system;
pub mod text;
pub mod time;

pub use descriptors::*;
pub use entry::real;
pub use errno::*;
pub use identity::*;
pub use memory::*;
pub use own_table::*;
pub use signal::Undisturbed;
pub use sleep::*;
pub use system::*;
