//! REGALL_CHECK=registrations: what becomes of memory under the program's own registrations.
//!
//! `verbs` tells of registrations, `track` (as to any subscriber) of the calls that change
//! memory, the devices' tables of functions of what is posted. Nothing is pinned, registered or
//! lent meanwhile. What is noticed is appended to a file at once, with raw stacks; to walk these
//! and to find names is `regall check`'s, afterwards.
//!
//! It never harms the program: no lock is held over anything, memory is of a fixed size and
//! mapped at the start, and what there is no room for is counted.

mod area;
pub mod events;
pub mod life;
mod posts;
pub mod registrations;
mod stack;
mod writer;
