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
pub use file::{are_in_use, is_beside_others, with_own_table, COPIED};
pub use file::{begins_apart, can_leave_descriptors, ends_apart, forget_apart, leave_descriptors};
pub use identity::*;
pub use memory::*;
pub use signal::Undisturbed;
pub use sleep::*;
pub use system::*;
