//! The kernel's list of this process's mappings, line by line.

use crate::sys::file::Fd;
use crate::sys::{Result, Undisturbed};
use regall_directory::maps::{parse, Line, LineError, Lines};

/// Bytes of buffer to read the list with. A line longer than that (a path of
/// that length) is skipped.
pub const BUFFER_BYTES: usize = 6144;

/// How often opening the kernel's list, or reading it, may fail: what it fails for may be
/// over at once (a table of descriptors that is full, no memory).
const TRIES: usize = 3;

fn open_maps() -> Result<Fd> {
    let open = || Fd::open(c"/proc/self/maps", libc::O_RDONLY, 0);
    (1..TRIES).find_map(|_| open().ok()).map_or_else(open, Ok)
}

/// Calls `each` with every line of /proc/self/maps until it says false.
pub fn lines(buffer: &mut [u8], mut each: impl FnMut(&Line<'_>) -> bool) -> Result<()> {
    // A handler that jumps away would leave it open.
    let _undisturbed = Undisturbed::new();
    let fd = open_maps()?;
    let mut failures = 0;
    let mut lines = Lines::new(buffer, |room| fd.read(room));
    while let Some(line) = lines.next_line() {
        match line.map(parse) {
            Ok(Some(line)) if !each(&line) => break,
            Err(LineError::Read(errno)) => {
                failures += 1;
                if failures >= TRIES {
                    return Err(errno);
                }
            }
            _ => (),
        }
    }
    Ok(())
}
