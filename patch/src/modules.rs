//! What is mapped from which file, by /proc/self/maps.

use regall_directory::addr::PageRange;
use regall_directory::maps::{each_line, Line};
use regall_directory::vocab::Prot;
use regall_sys::mappings::{List, Mapping, Text, Wanted};
use regall_sys::Result;

/// Bytes of buffer to read the list with. A line longer than that (a path of that length) is
/// skipped.
pub const BUFFER_BYTES: usize = 6144;

/// Mappings of one file that are told apart; a library has four to six.
pub const SEGMENTS_MAX: usize = 12;
/// What a group of mappings is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Origin {
    /// The GNU C library or its loader.
    Libc,
    /// Another file.
    #[default]
    File,
    /// No file.
    Anonymous,
    /// `[heap]`
    Heap,
    /// `[stack]`
    Stack,
    /// vdso, vvar, vsyscall and the like: the kernel's own.
    Kernel,
}

/// One mapping.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Its addresses.
    pub range: PageRange,
    /// The mapping's protection.
    pub prot: Prot,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
}

/// The neighbouring mappings of one file; an anonymous mapping is a group of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Group {
    segments: [Option<Segment>; SEGMENTS_MAX],
    count: usize,
    file: (u32, u32, u64),
    /// What is mapped there.
    pub origin: Origin,
}

impl Group {
    /// The mappings by address.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().flatten()
    }

    /// The private mappings of a file that can be read and that the program does not write.
    pub fn unwritten(&self) -> impl Iterator<Item = PageRange> + '_ {
        let file = self.file.2 != 0;
        self.segments()
            .filter(move |s| file && s.prot.readable() && !s.prot.writable() && !s.prot.shared())
            .map(|s| s.range)
    }

    /// Whether `at` is in one of the mappings.
    pub fn contains(&self, at: u64) -> bool {
        self.segments().any(|s| s.range.contains(at))
    }

    /// One readable mapping of a file's beginning.
    pub fn single(range: PageRange) -> Self {
        let mut segments = [None; SEGMENTS_MAX];
        segments[0] = Some(Segment {
            range,
            prot: Prot::from_bits(Prot::READ),
            offset: 0,
        });
        Self {
            origin: Origin::File,
            count: 1,
            segments,
            ..Self::default()
        }
    }

    fn start(line: &Line<'_>) -> Self {
        let mut group = Self {
            file: (line.dev_major, line.dev_minor, line.inode),
            origin: origin(line),
            ..Self::default()
        };
        group.push(line);
        group
    }

    fn push(&mut self, line: &Line<'_>) {
        if let Some(free) = self.segments.get_mut(self.count) {
            *free = Some(Segment {
                range: line.range,
                prot: line.prot,
                offset: line.offset,
            });
            self.count += 1;
        }
    }

    /// Whether `line` goes on with this group: the same file, further on.
    fn continues(&self, line: &Line<'_>) -> bool {
        let last = self.segments().last();
        line.inode != 0
            && self.count < SEGMENTS_MAX
            && self.file == (line.dev_major, line.dev_minor, line.inode)
            && last.is_some_and(|s| s.offset <= line.offset)
    }
}

fn origin(line: &Line<'_>) -> Origin {
    if line.inode != 0 {
        return if is_libc(line.name) {
            Origin::Libc
        } else {
            Origin::File
        };
    }
    match line.name {
        b"[heap]" => Origin::Heap,
        b"[stack]" => Origin::Stack,
        name if name.starts_with(b"[anon") || !name.starts_with(b"[") => Origin::Anonymous,
        _ => Origin::Kernel,
    }
}

/// Whether the file at `path` is the GNU C library, its thread library or its
/// loader, by its name.
pub fn is_libc(path: &[u8]) -> bool {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    let stems: [&[u8]; 6] = [
        b"libc.so.6",
        b"libc-2.",
        b"ld-linux-x86-64.so.2",
        b"ld-2.",
        b"libpthread.so.0",
        b"libpthread-2.",
    ];
    stems.iter().any(|stem| name.starts_with(stem))
}

/// Calls `each` with every mapping but the kernel's own, in their order, until it says false. Before
/// Linux 6.11 from the list as text.
pub fn lines(buffer: &mut [u8], each: impl FnMut(&Line<'_>) -> bool) -> Result<()> {
    lines_from(0, buffer, each)
}

/// As [`lines`], of the mappings that end above `addr`.
pub fn lines_from(
    addr: u64,
    buffer: &mut [u8],
    mut each: impl FnMut(&Line<'_>) -> bool,
) -> Result<()> {
    let rest = List::open()?.each_from(addr, Wanted::Any, buffer, |mapping| {
        line_of(mapping).is_some_and(|line| each(&line))
    });
    let Some(from) = rest else {
        return Ok(());
    };
    let mut text = Text::open()?;
    each_line(
        buffer,
        |room| text.read(room),
        |line| line.range.end() <= from || each(line),
    )
}

/// Returns what the kernel has said as a line of its list.
pub fn line_of<'n>(mapping: &Mapping<'n>) -> Option<Line<'n>> {
    Some(Line {
        range: PageRange::new(mapping.start, mapping.end)?,
        prot: Prot::from_call(mapping.prot as u64, mapping.shared),
        offset: mapping.offset,
        dev_major: mapping.device.0,
        dev_minor: mapping.device.1,
        inode: mapping.inode,
        name: mapping.name,
    })
}

/// Calls `each` with every group until it says false.
pub fn groups(buffer: &mut [u8], mut each: impl FnMut(&Group) -> bool) -> Result<()> {
    let mut current: Option<Group> = None;
    let mut more = true;
    lines(buffer, |line| {
        match &mut current {
            Some(group) if group.continues(line) => group.push(line),
            _ => {
                let done = current.replace(Group::start(line));
                more = done.is_none_or(|group| each(&group));
            }
        }
        more
    })?;
    if let (true, Some(group)) = (more, current) {
        each(&group);
    }
    Ok(())
}
