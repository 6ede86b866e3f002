//! Which file is behind which address. Pure: no system calls.

use super::marks::Marks;
use regall_directory::addr::PageRange;

/// Files at the most: each keeps a descriptor of the process's.
pub const FILES: usize = 256;
/// Pieces of them at the most.
pub const PIECES: usize = 1024;
/// Pieces that one call may make of one, and more.
const SLACK: usize = 16;

/// A file behind memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct File {
    /// Descriptor; -1: none any more, what is mapped stays as it is.
    pub fd: i32,
    /// To know it again: programs close what they find open.
    pub inode: u64,
    /// Bytes from its start that have been mapped at some time: beyond, it is empty.
    pub used: u64,
    /// Pieces of it; 0: the place is free.
    pieces: u32,
}

impl File {
    /// One with nothing in it.
    pub const fn new(fd: i32, inode: u64) -> Self {
        Self {
            fd,
            inode,
            used: 0,
            pieces: 0,
        }
    }
}

/// All zeroes, so that the table takes no room in the library's file.
const NO_FILE: File = File::new(0, 0);

/// A stretch of addresses, and where in its file it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    start: u64,
    end: u64,
    /// Byte of the file that is at `start`.
    pub offset: u64,
    file: u16,
    /// No longer shared: the file is as it was, and what is written is not written to it.
    pub frozen: bool,
    marks: Marks,
}

const NO_PIECE: Piece = Piece {
    start: 0,
    end: 0,
    offset: 0,
    file: 0,
    frozen: false,
    marks: Marks::NONE,
};

impl Piece {
    /// The part of it that lies in `range`.
    fn part(&self, range: PageRange) -> Option<(PageRange, u64)> {
        let part = PageRange::new(self.start, self.end)?.intersection(range)?;
        Some((part, self.offset + (part.start() - self.start)))
    }
}

/// A part of a file's that was taken out of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where it was.
    pub range: PageRange,
    /// The part's first byte in the file.
    pub offset: u64,
    /// The part's file, with `fd` -1 if it has none.
    pub file: File,
    /// See [`Piece::frozen`].
    pub frozen: bool,
    /// What the application asked for it.
    pub marks: Marks,
    /// Nothing else of the file is mapped, and the table has forgotten it.
    pub last: bool,
}

/// The files and their pieces, in the order of their addresses.
pub struct Table {
    files: [File; FILES],
    pieces: [Piece; PIECES],
    count: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

impl Table {
    /// An empty table.
    pub const fn new() -> Self {
        Self {
            files: [NO_FILE; FILES],
            pieces: [NO_PIECE; PIECES],
            count: 0,
        }
    }

    fn pieces(&self) -> &[Piece] {
        self.pieces.get(..self.count).unwrap_or(&[])
    }

    /// Whether there is room for one more file, of `limit` at the most.
    pub fn has_room(&self, limit: usize) -> bool {
        let taken = self.files.iter().filter(|f| f.pieces > 0).count();
        taken < limit.min(FILES) && self.count + SLACK < PIECES
    }

    /// `range` is mapped from `file`, from its byte `offset` on. Whether there was room.
    pub fn enter(&mut self, range: PageRange, file: File, offset: u64, frozen: bool) -> bool {
        self.put(&Part {
            range,
            offset,
            file,
            frozen,
            marks: Marks::NONE,
            last: false,
        })
    }

    /// `part` is where it says. Whether there was room.
    pub fn put(&mut self, part: &Part) -> bool {
        let Part {
            range,
            offset,
            file,
            frozen,
            marks,
            ..
        } = *part;
        let known = |f: &File| f.pieces > 0 && f.inode == file.inode;
        let place = self.files.iter().position(known);
        let Some(n) = place.or_else(|| self.files.iter().position(|f| f.pieces == 0)) else {
            return false;
        };
        let piece = Piece {
            start: range.start(),
            end: range.end(),
            offset,
            file: n as u16,
            frozen,
            marks,
        };
        if !self.insert(piece) {
            return false;
        }
        if let Some(f) = self.files.get_mut(n) {
            if f.pieces == 0 {
                *f = File { pieces: 0, ..file };
            }
            f.pieces += 1;
            f.used = f.used.max(file.used).max(offset + range.len());
        }
        true
    }

