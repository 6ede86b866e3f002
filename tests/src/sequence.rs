//! Sequences of memory calls for c-tests/differ.c: drawn from a seed, made shorter, written as C.

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Pages of an arena.
pub const PAGES: u64 = 48;
/// Pages of a file.
pub const FILE_PAGES: u64 = 16;

/// Numbers that look random and are the same for the same seed.
#[derive(Debug)]
struct Draw(u64);

impl Draw {
    fn new(seed: u64) -> Self {
        let mut draw = Self(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed.wrapping_add(1)) | 1);
        for _ in 0..8 {
            draw.below(2);
        }
        draw
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// An address of an arena.
#[derive(Clone, Copy, Debug)]
struct Place {
    arena: char,
    offset: u64,
}

impl Place {
    fn left(self) -> u64 {
        (PAGES * PAGE).saturating_sub(self.offset)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{:x}", self.arena, self.offset)
    }
}

/// Whether calls may lock all that is mapped: not where RLIMIT_MEMLOCK binds, under which the
/// shim's own memory counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs)]
pub enum Limit {
    Binds,
    None,
}

#[derive(Debug)]
struct Generator {
    draw: Draw,
    limit: Limit,
}

/// Draws a sequence of calls, a call a line.
pub fn draw(seed: u64, limit: Limit) -> Vec<String> {
    let mut it = Generator {
        draw: Draw::new(seed),
        limit,
    };
    let calls = 4 + it.draw.below(28);
    let mut lines = it.begin();
    let mut forked = false;
    for _ in 0..calls {
        let mut line = it.call();
        if it.draw.one_in(30) {
            line = if forked { "join" } else { "fork" }.into();
            forked = !forked;
        } else if it.draw.one_in(30) {
            line.insert_str(0, "handler ");
        }
        lines.push(line);
        if it.draw.one_in(2) {
            lines.push(it.write());
        }
        if it.draw.one_in(6) {
            lines.push("look".into());
        }
    }
    lines
}

impl Generator {
    /// Something to begin with: private memory, parts of which are written.
    fn begin(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for arena in ['a', 'b'] {
            let offset = self.draw.below(8) * PAGE;
            let place = Place { arena, offset };
            let flags = 0x10_0022;
            lines.push(format!("mmap {place} {:x} 3 {flags:x} 0 0", place.left()));
            lines.push(format!("write {place} {:x}", place.left() / 2));
        }
        lines.truncate(self.draw.of(&[2, 3, 4, 4]));
        if lines.len() == 2 && self.draw.one_in(2) {
            // MAP_LOCKED or not, and room to grow.
            let flags = self.draw.of(&[0x122, 0x122, 0x2122]);
            lines.push(format!("mmap b+20000 8000 3 {flags:x} 0 0"));
        }
        lines
    }

    fn place(&mut self) -> Place {
        let page = if self.draw.one_in(24) {
            PAGES - 1 + self.draw.below(2)
        } else {
            self.draw.below(PAGES)
        };
        let odd = if self.draw.one_in(50) {
            1 + self.draw.below(PAGE - 1)
        } else {
            0
        };
        Place {
            arena: self.draw.of(&['a', 'a', 'b']),
            offset: page * PAGE + odd,
        }
    }

    fn length(&mut self) -> u64 {
        match self.draw.below(14) {
            0 => 0,
            1 => PAGE * self.draw.below(4) + 1 + self.draw.below(PAGE),
            2 | 3 => PAGES * PAGE,
            4..=6 => PAGE * (1 + self.draw.below(24)),
            _ => PAGE * (1 + self.draw.below(6)),
        }
    }

    /// A part of an arena.
    fn part(&mut self) -> (Place, u64) {
        if self.draw.one_in(16) {
            let arena = self.draw.of(&['a', 'b']);
            return (Place { arena, offset: 0 }, PAGES * PAGE);
        }
        let place = self.place();
        let length = self.length();
        (place, length.min(place.left()))
    }

    fn protection(&mut self) -> u64 {
        self.draw.of(&[3, 3, 3, 1, 0, 5])
    }

    fn write(&mut self) -> String {
        let (mut place, length) = self.part();
        place.offset &= !(PAGE - 1);
        format!("write {place} {length:x}")
    }

    fn call(&mut self) -> String {
        match self.draw.below(80) {
            0..=11 => self.mmap(),
            12..=15 => self.plain("munmap"),
            16..=27 => self.mremap(),
            28..=33 => self.mprotect(),
            34..=45 => self.madvise(),
            46..=51 => self.mlock(),
            52..=54 => self.plain("munlock"),
            55..=58 => self.all(),
            59..=61 => self.msync(),
            62..=63 => self.brk(),
            64..=67 => self.shared_memory(),
            68..=69 => self.plain("register"),
            70..=71 => self.file(),
            72 => self.limits(),
            73 => self.draw.of(&["closes", "input"]).into(),
            74 | 75 => format!("grow b+{:x}", PAGE * (24 + self.draw.below(8))),
            _ => self.sealed_move(),
        }
    }

