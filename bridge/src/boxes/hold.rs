//! Hold of a mailbox's cells by senders whom the receiver knows no pid of: those in other pid
//! namespaces. Such a cell is held by a lock on one byte of the box's file (F_OFD_SETLK), whose owner
//! is a file description of the sender's own. The kernel lets go of it when the last descriptor of
//! that is closed, so when the sender dies. Who is stopped keeps it.

use core::sync::atomic::{AtomicU32, Ordering::*};
use regall_sys::file::{self, Fd, Kept};
use regall_sys::text::Text;
use regall_sys::{Errno, Result};

use super::layout::NAME;
use super::mailbox::Holder;

impl Holder for Kept {
    fn hold(&self, n: usize) -> Result<bool> {
        let fd = self.ours().ok_or(Errno::BADF)?;
        match file::lock_byte(fd, n as u64) {
            Ok(()) if self.ours().is_some() => Ok(true),
            // The program has closed it meanwhile, and this is another file.
            Ok(()) => {
                file::unlock_byte(fd, n as u64);
                Err(Errno::BADF)
            }
            Err(Errno::AGAIN | Errno::ACCES) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn let_go(&self, n: usize) {
        if let Some(fd) = self.ours() {
            file::unlock_byte(fd, n as u64);
        }
    }
}

/// `None` where the receiver knows the sender's pid: it looks whether that process lives.
impl Holder for Option<Kept> {
    fn hold(&self, n: usize) -> Result<bool> {
        self.as_ref().map_or(Ok(true), |kept| kept.hold(n))
    }

    fn let_go(&self, n: usize) {
        if let Some(kept) = self {
            kept.let_go(n);
        }
    }
}

/// How many descriptors there are in this process by which cells are held, or are about to be.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// A descriptor by which a sender holds cells.
pub struct Hold(Kept);

impl Hold {
    /// Keeps what `open` opens: a description that nobody else has. Returns that descriptor, too.
    ///
    /// # Errors
    /// `open`'s; EMFILE.
    pub fn new(open: impl FnOnce() -> Result<Fd>) -> Result<(Fd, Self)> {
        // (Before there is a descriptor: a child of fork that has that knows of it.)
        OPEN.fetch_add(1, SeqCst);
        let kept = open().and_then(|fd| Kept::new(&fd).map(|kept| (fd, Self(kept))));
        kept.inspect_err(|_| {
            OPEN.fetch_sub(1, SeqCst);
        })
    }

    /// The file, if the program has not closed the descriptor.
    pub fn file(&self) -> Option<Kept> {
        self.0.ours().map(|_| self.0)
    }

    /// Closes it: what it holds is let go.
    pub fn close(self) {
        self.0.close();
        OPEN.fetch_sub(1, SeqCst);
    }
}

/// In a child of fork: closes its copies of its parent's descriptors, which would go on holding
/// cells after the parent's death.
pub fn child_begins() {
    if OPEN.swap(0, SeqCst) == 0 || file::are_inherited_shared() {
        return;
    }
    file::each_descriptor(|fd| {
        if is_box(fd) {
            file::close(fd);
        }
        true
    });
}

/// Returns whether `fd` is of a box, as /proc names it.
fn is_box(fd: i32) -> bool {
    let link: Text<48> = Text::of(format_args!("/proc/self/fd/{fd}"));
    let mut room = [0; 64];
    let name = link.as_cstr().map(|link| file::read_link(link, &mut room));
    let Some(Ok(name)) = name else { return false };
    let name = name.strip_prefix(b"/memfd:");
    name.and_then(|name| name.strip_suffix(b" (deleted)")) == Some(NAME.to_bytes())
}
