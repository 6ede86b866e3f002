//! Other people's programs, and what fits on a machine.

#[path = "../fits.rs"]
mod fits;
#[path = "../others.rs"]
mod others;
