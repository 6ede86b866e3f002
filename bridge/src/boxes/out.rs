//! The memory that a receiver's messages are written to.

use super::mailbox::Sender;
use super::message::Kind;
use regall_sys::{Errno, Result};

/// `struct regall_message`: a message, in front of its data.
#[repr(C)]
pub struct Message {
    /// Bytes from here to the next one.
    size: u64,
    tag: u64,
    /// Bytes of its data, or bytes that were put or got.
    bytes: u64,
    start_time: u64,
    pid: i32,
    kind: u32,
}

const HEAD: u64 = size_of::<Message>() as u64;

/// Where messages are written to.
pub struct Out {
    at: u64,
    room: u64,
    used: u64,
    count: usize,
    too_small: bool,
}

impl Out {
    /// # Safety
    /// `room` bytes at `at` are valid to be written, as long as this is used.
    pub unsafe fn new(at: u64, room: u64) -> Self {
        Self {
            at,
            room,
            used: 0,
            count: 0,
            too_small: false,
        }
    }

    /// How many there are. EMSGSIZE: there is no room for the first.
    pub fn count(&self) -> Result<usize> {
        match self.too_small && self.count == 0 {
            true => Err(Errno::MSGSIZE),
            false => Ok(self.count),
        }
    }

    /// How many were written.
    pub(super) fn taken(&self) -> u64 {
        self.count as u64
    }

    /// Whether nothing was found.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 && !self.too_small
    }

    /// Where the data of the next one go to. `None`: there is no room for it.
    #[inline]
    pub(super) fn next(&mut self, from: &Sender, kind: Kind, tag: u64, len: u64) -> Option<u64> {
        let data = if kind == Kind::Data { len } else { 0 };
        let size = (HEAD + data).next_multiple_of(8);
        if size > self.room - self.used {
            self.too_small = true;
            return None;
        }
        let at = self.at + self.used;
        let message = Message {
            size,
            tag,
            bytes: data,
            start_time: from.start,
            pid: from.pid as i32,
            kind: kind as u32,
        };
        // SAFETY: within the room, by the contract of `Out::new`; nothing is said of alignment.
        unsafe { (at as *mut Message).write_unaligned(message) };
        self.used += size;
        self.count += 1;
        Some(match kind {
            Kind::Data => at + HEAD,
            _ => at + core::mem::offset_of!(Message, bytes) as u64,
        })
    }
}
