//! RDMA: memory is registered with an adapter through the kernel's own interface.
//!
//! Nothing of libibverbs is called: it allocates, takes locks, and a preloaded
//! library that needs it would kill every program where it is missing. What is
//! known of it are the public parts of its structures ([`crate::uverbs::abi`]): from a context
//! of the application's comes the descriptor, from its protection domain (PD) the
//! handle, and with these two [`crate::uverbs`] does the rest.

pub mod exports;
pub mod handles;
mod inside;
mod itself;
pub mod real;
pub mod requests;
mod told;

use crate::arch::Frame;

/// Handles an ioctl with RDMA_VERBS_IOCTL.
pub fn handle(frame: &mut Frame) -> i64 {
    requests::handle(frame, opened)
}

/// A context is new. Who has opened it has libibverbs by then, but may not come by its symbols.
#[cold]
fn opened() {
    if real::is_loaded() {
        exports::see_that_it_calls_itself();
    }
}
