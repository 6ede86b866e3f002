//! The kernel's own list of a process's mappings, `/proc/PID/maps`.
//!
//! The shim parses it with raw reads into a fixed buffer while it holds its
//! lock, the command line of processes that it does not trust: so nothing here
//! allocates, and nothing panics whatever the bytes are.

use crate::addr::PageRange;
use crate::vocab::Prot;

/// Longest line that the kernel writes: the fixed columns and a path of PATH_MAX
/// bytes. A buffer of this size for [`Lines`] never sees [`LineError::TooLong`].
pub const LINE_MAX: usize = 4096 + 200;

/// One mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line<'a> {
    /// Its addresses. Those of `[vsyscall]` are the kernel's.
    pub range: PageRange,
    /// Protection and sharing.
    pub prot: Prot,
    /// Offset into the file, in bytes.
    pub offset: u64,
    /// Device of the file; 0 if there is none.
    pub dev_major: u32,
    /// Device of the file; 0 if there is none.
    pub dev_minor: u32,
    /// Inode of the file; 0 if there is none.
    pub inode: u64,
    /// Path or `[heap]`-like name as the kernel wrote it: newlines as `\012`,
    /// with the suffix ` (deleted)` where it applies. Empty if there is none.
    pub name: &'a [u8],
}

/// Parses one line, with or without its newline. `None` if it is not what the
/// kernel writes (proc_pid_maps(5)).
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let (start, rest) = number(line, 16)?;
    let (end, rest) = number(rest.strip_prefix(b"-")?, 16)?;
    let (prot, rest) = prot(rest.strip_prefix(b" ")?)?;
    let (offset, rest) = number(rest.strip_prefix(b" ")?, 16)?;
    let (major, rest) = number(rest.strip_prefix(b" ")?, 16)?;
    let (minor, rest) = number(rest.strip_prefix(b":")?, 16)?;
    let (inode, rest) = number(rest.strip_prefix(b" ")?, 10)?;
    let name = match rest {
        [] => rest,
        [b' ', padded @ ..] => padded.trim_ascii_start(),
        _ => return None,
    };
    Some(Line {
        range: PageRange::new(start, end)?,
        prot,
        offset,
        dev_major: u32::try_from(major).ok()?,
        dev_minor: u32::try_from(minor).ok()?,
        inode,
        name,
    })
}

/// The number at the beginning of `text`, and what follows it. `None` if there
/// is no digit or it does not fit.
fn number(text: &[u8], base: u8) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let digit = match first {
            b'0'..=b'9' => first - b'0',
            b'a'..=b'f' if base == 16 => first - b'a' + 10,
            _ => break,
        };
        value = value
            .checked_mul(u64::from(base))?
            .checked_add(u64::from(digit))?;
        rest = tail;
    }
    (rest.len() != text.len()).then_some((value, rest))
}

/// The four characters of protection and sharing, and what follows them.
fn prot(text: &[u8]) -> Option<(Prot, &[u8])> {
    let [r, w, x, s, rest @ ..] = text else {
        return None;
    };
    let bit = |c: &u8, yes: u8, no: u8, bit: u8| match *c {
        c if c == yes => Some(bit),
        c if c == no => Some(0),
        _ => None,
    };
    let bits = bit(r, b'r', b'-', Prot::READ)?
        | bit(w, b'w', b'-', Prot::WRITE)?
        | bit(x, b'x', b'-', Prot::EXEC)?
        | bit(s, b's', b'p', Prot::SHARED)?;
    Some((Prot::from_bits(bits), rest))
}

/// Why [`Lines::next_line`] has no line to give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineError<E> {
    /// Reading failed.
    Read(E),
    /// A line did not fit into the buffer; it was skipped.
    TooLong,
}

/// How often reading may fail: what it fails for may be over at once.
const TRIES: usize = 3;

/// Calls `each` with every line of what `read` reads, as [`Lines::new`] has it, until `each` says
/// false. Lines that don't fit into the buffer, or are not the kernel's, are left out.
///
/// # Errors
/// What `read` says when it fails for the third time.
pub fn each_line<E>(
    buffer: &mut [u8],
    read: impl FnMut(&mut [u8]) -> Result<usize, E>,
    mut each: impl FnMut(&Line<'_>) -> bool,
) -> Result<(), E> {
    let mut failures = 0;
    let mut lines = Lines::new(buffer, read);
    while let Some(line) = lines.next_line() {
        match line.map(parse) {
            Ok(Some(line)) if !each(&line) => break,
            Err(LineError::Read(error)) => {
                failures += 1;
                if failures >= TRIES {
                    return Err(error);
                }
            }
            _ => (),
        }
    }
    Ok(())
}

/// Cuts a stream that arrives in pieces into lines, in a buffer of the caller's.
pub struct Lines<'b, R> {
    buffer: &'b mut [u8],
    read: R,
    /// Bytes `start..end` of the buffer are read and not yet given out.
    /// Always `start <= end <= buffer.len()`.
    start: usize,
    end: usize,
    ended: bool,
}

