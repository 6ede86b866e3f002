//! A file of our own for bytes on their way into a file that somebody else has, too.
//!
//! A system call that writes into a file takes the file's lock first. Whoever else has the file
//! open can hold that lock for as long as it likes: by a write(2) from a page that does not come
//! (userfaultfd, FUSE). Who waits for the lock can't be killed. So nothing is written into a file
//! that another process has. Bytes are written into a file of our own, and read from there into a
//! mapping of the other one: a page fault of shared memory takes no such lock, and what has been
//! cut off is EFAULT.

use crate::wire::CHUNK;
use regall_sys::file::{self, Fd};
use regall_sys::process::is_filtered;
use regall_sys::{rlimit, Access, Errno, Result};

/// Room for one chunk.
pub(crate) struct Staging {
    file: Option<Fd>,
}

impl Staging {
    /// Without a file: that is made when it is first needed.
    pub(crate) const fn new() -> Self {
        Self { file: None }
    }

    fn file(&mut self) -> Result<&Fd> {
        if self.file.is_none() {
            self.file = Some(make_file(CHUNK)?);
        }
        self.file.as_ref().ok_or(Errno::NOMEM)
    }

    /// Reads `len` bytes of this process at `addr` into the file, to its begin; how many. EFAULT:
    /// they are not mapped.
    ///
    /// # Safety
    /// As [`Fd::copy_at`].
    pub(crate) unsafe fn take(&mut self, addr: u64, len: u64) -> Result<u64> {
        let file = self.file()?;
        // SAFETY: by the contract above.
        unsafe { file.copy_at(Access::Write, addr, len, 0) }
    }

    /// Writes the file's first `bytes` to `addr`; how many. EFAULT: the file that is mapped there
    /// has been cut short.
    ///
    /// # Safety
    /// A file is mapped there, and whoever has it may see these bytes.
    pub(crate) unsafe fn give(&mut self, addr: u64, bytes: u64) -> Result<u64> {
        let file = self.file()?;
        // SAFETY: by the contract above.
        unsafe { file.copy_at(Access::Read, addr, bytes, 0) }
    }

    /// Writes the file's first `bytes` into another one, at `offset`; how many. This takes that
    /// file's lock.
    #[cold]
    pub(crate) fn write_to(&mut self, to: &Fd, offset: u64, bytes: u64) -> Result<u64> {
        let file = self.file()?;
        let mut buffer = [0u8; 8192];
        let mut done = 0;
        while done < bytes {
            let room = (bytes - done).min(buffer.len() as u64) as usize;
            let part = buffer.get_mut(..room).unwrap_or(&mut []);
            let read = file.read_at(part, done)?;
            match to.write_at(part.get(..read).unwrap_or(&[]), offset + done)? {
                0 => break,
                written => done += written as u64,
            }
        }
        Ok(done)
    }
}

/// A file in memory, which does not grow beyond its `bytes`. Under a seccomp filter, which may kill
/// who asks for a memfd, it is a file without a name.
pub(crate) fn make_file(bytes: u64) -> Result<Fd> {
    // Beyond it ftruncate(2) would be SIGXFSZ.
    if rlimit(libc::RLIMIT_FSIZE).is_ok_and(|(soft, _)| soft < bytes) {
        return Err(Errno::FBIG);
    }
    if is_filtered() {
        let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
        let file = Fd::open(c"/dev/shm", flags, 0o600)?;
        file.truncate(bytes)?;
        return Ok(file);
    }
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let file = file::in_memory(c"regall-bounce", flags)?;
    file.truncate(bytes)?;
    let seals = libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    file.seal(seals)?;
    Ok(file)
}
