//! Symbolic links.

use crate::entry::call;
use crate::errno::Result;
use core::ffi::CStr;

/// Where the link `path` points to; the bytes used of `buf`.
pub fn read_link<'a>(path: &CStr, buf: &'a mut [u8]) -> Result<&'a [u8]> {
    let n = call!(
        libc::SYS_readlinkat,
        libc::AT_FDCWD as i64,
        path.as_ptr(),
        buf.as_mut_ptr(),
        buf.len()
    )?;
    Ok(buf.get(..n as usize).unwrap_or(&[]))
}