impl<'b, R, E> Lines<'b, R>
where
    R: FnMut(&mut [u8]) -> Result<usize, E>,
{
    /// Lines of what `read` puts into the slices that it is given; it returns
    /// the number of bytes, 0 at the end. The buffer bounds a line's length.
    pub fn new(buffer: &'b mut [u8], read: R) -> Self {
        Self {
            buffer,
            read,
            start: 0,
            end: 0,
            ended: false,
        }
    }

    /// The next line without its newline; `None` at the end. A last line that
    /// lacks its newline counts. After [`LineError::TooLong`] one can go on,
    /// after [`LineError::Read`] one can try again.
    #[allow(clippy::type_complexity)]
    pub fn next_line(&mut self) -> Option<Result<&[u8], LineError<E>>> {
        let mut skipping = false;
        let mut seen = 0;
        loop {
            let unread = self.buffer.get(self.start..self.end)?;
            let newline = unread.iter().skip(seen).position(|&b| b == b'\n');
            if let Some(length) = newline.map(|n| n + seen) {
                return Some(self.take(length, 1, skipping));
            }
            if self.ended {
                let length = unread.len();
                let some = length > 0 || skipping;
                return some.then(|| self.take(length, 0, skipping));
            }
            skipping |= self.make_room();
            seen = self.end - self.start;
            let free = self.buffer.get_mut(self.end..)?;
            let room = free.len();
            match (self.read)(free) {
                Ok(0) => self.ended = true,
                Ok(n) => self.end += n.min(room),
                Err(e) => return Some(Err(LineError::Read(e))),
            }
        }
    }

    /// Gives out `length` bytes and steps over them and `newline` more.
    fn take(
        &mut self,
        length: usize,
        newline: usize,
        skipping: bool,
    ) -> Result<&[u8], LineError<E>> {
        let from = self.start;
        self.start = from + length + newline;
        match self.buffer.get(from..from + length) {
            Some(line) if !skipping => Ok(line),
            _ => Err(LineError::TooLong),
        }
    }

    /// Moves what is unread to the front; throws it away if it fills the whole
    /// buffer, and says so.
    fn make_room(&mut self) -> bool {
        let unread = self.end - self.start;
        let full = unread == self.buffer.len();
        if full {
            self.end = self.start;
        }
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        full
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_file_mapping() {
        let line = parse(b"7f8b89ca9000-7f8b89cab000 rw-p 00033000 fe:00 325843                     /usr/lib/a b.so (deleted)\n").unwrap();
        assert_eq!(
            line.range,
            PageRange::new(0x7f8b89ca9000, 0x7f8b89cab000).unwrap()
        );
        assert_eq!(line.prot.to_string(), "rw-p");
        assert_eq!((line.offset, line.inode), (0x33000, 325843));
        assert_eq!((line.dev_major, line.dev_minor), (0xfe, 0));
        assert_eq!(line.name, b"/usr/lib/a b.so (deleted)");
    }

    #[test]
    fn names_of_all_sorts() {
        let name = |text| parse(text).map(|l| l.name.to_vec());
        assert_eq!(
            name(b"00001000-00002000 r--s 00000000 00:00 0 "),
            Some(b"".to_vec())
        );
        assert_eq!(
            name(b"00001000-00002000 r--s 00000000 00:00 0"),
            Some(b"".to_vec())
        );
        assert_eq!(
            name(
                b"00001000-00002000 r--s 00000000 00:00 0                          /a\\012b  c \n"
            ),
            Some(b"/a\\012b  c ".to_vec())
        );
        assert_eq!(
            name(b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]"),
            Some(b"[vsyscall]".to_vec())
        );
    }

    #[test]
    fn what_the_kernel_does_not_write() {
        for bad in [
            &b""[..],
            b"-",
            b"00001000-00001000 r--p 00000000 00:00 0 ",
            b"00001001-00002000 r--p 00000000 00:00 0 ",
            b"00001000-00002000 r--x 00000000 00:00 0 ",
            b"00001000-00002000 r--",
            b"00001000-00002000 r--p 00000000 00:00 0x",
            b"00001000-00002000 r--p 00000000 100000000:00 0 ",
            b"11111111111111111-22222222222222222 r--p 00000000 00:00 0 ",
            b"00001000-00002000 r--p  0 00:00 0 ",
        ] {
            assert_eq!(parse(bad), None, "{}", bad.escape_ascii());
        }
    }

    /// Lines of `text`, `None` for one too long, read `chunk` bytes at a time.
    fn lines(text: &[u8], buffer: usize, chunk: usize) -> Vec<Option<Vec<u8>>> {
        let mut rest = text;
        let mut buffer = vec![0; buffer];
        let mut lines = Lines::new(&mut buffer, |into: &mut [u8]| {
            let n = into.len().min(chunk).min(rest.len());
            into[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            Ok::<_, ()>(n)
        });
        let mut out = Vec::new();
        while let Some(line) = lines.next_line() {
            out.push(line.ok().map(<[u8]>::to_vec));
        }
        out
    }

    #[test]
    fn a_line_too_long_is_skipped_alone() {
        assert_eq!(
            lines(b"ab\nabcdefghij\ncd\n", 8, 3),
            [Some(b"ab".to_vec()), None, Some(b"cd".to_vec())]
        );
        assert_eq!(lines(b"abcdefghijkl", 8, 5), [None]);
        assert_eq!(lines(b"ab", 0, 5), [None]);
    }

    #[test]
    fn a_failed_read_is_reported() {
        let mut buffer = [0; 16];
        let mut lines = Lines::new(&mut buffer, |_: &mut [u8]| Err::<usize, _>(5));
        assert_eq!(lines.next_line(), Some(Err(LineError::Read(5))));
    }

    #[test]
    fn a_reader_that_lies_about_its_count() {
        let mut buffer = [0; 16];
        let mut calls = 0;
        let mut lines = Lines::new(&mut buffer, |_: &mut [u8]| {
            calls += 1;
            Ok::<_, ()>(if calls < 9 { usize::MAX } else { 0 })
        });
        while lines.next_line().is_some() {}
    }

    /// Shows that a reason to fail may be over at once, and is said the third time.
    #[test]
    fn reading_may_fail_twice() {
        let all =
            b"00001000-00002000 r--p 0 00:00 0 /a\nno line\n00002000-00003000 r--p 0 00:00 0 /b\n";
        let read_with = |failures: usize, mut until: usize| {
            let (mut left, mut rest, mut names) = (failures, &all[..], Vec::new());
            let read = |into: &mut [u8]| {
                if left > 0 {
                    left -= 1;
                    return Err(left);
                }
                let n = into.len().min(rest.len());
                into[..n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                Ok(n)
            };
            let done = each_line(&mut [0; 64], read, |line| {
                names.push(line.name.to_vec());
                until -= 1;
                until > 0
            });
            (done, names)
        };
        let both = vec![b"/a".to_vec(), b"/b".to_vec()];
        assert_eq!(read_with(0, 9), (Ok(()), both.clone()));
        assert_eq!(read_with(2, 9), (Ok(()), both.clone()));
        assert_eq!(read_with(0, 1), (Ok(()), both[..1].to_vec()));
        assert_eq!(read_with(5, 9), (Err(2), Vec::new()));
    }

    #[test]
    fn our_own_maps() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        let all = lines(&text, LINE_MAX, 100);
        assert!(all.len() > 5);
        for line in &all {
            assert!(parse(line.as_ref().unwrap()).is_some());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn almost_right_lines_do_not_either(cut in 0usize..90, with in any::<u8>()) {
            let mut line = *b"7f8b89ca9000-7f8b89cab000 rw-p 00033000 fe:00 325843                     /usr/lib/x.so\n";
            if let Some(b) = line.get_mut(cut) { *b = with; }
            let _ = parse(&line);
            let _ = parse(line.get(..cut).unwrap_or(&line));
        }

        #[test]
        fn what_is_printed_is_parsed(start in 0u64..1 << 35, pages in 1u64..1 << 20, bits in 0u8..16,
                                     offset in any::<u64>(), major in any::<u32>(), minor in any::<u32>(),
                                     inode in any::<u64>(), name in "(/[ -~]{0,30})?") {
            let range = PageRange::new(start << 12, (start + pages) << 12).unwrap();
            let prot = Prot::from_bits(bits);
            let text = format!("{:08x}-{:08x} {prot} {offset:08x} {major:02x}:{minor:02x} {inode} {name}",
                               range.start(), range.end());
            let expected = Line { range, prot, offset, dev_major: major, dev_minor: minor, inode, name: name.as_bytes() };
            prop_assert_eq!(parse(text.as_bytes()), Some(expected));
        }

        #[test]
        fn lines_do_not_depend_on_the_chunks(text in "[a-c\n]{0,80}", buffer in 82usize..100, chunk in 1usize..90) {
            let mut expected: Vec<_> = text.split('\n').map(|l| Some(l.as_bytes().to_vec())).collect();
            if text.ends_with('\n') || text.is_empty() { expected.pop(); }
            prop_assert_eq!(lines(text.as_bytes(), buffer, chunk), expected);
        }
    }
}
