//! Any bytes as /proc/PID/maps, /proc/PID/stat and names in the folder: as a plain reading of
//! them has it, however they are cut into pieces and however small the buffer is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use regall_directory::maps::{parse, LineError, Lines};
use regall_sys::folder::Folder;
use regall_sys::process::Stat;
use regall_sys::text::number;

// The first byte is the size of the buffer, the second that of the pieces.
fuzz_target!(|data: &[u8]| {
    let [room, piece, text @ ..] = data else {
        return;
    };
    lines(usize::from(*room) + 1, usize::from(*piece) + 1, text);
    for line in text.split(|b| *b == b'\n') {
        one_line(line);
        if let Ok(stat) = Stat::parse(line) {
            stat.over();
        }
        if let Some(folder) = Folder::named(line) {
            let path = folder.path();
            assert!(path.as_bytes().starts_with(b"/dev/shm/regall-"));
            assert_eq!(Folder::named(&path.as_bytes()[9..]), Some(folder));
        }
        if let Some(n) = number(line) {
            let plain = std::str::from_utf8(line).ok().and_then(|s| s.parse().ok());
            assert_eq!(plain, Some(n));
        }
    }
});

/// What the parser makes of a line can be written down and is read as the same again.
fn one_line(line: &[u8]) {
    let Some(found) = parse(line) else {
        return;
    };
    assert!(found.range.start() < found.range.end());
    let bit = |yes: bool, letter: char, no: char| if yes { letter } else { no };
    let again = format!(
        "{:x}-{:x} {}{}{}{} {:08x} {:02x}:{:02x} {} ",
        found.range.start(),
        found.range.end(),
        bit(found.prot.readable(), 'r', '-'),
        bit(found.prot.writable(), 'w', '-'),
        bit(found.prot.executable(), 'x', '-'),
        bit(found.prot.shared(), 's', 'p'),
        found.offset,
        found.dev_major,
        found.dev_minor,
        found.inode,
    );
    let again = [again.as_bytes(), found.name].concat();
    assert_eq!(parse(&again), Some(found));
}

fn lines(room: usize, piece: usize, text: &[u8]) {
    let mut buffer = vec![0; room];
    let mut rest = text;
    let read = |into: &mut [u8]| -> Result<usize, ()> {
        let n = into.len().min(piece).min(rest.len());
        into[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        Ok(n)
    };
    let mut lines = Lines::new(&mut buffer, read);
    // A last line without its newline counts, an empty one does not.
    let whole = text.strip_suffix(b"\n").unwrap_or(text);
    let mut expected = whole.split(|b| *b == b'\n');
    if text.is_empty() {
        expected.next();
    }
    for line in expected {
        match lines.next_line() {
            Some(Ok(got)) => assert_eq!(got, line),
            // One that fits with its newline must be given out.
            Some(Err(LineError::TooLong)) => assert!(line.len() + 1 > room),
            other => panic!("{other:?} instead of {line:?}"),
        }
    }
    assert_eq!(lines.next_line(), None);
}
