//! What every part of the shim may ask: the settings, how calls are intercepted, how far the
//! shim is in its life, whose process this is and its place in a job, and the counters. Knows none of the parts.

pub mod claims;
pub mod copies;
pub mod counters;
pub mod launched;
pub mod maps;
pub mod mode;
pub mod phase;
pub mod process;
pub mod settings;
pub mod unseen;
pub mod withheld;
