//! This process's box: made when the program first asks for it, and published in the directory.

use crate::base::{counters, phase, settings};
use crate::host::Shim;
use crate::sys::file::{self, Fd};
use crate::sys::{self, Errno, Result};
use crate::text::Text;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use regall_bridge::boxes::inbox::Inbox;
use regall_bridge::boxes::layout::{Shape, NAME};
use regall_bridge::host::Host;
use regall_bridge::lock::Lock;
use regall_directory::layout::Header;

/// The box; null: there is none in this process.
static INBOX: AtomicPtr<Inbox> = AtomicPtr::new(core::ptr::null_mut());
static MAKING: Lock<()> = Lock::new(());

/// The box, if there is one.
#[inline]
pub fn inbox() -> Option<&'static Inbox> {
    // SAFETY: null, or a box that stays.
    unsafe { INBOX.load(Acquire).as_ref() }
}

/// The box, made if need be. ENOSYS: the shim does nothing here; ENOMEM, EMFILE, ENFILE: it can't
/// be made.
pub fn made() -> Result<&'static Inbox> {
    match inbox() {
        Some(inbox) => Ok(inbox),
        None => make(),
    }
}

#[cold]
fn make() -> Result<&'static Inbox> {
    if !phase::tracking() {
        return Err(Errno::NOSYS);
    }
    let _one = MAKING.lock();
    if let Some(inbox) = inbox() {
        return Ok(inbox);
    }
    let config = settings::config();
    let shape = Shape::near(
        config.box_limit,
        config.box_size,
        config.box_max,
        config.box_threshold,
    );
    let file = new_file(&shape)?;
    // In the ledger it is as a peer's memory that is mapped here: left out.
    let at = Shim.attach(&file, 0, shape.bytes(), true)?;
    // SAFETY: mapped just now; a child is to have none of it.
    let made = unsafe { sys::advise_any(at, shape.bytes(), libc::MADV_DONTFORK) }
        // SAFETY: zeroed, and it stays.
        .and_then(|()| unsafe { Inbox::new(&Shim, at, shape, &file) });
    match made {
        Ok(made) => {
            INBOX.store(made.as_ptr(), Release);
            counters::header().into_iter().for_each(publish);
            inbox().ok_or(Errno::NOMEM)
        }
        Err(e) => {
            // SAFETY: as above; nobody has heard of it.
            unsafe { Shim.unmap(at, shape.bytes()) };
            Err(e)
        }
    }
}

/// A file that nobody can make shorter or longer, with the memory of all but the rings.
fn new_file(shape: &Shape) -> Result<Fd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // MFD_NOEXEC_SEAL (Linux 6.3): some systems insist on it.
    let file = file::in_memory(NAME, flags | libc::MFD_NOEXEC_SEAL)
        .or_else(|_| file::in_memory(NAME, flags))?;
    let no_memory = |e| match e {
        Errno::FBIG | Errno::NOSPC => Errno::NOMEM,
        e => e,
    };
    file.truncate(shape.bytes()).map_err(no_memory)?;
    file.allocate(0, shape.first_ring()).map_err(no_memory)?;
    file.seal(libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL)?;
    Ok(file)
}

/// Tells peers where it is. (A new directory of this process says nothing of it.)
pub fn publish(header: &Header) {
    let at = inbox().map_or(0, Inbox::address);
    header.boxes.store(at, Release);
}

/// In a child of fork: it has none.
pub fn forget() {
    // SAFETY: fork has taken this thread alone along.
    unsafe { MAKING.reset() };
    INBOX.store(core::ptr::null_mut(), Relaxed);
}

/// For the helper, whose descriptors are others: the file of the box, or the pipe by which it is
/// woken, opened anew by what /proc has of the process. ENOTCONN: there is none; ENOENT: the
/// program has closed it.
pub fn file(event: bool) -> Result<Fd> {
    let inbox = inbox().ok_or(Errno::NOTCONN)?;
    let kept = match event {
        true => inbox.event().ok_or(Errno::NOTCONN)?,
        false => *inbox.file(),
    };
    let path: Text<64> = Text::of(format_args!("/proc/self/fd/{}", kept.raw()));
    let path = path.as_cstr().ok_or(Errno::NOENT)?;
    let is_it = |stat: &file::Stat| kept.is_of(stat);
    // Looked at before it is opened: to open what the program has there may do something.
    file::stat_path(path, false)
        .ok()
        .filter(is_it)
        .ok_or(Errno::NOENT)?;
    let access = match event {
        true => libc::O_WRONLY,
        false => libc::O_RDWR,
    };
    let opened = Fd::open(path, access | libc::O_NONBLOCK, 0)?;
    match is_it(&opened.stat()?) {
        true => Ok(opened),
        false => Err(Errno::NOENT),
    }
}
