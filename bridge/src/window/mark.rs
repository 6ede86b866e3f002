//! A mark in the files that shims put behind private memory so that peers can map it
//! (REGALL_SHARE=heap): who maps such a file leaves it, and its owner learns by that whether
//! sharing the memory has been of use to anybody.

use regall_sys::file::{self, Fd};
use regall_sys::rlimit;
use regall_sys::text::Text;

/// Bytes of such a file: more than anybody maps of it.
pub const FILE_BYTES: u64 = 1 << 46;
/// What /proc calls it.
pub const NAME: &[u8] = b"/memfd:regall-heap (deleted)";
/// Where the mark is: in the last page, which is nobody's memory.
pub const AT: u64 = FILE_BYTES - 4096;

/// Leaves the mark if `fd` is such a file. If that can't be, the owner will think that nobody
/// came, and that costs nothing but speed.
pub fn leave(fd: &Fd) {
    let path: Text<32> = Text::of(format_args!("/proc/self/fd/{}", fd.raw()));
    let Some(path) = path.as_cstr() else {
        return;
    };
    let mut name = [0u8; 64];
    if !matches!(file::read_link(path, &mut name), Ok(NAME)) {
        return;
    }
    // Writing beyond RLIMIT_FSIZE is a signal.
    if !matches!(rlimit(libc::RLIMIT_FSIZE), Ok((u64::MAX, _))) {
        return;
    }
    // It may have been opened to be read.
    if let Ok(own) = Fd::open(path, libc::O_RDWR, 0) {
        let _ = own.write_at(&[1], AT);
    }
}

/// Whether anybody has left it in the owner's file `fd`.
pub fn is_there(fd: i32) -> bool {
    file::borrow(fd).next_data(AT).is_ok()
}
