//! Messages between processes: each receiver has a *box* ([`layout`]), which it makes and reads
//! ([`inbox`]), and to which every peer that the bridge's rule admits sends ([`outbox`]).
//!
//! The first messages of a sender go to the box's [`mailbox`], which all have together; one that
//! sends more gets a [`ring`] of its own. What has come is told by two words ([`summary`]). These
//! three make no system call, but for a lock on each cell that is in use ([`hold`]).

mod copy;
pub mod hold;
pub mod inbox;
pub mod layout;
pub mod mailbox;
pub mod message;
mod out;
pub mod outbox;
pub mod ring;
pub mod summary;
pub mod target;

#[cfg(test)]
mod tests;
