//! Everything that depends on the processor. Another architecture is another
//! folder here with the same names; nothing outside this folder and
//! the crate `patch` knows registers or instruction bytes.

#[cfg(target_arch = "x86_64")]
#[path = "x86_64/mod.rs"]
mod imp;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("regall has no src/arch file for this processor yet");

pub use imp::*;
