//! What `REGALL_CHECK=registrations` keeps: the table of the program's registrations, which is
//! pure, and the form of the records that the shim writes and `regall check` reads.
#![cfg_attr(not(test), no_std)]

pub mod record;
pub mod table;
