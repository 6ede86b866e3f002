//! What the kernel answers.

use core::fmt;

/// An error number of the kernel, 1 to 4095. Unknown ones stay what they are.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Errno(pub i32);

#[allow(missing_docs)]
impl Errno {
    pub const PERM: Self = Self(libc::EPERM);
    pub const NOENT: Self = Self(libc::ENOENT);
    pub const SRCH: Self = Self(libc::ESRCH);
    pub const INTR: Self = Self(libc::EINTR);
    pub const AGAIN: Self = Self(libc::EAGAIN);
    pub const NOMEM: Self = Self(libc::ENOMEM);
    pub const FAULT: Self = Self(libc::EFAULT);
    pub const BUSY: Self = Self(libc::EBUSY);
    pub const EXIST: Self = Self(libc::EEXIST);
    pub const INVAL: Self = Self(libc::EINVAL);
    pub const NOSYS: Self = Self(libc::ENOSYS);
    pub const TIMEDOUT: Self = Self(libc::ETIMEDOUT);
    pub const ACCES: Self = Self(libc::EACCES);
    pub const BADF: Self = Self(libc::EBADF);
    pub const CHILD: Self = Self(libc::ECHILD);
    pub const CONNREFUSED: Self = Self(libc::ECONNREFUSED);
    pub const FBIG: Self = Self(libc::EFBIG);
    pub const IO: Self = Self(libc::EIO);
    pub const MFILE: Self = Self(libc::EMFILE);
    pub const MSGSIZE: Self = Self(libc::EMSGSIZE);
    pub const NAMETOOLONG: Self = Self(libc::ENAMETOOLONG);
    pub const NFILE: Self = Self(libc::ENFILE);
    pub const NOBUFS: Self = Self(libc::ENOBUFS);
    pub const NODEV: Self = Self(libc::ENODEV);
    pub const NOEXEC: Self = Self(libc::ENOEXEC);
    pub const NOSPC: Self = Self(libc::ENOSPC);
    pub const NOTCONN: Self = Self(libc::ENOTCONN);
    pub const NOTTY: Self = Self(libc::ENOTTY);
    pub const NXIO: Self = Self(libc::ENXIO);
    pub const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    pub const PIPE: Self = Self(libc::EPIPE);
    pub const PROTO: Self = Self(libc::EPROTO);
    pub const PROTONOSUPPORT: Self = Self(libc::EPROTONOSUPPORT);
    pub const STALE: Self = Self(libc::ESTALE);
    pub const XDEV: Self = Self(libc::EXDEV);
    pub const NOTSUP: Self = Self(libc::ENOTSUP);

    /// The number in a byte, for a directory column (the kernel's user-visible
    /// numbers end at 133).
    pub fn byte(self) -> u8 {
        u8::try_from(self.0).unwrap_or(u8::MAX)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A kernel answer as a `Result`.
pub type Result<T> = core::result::Result<T, Errno>;

/// Splits what the kernel left in rax.
#[inline]
pub fn check(ret: i64) -> Result<u64> {
    if (-4095..0).contains(&ret) {
        Err(Errno(-(ret as i32)))
    } else {
        Ok(ret as u64)
    }
}
