//! Whom messages are for.

use crate::kind::Order;
use crate::link::Link;
use crate::lock::Lock;
use crate::process::Process;
use core::ops::Deref;

/// A peer, and how its box can be had.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The process.
    pub process: &'a Process,
    /// The connection to its helper.
    pub link: &'a Lock<Link>,
    /// Whether it may be asked for anything.
    pub order: &'a Order,
}

impl Deref for Target<'_> {
    type Target = Process;

    fn deref(&self) -> &Process {
        self.process
    }
}