    fn insert(&mut self, piece: Piece) -> bool {
        if self.count >= PIECES {
            return false;
        }
        let at = self.pieces().partition_point(|p| p.start < piece.start);
        self.pieces.copy_within(at..self.count, at + 1);
        if let Some(place) = self.pieces.get_mut(at) {
            *place = piece;
        }
        self.count += 1;
        true
    }

    fn delete(&mut self, at: usize) {
        self.pieces.copy_within(at + 1..self.count, at);
        self.count -= 1;
    }

    fn first_in(&self, range: PageRange) -> Option<usize> {
        let at = self.pieces().partition_point(|p| p.end <= range.start());
        let piece = self.pieces().get(at)?;
        (piece.start < range.end()).then_some(at)
    }

    /// Whether some of `file` is mapped.
    pub fn has(&self, file: &File) -> bool {
        let same = |f: &File| f.pieces > 0 && f.inode == file.inode;
        self.files.iter().any(same)
    }

    /// Whether nothing is mapped any more of the file of `part`, which was taken out of another
    /// table.
    pub fn was_last(&self, part: &Part) -> bool {
        part.last && !self.has(&part.file)
    }

    /// The first part of a file's in `range`; it stays.
    pub fn find(&self, range: PageRange) -> Option<Part> {
        let piece = self.pieces().get(self.first_in(range)?)?;
        let (part, offset) = piece.part(range)?;
        Some(Part {
            range: part,
            offset,
            file: *self.files.get(usize::from(piece.file))?,
            frozen: piece.frozen,
            marks: piece.marks,
            last: false,
        })
    }

    /// Whether all of a file's in `range` has the same marks.
    pub fn is_uniform(&self, range: PageRange) -> bool {
        let at = self.pieces().partition_point(|p| p.end <= range.start());
        let rest = self.pieces().get(at..).unwrap_or(&[]);
        let mut here = rest.iter().take_while(|p| p.start < range.end());
        let first = here.next().map(|p| p.marks);
        here.all(|p| Some(p.marks) == first)
    }

    /// Whether some of a file's in `range` is sealed.
    pub fn is_sealed(&self, range: PageRange) -> bool {
        let here = |p: &&Piece| p.end > range.start() && p.start < range.end();
        self.pieces()
            .iter()
            .filter(here)
            .any(|p| p.marks.is_sealed())
    }

    /// Whether there is room to mark a part of a piece.
    pub fn can_mark(&self) -> bool {
        self.count + SLACK < PIECES
    }

    /// Marks all of a file's in `range` anew.
    pub fn mark(&mut self, range: PageRange, f: impl Fn(Marks) -> Marks) {
        let mut from = range.start();
        while let Some(part) = range.after(from).and_then(|rest| self.find(rest)) {
            from = part.range.end();
            let marks = f(part.marks);
            if marks == part.marks {
                continue;
            }
            if let Some(taken) = self.take(part.range) {
                self.put(&Part { marks, ..taken });
            }
        }
        self.join();
    }

    /// Neighbours that are one become one.
    fn join(&mut self) {
        let mut at = 1;
        while at < self.count {
            let pair = self.pieces.get(at - 1).zip(self.pieces.get(at));
            let Some((&a, &b)) = pair else {
                return;
            };
            let goes_on = a.end == b.start && a.offset + (a.end - a.start) == b.offset;
            if goes_on && (a.file, a.frozen, a.marks) == (b.file, b.frozen, b.marks) {
                if let Some(place) = self.pieces.get_mut(at - 1) {
                    place.end = b.end;
                }
                if let Some(file) = self.files.get_mut(usize::from(a.file)) {
                    file.pieces -= 1;
                }
                self.delete(at);
            } else {
                at += 1;
            }
        }
    }