    fn plain(&mut self, name: &str) -> String {
        let (place, length) = self.part();
        format!("{name} {place} {length:x}")
    }

    fn mmap(&mut self) -> String {
        let (place, length) = self.part();
        let protection = self.protection();
        let mut flags = self.draw.of(&[2, 2, 2, 1]);
        let file = self.draw.of(&[0, 0, 0, 1, 2]);
        let mut offset = 0;
        if file == 0 {
            flags |= 0x20;
        } else if self.draw.one_in(20) {
            offset = 1 + self.draw.below(PAGE);
        } else {
            offset = PAGE * self.draw.below(FILE_PAGES - 4);
        }
        // MAP_FIXED, MAP_FIXED_NOREPLACE, neither.
        flags |= self.draw.of(&[0x10, 0x10, 0x10, 0x10, 0x10_0000, 0]);
        // MAP_LOCKED, POPULATE, NORESERVE, GROWSDOWN, STACK.
        for (n, flag) in [
            (8, 0x2000),
            (8, 0x8000),
            (8, 0x4000),
            (40, 0x100),
            (30, 0x2_0000),
        ] {
            if self.draw.one_in(n) {
                flags |= flag;
            }
        }
        if flags & 0x100 != 0 && flags & 0x2 == 0 {
            flags &= !0x100;
        }
        format!("mmap {place} {length:x} {protection:x} {flags:x} {file} {offset:x}")
    }

    fn mremap(&mut self) -> String {
        let (place, old) = self.part();
        let to = self.place();
        let mut new = if self.draw.one_in(2) {
            old
        } else {
            self.length()
        };
        let mut flags = 0;
        if !self.draw.one_in(6) {
            // MREMAP_MAYMOVE, FIXED, DONTUNMAP.
            flags = 1 | self.draw.of(&[0, 2, 2]) | self.draw.of(&[0, 0, 0, 4]);
        }
        if self.draw.one_in(40) {
            flags |= self.draw.below(16);
        }
        if flags & 2 != 0 {
            new = new.min(to.left());
        } else if new > old {
            new = new.min(place.left());
        }
        format!("mremap {place} {old:x} {new:x} {flags:x} {to}")
    }

    /// A whole arena's move, after parts of it were made different: several mappings at once.
    fn sealed_move(&mut self) -> String {
        let (mut place, mut to) = (self.place(), self.place());
        place.offset &= !(PAGE - 1);
        to.offset &= !(PAGE - 1);
        to.arena = if place.arena == 'a' { 'b' } else { 'a' };
        let length = place.left().min(to.left());
        let flags = self.draw.of(&[3, 3, 7]);
        format!("mremap {place} {length:x} {length:x} {flags:x} {to}")
    }

    fn mprotect(&mut self) -> String {
        let (place, length) = self.part();
        let mut protection = self.protection();
        if self.draw.one_in(40) {
            protection = self.draw.below(64);
        }
        match self.draw.below(6) {
            // The key is told plus one: -1 is none.
            0 => format!(
                "pkey_mprotect {place} {length:x} {protection:x} {:x}",
                self.draw.below(2)
            ),
            _ => format!("mprotect {place} {length:x} {protection:x}"),
        }
    }

    fn madvise(&mut self) -> String {
        let (place, length) = self.part();
        // NORMAL to WILLNEED, DONTNEED, FREE, REMOVE, DONTFORK, DOFORK, (NO)HUGEPAGE, (DO)DONTDUMP,
        // WIPEONFORK, KEEPONFORK, POPULATE_READ, _WRITE, DONTNEED_LOCKED, GUARD_INSTALL, _REMOVE; one
        // that is none.
        let all = [
            0, 1, 2, 3, 4, 4, 4, 4, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 22, 23, 24, 24, 102, 102,
            103, 77,
        ];
        let advice = self.draw.of(&all);
        if self.draw.one_in(12) {
            // COLD, WILLNEED, and what is refused.
            let advice = self.draw.of(&[20, 3, 4, 24]);
            return format!("process_madvise {place} {length:x} {advice:x}");
        }
        format!("madvise {place} {length:x} {advice:x}")
    }

    fn mlock(&mut self) -> String {
        let (place, length) = self.part();
        match self.draw.below(4) {
            0 => format!("mlock2 {place} {length:x} 1"),
            1 => format!(
                "mlock2 {place} {length:x} {}",
                if self.draw.one_in(8) { 2 } else { 0 }
            ),
            _ => format!("mlock {place} {length:x}"),
        }
    }

