//! Whom the kernel would tell about an open file, by which signal (fcntl(2), F_SETOWN and F_SETSIG).
//! Both belong to the open file: all its descriptors have them, in whatever process.

use crate::entry::call;
use crate::errno::{Errno, Result};

// Of all processors.
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
const F_OWNER_PID: i32 = 1;

/// `struct f_owner_ex`.
#[derive(Default)]
#[repr(C)]
struct Owner {
    kind: i32,
    pid: i32,
}

/// The signal for the open file behind `fd`; 0: nobody has set one.
#[inline]
pub fn signal_of(fd: i32) -> Result<u32> {
    call!(libc::SYS_fcntl, fd, F_GETSIG).map(|signal| signal as u32)
}

/// The process that would get it; 0: there is none (any more), or it is in a pid namespace that is
/// not seen from here.
#[inline]
pub fn owner_of(fd: i32) -> Result<u32> {
    let mut owner = Owner::default();
    call!(libc::SYS_fcntl, fd, F_GETOWN_EX, &raw mut owner)?;
    let of_process = owner.kind == F_OWNER_PID;
    Ok(if of_process { owner.pid as u32 } else { 0 })
}

/// Process `pid` would get `signal`, from 1 to 64, about the open file behind `fd`. The signal is set
/// first. Errors: EBADF; ESRCH: there is no such process.
pub fn set_owner(fd: i32, pid: u32, signal: u32) -> Result<()> {
    let owner = Owner {
        kind: F_OWNER_PID,
        pid: i32::try_from(pid).map_err(|_| Errno::SRCH)?,
    };
    call!(libc::SYS_fcntl, fd, F_SETSIG, signal)?;
    call!(libc::SYS_fcntl, fd, F_SETOWN_EX, &raw const owner).map(drop)
}

/// Sets `signal`, from 1 to 64, for the open file behind `fd`.
pub fn set_signal(fd: i32, signal: u32) -> Result<()> {
    call!(libc::SYS_fcntl, fd, F_SETSIG, signal).map(drop)
}

/// Nobody has set a signal for the open file behind `fd`.
pub fn forget_signal(fd: i32) {
    let _ = call!(libc::SYS_fcntl, fd, F_SETSIG, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn all_descriptors_of_an_open_file_have_one_owner() {
        let open = || std::fs::File::open("/dev/null").unwrap();
        let (one, other) = (open(), open());
        let us = std::process::id();
        set_owner(one.as_raw_fd(), us, 64).unwrap();
        let twin = one.try_clone().unwrap();
        drop(one);
        let of = |file: &std::fs::File| {
            let fd = file.as_raw_fd();
            (signal_of(fd).unwrap(), owner_of(fd).unwrap())
        };
        assert_eq!(of(&twin), (64, us));
        assert_eq!(of(&other), (0, 0));
        forget_signal(twin.as_raw_fd());
        assert_eq!(of(&twin), (0, us));
        assert_eq!(signal_of(-1), Err(Errno::BADF));
        assert_eq!(owner_of(-1), Err(Errno::BADF));
    }
}
