//! What of entering the kernel depends on the processor. Another architecture is
//! another file here with the same names.

#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod imp;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("regall has no sys/src/arch file for this processor yet");

pub use imp::*;
