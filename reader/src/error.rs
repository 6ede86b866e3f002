//! Reasons for which nothing is known of a process.

use regall_directory::reader::Corrupt;

/// Says why a process's directory could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// There is no such process, or it is ending.
    NoSuchProcess,
    /// The process runs without the shim.
    Inert,
    /// The process has the shim on, which could not make its directory, for this errno.
    Silent(i32),
    /// The process has no directory yet, or one that is still being made.
    Unpublished,
    /// The process had a directory, which has been removed: it is about to end, or somebody has
    /// cleared /dev/shm.
    Removed,
    /// The process has a directory in a /dev/shm that is not this one.
    Elsewhere,
    /// The process has more mappings, longer names or more entries than a process can have.
    TooLong,
    /// The process belongs to someone else.
    Foreign,
    /// The kernel lets this process not look at it, for another reason, which is told.
    Denied(&'static str),
    /// /proc does not tell what the kernel has locked of it.
    NoLocks,
    /// What was found is not what the shim writes.
    Corrupt(&'static str),
    /// The kernel said no, with this errno.
    Io(i32),
}

impl From<Corrupt> for OpenError {
    fn from(c: Corrupt) -> Self {
        Self::Corrupt(c.0)
    }
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoSuchProcess => f.write_str("no such process"),
            Self::Inert => f.write_str(
                "runs without regall (REGALL=1 not set at start, or it is left out: a launcher, \
                 a shell, or by REGALL_ONLY)",
            ),
            Self::Silent(errno) => write!(f, "shim on, publishes nothing: errno {errno}"),
            Self::Unpublished => {
                f.write_str("has just been started or forked, and has published nothing yet")
            }
            Self::Removed => {
                f.write_str("is about to end, or somebody has removed its directory from /dev/shm")
            }
            Self::Elsewhere => f.write_str("its directory is in another /dev/shm than this one"),
            Self::TooLong => f.write_str(
                "not looked at: it has more mappings or entries than vm.max_map_count allows by \
                 default (65,530), or longer names",
            ),
            Self::Foreign => f.write_str("permission denied: it belongs to someone else"),
            Self::Denied(why) => write!(f, "permission denied: {why}"),
            Self::NoLocks => f.write_str(
                "/proc does not tell what the kernel has locked: no VmLck in /proc/PID/status, or no \
                 VmFlags in /proc/PID/smaps",
            ),
            Self::Corrupt(what) => write!(f, "its directory is corrupt: {what}"),
            Self::Io(errno) => write!(f, "cannot look: errno {errno}"),
        }
    }
}

impl core::error::Error for OpenError {}

impl From<std::io::Error> for OpenError {
    fn from(e: std::io::Error) -> Self {
        const ESRCH: i32 = 3;
        match (e.kind(), e.raw_os_error()) {
            (std::io::ErrorKind::NotFound, _) | (_, Some(ESRCH)) => Self::NoSuchProcess,
            (std::io::ErrorKind::PermissionDenied, _) => Self::Foreign,
            (std::io::ErrorKind::FileTooLarge, _) => Self::TooLong,
            (std::io::ErrorKind::UnexpectedEof, _) => Self::Corrupt("the file is cut short"),
            (_, errno) => Self::Io(errno.unwrap_or(0)),
        }
    }
}
