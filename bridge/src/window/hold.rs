//! A window, and the use of a part of it.

use super::wanted::{Extent, How};
use crate::host::Host;
use crate::xpmem;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::*};
use regall_sys::file;
use regall_sys::{Errno, Result};

/// A window.
#[derive(Default)]
pub struct Window {
    /// How many are copying from or to the window.
    pub(super) users: AtomicU32,
    pub(super) how: How,
    pub(super) writable: bool,
    pub(super) of: Extent,
    /// The address that it is mapped at; of an open file its descriptor.
    pub(super) at: u64,
    /// Of an open file its inode as fstat(2) has it, of an attachment by the XPMEM driver
    /// what stands for it ([`xpmem::is_attached`]).
    pub(super) owner: u64,
    /// When it was last used, in turns of the table.
    pub(super) used: u64,
}

impl Window {
    pub(super) fn serves(&self, of: &Extent, write: bool) -> bool {
        let end = self.of.offset.saturating_add(self.of.len);
        self.how != How::Free
            && self.of.file == of.file
            && self.of.offset <= of.offset
            && of.offset.saturating_add(of.len) <= end
            && (self.writable || !write)
    }

    pub(super) fn idle(&self) -> bool {
        self.users.load(Acquire) == 0
    }
}

/// Gives back what was mapped, or opened. `owner` is as [`Window`]'s.
pub(super) fn let_go(host: &dyn Host, how: How, at: u64, bytes: u64, owner: u64) {
    match how {
        How::Free => (),
        // SAFETY: a window has no user when it is let go.
        How::Mapped => unsafe { host.unmap(at, bytes) },
        How::Segment => host.detach_segment(at),
        How::Xpmem => xpmem::detach(host, at, bytes, owner),
        // A program may have closed it, and have another file by its number.
        How::Open if file::stat_fd(at as i32).is_ok_and(|s| s.inode == owner) => {
            file::close(at as i32);
        }
        How::Open => (),
    }
}

/// A part of a window, in use: it stays until this is dropped.
pub struct Hold<'a> {
    pub(super) users: NonNull<AtomicU32>,
    pub(super) how: How,
    pub(super) at: u64,
    /// Bytes from there on.
    pub len: u64,
    pub(super) inode: u64,
    pub(super) offset: u64,
    pub(super) table: PhantomData<&'a ()>,
}

/// Says where the bytes of a [`Hold`] are.
pub enum Bytes {
    /// Mapped, at this address.
    At(u64),
    /// In an open file, from an offset on.
    In(i32, u64),
}

impl Hold<'_> {
    /// Returns where they are. ESTALE: the descriptor is not that file's any more; programs
    /// close what they find open.
    #[inline]
    pub fn bytes(&self) -> Result<Bytes> {
        if self.how != How::Open {
            return Ok(Bytes::At(self.at));
        }
        let fd = self.at as i32;
        let stat = file::stat_fd(fd)?;
        match stat.inode == self.inode {
            true => Ok(Bytes::In(fd, self.offset)),
            false => Err(Errno::STALE),
        }
    }

    /// Stays a user: whoever has the count of users is to take one off.
    pub(super) fn into_users(self) -> NonNull<AtomicU32> {
        ManuallyDrop::new(self).users
    }
}

impl Drop for Hold<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the table is as old as the attachments, which are still there.
        unsafe { self.users.as_ref() }.fetch_sub(1, Release);
    }
}