    fn all(&mut self) -> String {
        if self.draw.one_in(2) {
            return "munlockall".into();
        }
        // MCL_CURRENT, FUTURE, ONFAULT.
        let flags = match self.limit {
            Limit::Binds => self.draw.of(&[2, 6, 2, 6, 4]),
            Limit::None => self.draw.below(8),
        };
        format!("mlockall {flags:x}")
    }

    fn msync(&mut self) -> String {
        let (place, length) = self.part();
        let flags = self.draw.of(&[4, 1, 3, 6, 5]);
        format!("msync {place} {length:x} {flags:x}")
    }

    fn brk(&mut self) -> String {
        let odd = self.draw.below(2) * self.draw.below(PAGE);
        format!("brk {:x}", self.draw.below(64) * PAGE + odd)
    }

    fn shared_memory(&mut self) -> String {
        let mut place = self.place();
        if self.draw.one_in(2) {
            return format!("shmdt {place}");
        }
        let length = PAGE * (1 + self.draw.below(5));
        place.offset &= !(PAGE - 1);
        if place.left() < length {
            place.offset = 0;
        }
        // SHM_REMAP, SHM_RDONLY.
        let flags = self.draw.of(&[0, 0x4000, 0x4000]) | self.draw.of(&[0, 0, 0, 0x1000]);
        format!("shmat {place} {length:x} {flags:x}")
    }

    fn file(&mut self) -> String {
        let (file, page) = (1 + self.draw.below(2), self.draw.below(FILE_PAGES));
        match self.draw.below(5) {
            0 => format!("seal {:x}", self.draw.of(&[2, 4, 8, 16])),
            1 | 2 => format!("truncate {file} {:x}", page * PAGE),
            _ => format!(
                "punch {file} {:x} {:x}",
                page * PAGE,
                PAGE * (1 + self.draw.below(4))
            ),
        }
    }

