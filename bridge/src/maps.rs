//! A peer's /proc/PID/maps, searched without keeping it.

use core::ffi::CStr;
use regall_directory::maps::{parse, Line, LineError, Lines, LINE_MAX};
use regall_sys::file::Fd;
use regall_sys::Result;

/// Whether `is` holds of any line. Errors of open(2) and read(2).
pub fn any(path: &CStr, mut is: impl FnMut(&Line) -> bool) -> Result<bool> {
    let fd = Fd::open(path, libc::O_RDONLY, 0)?;
    let mut buffer = [0; LINE_MAX];
    let mut lines = Lines::new(&mut buffer, |b: &mut [u8]| fd.read(b));
    while let Some(line) = lines.next_line() {
        match line {
            Ok(line) if parse(line).is_some_and(|l| is(&l)) => return Ok(true),
            Ok(_) | Err(LineError::TooLong) => (),
            Err(LineError::Read(e)) => return Err(e),
        }
    }
    Ok(false)
}