    /// In a child of fork: no file has a descriptor any more (`each` gets those that had), and
    /// what is neither frozen nor marked, or of which `stays` is untrue, is forgotten.
    pub fn inherit(&mut self, mut each: impl FnMut(File), stays: impl Fn(u64) -> bool) {
        for file in &mut self.files {
            if file.pieces > 0 && file.fd >= 0 {
                each(*file);
            }
            (file.fd, file.pieces) = (-1, 0);
        }
        let mut kept = 0;
        for at in 0..self.count {
            let Some(&piece) = self.pieces.get(at) else {
                break;
            };
            if !piece.frozen || piece.marks == Marks::NONE || !stays(piece.start) {
                continue;
            }
            if let Some(file) = self.files.get_mut(usize::from(piece.file)) {
                file.pieces += 1;
            }
            if let Some(place) = self.pieces.get_mut(kept) {
                *place = piece;
            }
            kept += 1;
        }
        self.count = kept;
        for file in self.files.iter_mut().filter(|f| f.pieces == 0) {
            *file = NO_FILE;
        }
    }

    /// Takes the first part of a file's in `range` out.
    pub fn take(&mut self, range: PageRange) -> Option<Part> {
        let at = self.first_in(range)?;
        let piece = *self.pieces().get(at)?;
        let mut found = self.find(range)?;
        let (head, tail) = (found.range.start(), found.range.end());
        let place = self.pieces.get_mut(at)?;
        match (head > piece.start, tail < piece.end) {
            (false, false) => {
                self.delete(at);
                let file = self.files.get_mut(usize::from(piece.file))?;
                file.pieces -= 1;
                found.last = file.pieces == 0;
                if found.last {
                    *file = NO_FILE;
                }
            }
            (true, false) => place.end = head,
            (false, true) => {
                place.offset += tail - piece.start;
                place.start = tail;
            }
            (true, true) => {
                place.end = head;
                let rest = Piece {
                    start: tail,
                    offset: piece.offset + (tail - piece.start),
                    ..piece
                };
                // Without a place the rest is forgotten: it stays shared, and whoever
                // needs to know finds it in the kernel's list.
                if self.insert(rest) {
                    self.files.get_mut(usize::from(piece.file))?.pieces += 1;
                }
            }
        }
        Some(found)
    }

    /// The file that ends at `addr` with the last of its bytes, so that more of it can be
    /// mapped there.
    pub fn ends_at(&self, addr: u64) -> Option<File> {
        let at = self.pieces().partition_point(|p| p.end < addr);
        let piece = self.pieces().get(at).filter(|p| p.end == addr)?;
        let file = self.files.get(usize::from(piece.file))?;
        let last = piece.offset + (piece.end - piece.start) == file.used;
        (last && !piece.frozen && file.fd >= 0).then_some(*file)
    }

    /// Whether `range` is all that is mapped of a file, and it is empty behind that.
    pub fn is_whole(&self, range: PageRange) -> bool {
        let Some(part) = self.find(range) else {
            return false;
        };
        part.range == range && part.file.pieces == 1 && part.offset + range.len() == part.file.used
    }