    fn limits(&mut self) -> String {
        match self.draw.below(3) {
            // RLIMIT_MEMLOCK; RLIMIT_DATA of nothing more; both undone.
            0 => format!("limit 0 {:x}", self.draw.below(20) * PAGE),
            1 => format!("limit {} ffffffff", self.draw.below(2)),
            _ => format!("limit 1 {:x}", 1 << 16),
        }
    }
}

/// Returns the sequence with all that it maps populated at once (MAP_POPULATE).
pub fn populated(lines: &[String]) -> Vec<String> {
    let populate = |line: &String| {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let at = words
            .iter()
            .position(|word| word == "mmap")
            .map(|at| at + 4);
        if let Some(word) = at.and_then(|at| words.get_mut(at)) {
            let flags = u64::from_str_radix(word, 16).unwrap_or(0);
            *word = format!("{:x}", flags | 0x8000);
        }
        words.join(" ")
    };
    lines.iter().map(populate).collect()
}

/// Returns the shortest sequence that is found from this one and for which `differs` still holds:
/// lines are left out, runs of them first.
pub fn shorten(lines: &[String], mut differs: impl FnMut(&[String]) -> bool) -> Vec<String> {
    let mut now = lines.to_vec();
    let mut size = now.len().div_ceil(2);
    while size > 0 {
        let (mut at, mut shorter) = (0, false);
        while at < now.len() {
            let mut without = now.clone();
            without.drain(at..(at + size).min(now.len()));
            if differs(&without) {
                now = without;
                shorter = true;
            } else {
                at += size;
            }
        }
        if !shorter || size > 1 {
            size /= 2;
        }
    }
    now
}

/// Files of 16 pages, as c-tests/differ.c has them.
const PROLOGUE: &str = r#"#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static int filled(int fd)
{
	char page[4096];
	for (int n = 0; n < 16; n++) {
		memset(page, 200 + n, sizeof page);
		if (write(fd, page, sizeof page) < 0)
			perror("write");
	}
	return fd;
}
int main(void)
{
	int disk = filled(open("/tmp", O_TMPFILE | O_RDWR, 0600));
	int memory = filled(memfd_create("differ", MFD_ALLOW_SEALING));
	char *end = sbrk(0);
	(void)disk, (void)memory, (void)end;
"#;

/// Returns the sequence as a C program, for who looks at it without the harness.
pub fn as_c(lines: &[String]) -> String {
    let mut text = String::from(PROLOGUE);
    let mut children = 0;
    let last = "join".to_owned();
    for line in lines.iter().chain([&last]) {
        match line.as_str() {
            "fork" => {
                text.push_str("\tif (fork() == 0) {\n");
                children += 1;
            }
            // The child of a child ends there, too.
            "join" => {
                text.push_str(&"\t_exit(0); } wait(NULL);\n".repeat(children));
                children = 0;
            }
            _ => text.extend(["\t", &statement(line), "\n"]),
        }
    }
    text.push_str("}\n");
    text
}

fn statement(line: &str) -> String {
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default();
    if name == "handler" {
        let call = line.trim_start_matches("handler ");
        return format!("/* in a signal handler: */ {}", statement(call));
    }
    let value = |word: &str| {
        let pointer = |base: u64, offset| {
            let offset = u64::from_str_radix(offset, 16).unwrap_or(0);
            format!("(char *)0x{:x}", base + offset)
        };
        match word.split_once('+') {
            Some(("a", offset)) => pointer(0x2000_0000_0000, offset),
            Some((_, offset)) => pointer(0x2100_0000_0000, offset),
            None => format!("0x{word}"),
        }
    };
    let mut v: Vec<String> = words.map(value).collect();
    let file = |word: &str| match word {
        "0x1" => "disk",
        "0x2" => "memory",
        _ => "-1",
    };
    if name == "mmap" && v.len() == 6 {
        v[4] = file(&v[4]).into();
    }
    let all = v.join(", ");
    match name {
        "write" => format!(
            "for (char *p = {0}; p < {0} + {1}; p += 4096) *p = 7;",
            v[0], v[1]
        ),
        "grow" => format!("*{} = 7; /* if nothing is mapped there */", v[0]),
        "look" => "/* look at what is there */".into(),
        "register" => {
            format!("/* userfaultfd with UFFD_FEATURE_SIGBUS: register {all}, missing */")
        }
        "brk" => format!("syscall(SYS_brk, end + {all});"),
        "truncate" => format!("ftruncate({}, {});", file(&v[0]), v[1]),
        "punch" => format!("fallocate({}, 3, {}, {});", file(&v[0]), v[1], v[2]),
        "seal" => format!("fcntl(memory, F_ADD_SEALS, {all});"),
        "input" => "dup2(memory, 0);".into(),
        "limit" | "closes" => format!("/* {line} */"),
        "shmat" => format!(
            "shmat(shmget(IPC_PRIVATE, {}, 0600), {}, {});",
            v[1], v[0], v[2]
        ),
        "pkey_mprotect" => format!("pkey_mprotect({}, {}, {}, {} - 1);", v[0], v[1], v[2], v[3]),
        "process_madvise" => format!("/* process_madvise */ madvise({all});"),
        _ => format!("{name}({all}); perror(\"{name}\");"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_again() {
        assert_eq!(draw(7, Limit::None), draw(7, Limit::None));
        assert_ne!(draw(7, Limit::None), draw(8, Limit::None));
    }

    #[test]
    fn each_call_is_drawn() {
        let names = [
            "mmap",
            "munmap",
            "mremap",
            "mprotect",
            "pkey_mprotect",
            "madvise",
            "process_madvise",
            "mlock",
            "mlock2",
            "munlock",
            "mlockall",
            "munlockall",
            "msync",
            "brk",
            "shmat",
            "shmdt",
            "register",
            "truncate",
            "punch",
            "seal",
            "limit",
            "closes",
            "input",
            "fork",
            "join",
            "handler",
            "look",
            "write",
        ];
        let drawn: Vec<_> = (0..300).flat_map(|seed| draw(seed, Limit::None)).collect();
        for name in names {
            let is = |line: &String| line.split(' ').next() == Some(name);
            assert!(drawn.iter().any(is), "{name}");
        }
    }

    #[test]
    fn what_matters_is_left() {
        let lines: Vec<_> = (0..40).map(|n| n.to_string()).collect();
        let needs = |of: &[String]| ["3", "17", "39"].iter().all(|n| of.iter().any(|l| l == n));
        assert_eq!(shorten(&lines, needs), ["3", "17", "39"]);
    }

    #[test]
    fn c_compiles() {
        let lines: Vec<_> = (0..300).flat_map(|seed| draw(seed, Limit::None)).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("sequence.c");
        std::fs::write(&file, as_c(&lines)).expect("a file");
        let mut gcc = std::process::Command::new("gcc");
        let done = gcc.args(["-w", "-fsyntax-only"]).arg(&file).status();
        assert!(done.expect("gcc").success());
    }

    #[test]
    fn c_has_each_call() {
        let lines = ["mmap a+0 1000 3 100022 0 0", "fork", "madvise a+0 1000 4"].map(String::from);
        let text = as_c(&lines);
        assert!(text.contains("mmap((char *)0x200000000000, 0x1000, 0x3, 0x100022, -1, 0x0);"));
        assert!(text.contains("_exit(0); } wait(NULL);"));
    }
}
