//! Whom messages are for.

use super::mailbox::Sender;
use super::message;
use crate::find;
use crate::kind::{Kind, Order};
use crate::link::{self, Link};
use crate::lock::Lock;
use crate::process::Process;
use crate::window::source::{self, Backing};
use core::ops::Deref;
use regall_sys::arch::ticks;
use regall_sys::file::Fd;
use regall_sys::process::Identity;
use regall_sys::{Errno, Result};

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub struct Parcel {
    /// What it is.
    pub kind: message::Kind,
    /// Its tag.
    pub tag: u64,
    /// Where its data are.
    pub data: u64,
    /// Bytes of them.
    pub len: u64,
}

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

/// The largest box, in bytes.
pub const MOST: u64 = 128 << 20;

/// Returns this process as the peer may know it: without a pid where its numbers are others.
pub fn name(peer: &Target) -> Result<Sender> {
    let us = Identity::own()?;
    let pid = match us.namespace == peer.identity().namespace {
        true => us.pid,
        false => 0,
    };
    let start = us.start;
    Ok(Sender { pid, start })
}

/// Opens the file of the peer's box: as the kernel lets us, else by its helper, which opens it anew
/// for each that asks. So nobody else has this description.
pub fn open(peer: &Target) -> Result<Fd> {
    let at = peer
        .box_address()
        .ok_or_else(|| peer.or_gone(Errno::NOTCONN))?;
    let backing = Backing::find(peer.pid(), at);
    let opened = backing.and_then(|backing| source::open(peer.pid(), &backing, true));
    match opened {
        Ok(fd) => Ok(fd),
        Err(e) if find::is_shortage(e) => Err(e),
        Err(_) => {
            peer.check(ticks())?;
            if !peer.order.has(Kind::Helper) {
                return Err(Errno::PERM);
            }
            link::box_file(peer, peer.link)
        }
    }
}
