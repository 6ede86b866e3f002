//! The atomics of what races/ checks, which puts others in their place.

pub use core::sync::atomic::*;