    /// `range`, a part of one file, is frozen. Returns the file's descriptor if nothing of
    /// it is shared any more.
    pub fn freeze(&mut self, range: PageRange) -> Option<File> {
        let part = self.take(range)?;
        self.put(&Part {
            frozen: true,
            ..part
        });
        let of = |p: &Piece, files: &[File]| {
            files
                .get(usize::from(p.file))
                .is_some_and(|f| f.inode == part.file.inode)
        };
        let live = |p: &&Piece| !p.frozen && of(p, &self.files);
        if self.pieces().iter().any(|p| live(&p)) {
            return None;
        }
        let known = |f: &&mut File| f.pieces > 0 && f.inode == part.file.inode;
        let file = self.files.iter_mut().find(known)?;
        let closed = *file;
        file.fd = -1;
        (closed.fd >= 0).then_some(closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(start * PAGE, end * PAGE).unwrap()
    }

    fn table(pieces: &[(u64, u64, i32)]) -> Box<Table> {
        let mut t = Box::new(Table::new());
        for (start, end, fd) in pieces {
            assert!(t.enter(range(*start, *end), File::new(*fd, *fd as u64), 0, false));
        }
        t
    }

    #[test]
    fn what_is_cut_out_is_cut_out_of_the_middle() {
        let mut t = table(&[(10, 20, 3)]);
        let part = t.take(range(13, 15)).unwrap();
        assert_eq!((part.range, part.offset), (range(13, 15), 3 * PAGE));
        assert!(!part.last);
        assert_eq!(t.find(range(0, 14)).unwrap().range, range(10, 13));
        let rest = t.find(range(14, 99)).unwrap();
        assert_eq!((rest.range, rest.offset), (range(15, 20), 5 * PAGE));
        assert!(!t.is_whole(range(10, 13)));
        assert!(t.put(&part));
        assert_eq!(t.find(range(13, 14)).unwrap().offset, 3 * PAGE);
    }

    #[test]
    fn the_last_piece_takes_the_file_along() {
        let mut t = table(&[(10, 20, 3), (20, 30, 4)]);
        assert!(!t.take(range(12, 15)).unwrap().last);
        assert!(!t.take(range(10, 20)).unwrap().last);
        let last = t.take(range(10, 20)).unwrap();
        assert!(last.last && last.file.fd == 3);
        assert_eq!(t.find(range(0, 99)).unwrap().file.fd, 4);
        assert!(t.put(&last));
        assert_eq!(t.find(range(0, 99)).unwrap().file.fd, 3);
    }

    #[test]
    fn a_file_grows_only_where_it_is_empty() {
        let mut t = table(&[(10, 20, 3)]);
        assert!(t.is_whole(range(10, 20)));
        assert_eq!(t.ends_at(20 * PAGE).unwrap().used, 10 * PAGE);
        t.take(range(18, 20));
        assert!(!t.is_whole(range(10, 18)));
        assert!(t.ends_at(18 * PAGE).is_none());
    }

    #[test]
    fn a_file_is_closed_when_nothing_of_it_is_shared() {
        let mut t = table(&[(10, 20, 3)]);
        assert!(t.freeze(range(10, 12)).is_none());
        assert!(t.find(range(11, 12)).unwrap().frozen);
        assert_eq!(t.freeze(range(12, 20)).unwrap().fd, 3);
        assert_eq!(t.find(range(13, 14)).unwrap().file.fd, -1);
        let mut closed = 0;
        t.inherit(|_| closed += 1, |_| true);
        assert_eq!((closed, t.find(range(0, 99))), (0, None));
    }

    #[test]
    fn marks_go_with_what_they_are_on() {
        let mut t = table(&[(10, 20, 3)]);
        let keyed = |m: Marks| m.with_key(2);
        t.mark(range(12, 15), keyed);
        assert!(!t.is_uniform(range(10, 20)) && t.is_uniform(range(12, 15)));
        assert!(!t.is_whole(range(10, 20)));
        let part = t.find(range(12, 99)).unwrap();
        assert_eq!((part.range, part.offset), (range(12, 15), 2 * PAGE));
        assert_eq!(part.marks, keyed(Marks::NONE));
        t.take(part.range);
        assert!(t.put(&part));
        t.freeze(part.range);
        assert_eq!(t.find(part.range).unwrap().marks, part.marks);
        let mut closed = 0;
        // What was live has become a copy; what is frozen is still marked.
        t.inherit(|_| closed += 1, |_| true);
        assert_eq!(closed, 1);
        let left = t.find(range(0, 99)).unwrap();
        assert_eq!(
            (left.range, left.marks, left.file.fd),
            (part.range, part.marks, -1)
        );
        assert!(t.take(part.range).unwrap().last);
        let mut t = table(&[(10, 20, 3)]);
        t.mark(range(12, 15), keyed);
        t.mark(range(0, 99), |m| m.with_key(0));
        assert!(t.is_whole(range(10, 20)));
    }

    #[test]
    fn there_is_an_end_to_it() {
        let mut t = Box::new(Table::new());
        let mut n = 0;
        while t.has_room(FILES) {
            n += 1;
            let at = 2 * n;
            assert!(t.enter(range(at, at + 1), File::new(3, n), 0, false));
        }
        assert_eq!(n, FILES as u64);
        assert!(!t.enter(range(9999, 10000), File::new(3, 0), 0, false));
    }
}
