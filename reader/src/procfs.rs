//! Files of /proc. What stands in them is the doing of the processes that they are about, which may
//! be anybody's: they are read as far as a process can need them to be, and no further.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::OnceLock;

/// Bytes of a file that is read as a whole, at the most: environ, status, stat, cgroup.
pub const LONGEST: usize = 256 << 10;
/// Bytes that most of them have.
const USUAL: usize = 16 << 10;
/// What vm.max_map_count is if nobody changes it.
const DEFAULT: usize = 65_530;
/// Bytes of a line of maps or smaps: the columns, and a path of which each byte may be `\012`.
const LONGEST_LINE: u64 = 4 * 4096 + 200;

/// Reads a whole file, by one call if it has its usual length: of a process that executes another
/// program between two, the rest of the environment is no more.
///
/// # Errors
/// [`ErrorKind::FileTooLarge`]: it has more than [`LONGEST`] bytes.
pub fn whole(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    for room in [USUAL, LONGEST + 1] {
        let mut text = vec![0; room];
        let mut filled = 0;
        while let Some(rest) = text.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match file.read(rest) {
                Ok(0) => {
                    text.truncate(filled);
                    return Ok(text);
                }
                Ok(bytes) => filled += bytes,
                Err(e) if e.kind() == ErrorKind::Interrupted => (),
                Err(e) => return Err(e),
            }
        }
        file.rewind()?;
    }
    Err(ErrorKind::FileTooLarge.into())
}

/// Reads a whole file as text. What is not UTF-8 in it, as a program's name may be, is replaced.
///
/// # Errors
/// As [`whole`].
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&whole(path)?).into_owned())
}

/// Calls `each` with each line of a file, until it says so, in constant memory. Returns how many
/// lines there were.
///
/// # Errors
/// [`ErrorKind::FileTooLarge`]: it has more than `most` lines, or a longer one than the kernel
/// writes.
pub fn each_line(
    path: impl AsRef<Path>,
    most: usize,
    mut each: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<usize> {
    let mut file = BufReader::with_capacity(1 << 16, File::open(path)?);
    let mut line = Vec::new();
    for n in 0.. {
        line.clear();
        let bytes = (&mut file)
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line)?;
        if bytes == 0 {
            return Ok(n);
        }
        if n >= most || bytes as u64 == LONGEST_LINE && !line.ends_with(b"\n") {
            return Err(ErrorKind::FileTooLarge.into());
        }
        if each(line.strip_suffix(b"\n").unwrap_or(&line)).is_break() {
            return Ok(n + 1);
        }
    }
    Ok(0)
}

/// Returns how many mappings of a process are looked at: vm.max_map_count, but no more than its
/// default, one more, and the kernel's own vsyscall page.
pub fn most_mappings() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
        let allowed = text("/proc/sys/vm/max_map_count");
        let allowed = allowed.ok().and_then(|n| n.trim().parse().ok());
        allowed.map_or(DEFAULT, |n: usize| n.min(DEFAULT)) + 2
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, bytes: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("regall-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn what_is_longer_is_not_known() {
        for (bytes, fits) in [
            (0, true),
            (USUAL - 1, true),
            (USUAL, true),
            (LONGEST, true),
            (LONGEST + 1, false),
        ] {
            let path = file("whole", &vec![b'x'; bytes]);
            let read = whole(&path);
            std::fs::remove_file(&path).unwrap();
            match fits {
                true => assert_eq!(read.unwrap().len(), bytes),
                false => assert_eq!(read.unwrap_err().kind(), ErrorKind::FileTooLarge),
            }
        }
    }

    #[test]
    fn lines_are_counted_and_have_an_end() {
        let lines = |text: &[u8], most| {
            let path = file("lines", text);
            let mut bytes = 0;
            let n = each_line(&path, most, |line| {
                bytes += line.len();
                ControlFlow::Continue(())
            });
            std::fs::remove_file(&path).unwrap();
            n.map(|n| (n, bytes)).map_err(|e| e.kind())
        };
        assert_eq!(lines(b"", 2), Ok((0, 0)));
        assert_eq!(lines(b"a\nbc\n", 2), Ok((2, 3)));
        assert_eq!(lines(b"a\nbc", 2), Ok((2, 3)));
        assert_eq!(lines(b"a\nb\nc\n", 2), Err(ErrorKind::FileTooLarge));
        let long = vec![b'x'; LONGEST_LINE as usize + 1];
        assert_eq!(lines(&long, 2), Err(ErrorKind::FileTooLarge));
    }
}
