//! Coverage checked independently: `regall dump` against what the kernel says.
//! Each byte of a mapping must be in exactly one line, and the line must be true.

use std::process::Command;
use std::time::Duration;

use crate::mode::Mode;
use crate::procfs::{self, Vma};
use crate::{build, child};

const PAGE: u64 = 4096;
/// Bytes of a helper's window.
const WINDOW: u64 = 512 << 10;
/// More than the shim may ever hold for itself in these tests: 256 MiB are reserved for the
/// directory of a process that has more rights than its user.
const SHIM_MOST: u64 = 320 << 20;

/// A line of `regall dump`.
#[derive(Clone, Debug)]
pub struct Line {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// As in /proc/PID/maps.
    pub prot: String,
    /// `registered` or `excluded`.
    pub state: String,
    /// Reason or `-`.
    pub reason: String,
    /// Keys of the memory region that holds it.
    pub lkey: Option<u32>,
    /// None also if the region is not for peers.
    pub rkey: Option<u32>,
    /// `yes` or a reason.
    pub pin: String,
    /// `yes` or a reason.
    pub hca: String,
}

impl Line {
    /// `registered` or the reason.
    pub fn word(&self) -> &str {
        if self.state == "registered" {
            &self.state
        } else {
            &self.reason
        }
    }
}

/// A `# key` line of `regall dump`: a memory region of a domain whose keys do not
/// stand in the lines of ranges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// The kernel's handle of its protection domain.
    pub pd: u32,
    /// What it may be used for: words with commas between them.
    pub access: String,
    /// Local key.
    pub lkey: u32,
    /// Remote key; none if it is not for peers.
    pub rkey: Option<u32>,
}

/// All that `regall dump` says.
#[derive(Clone, Debug)]
pub struct Dump {
    /// The ranges.
    pub lines: Vec<Line>,
    /// The memory regions of all domains but the first.
    pub keys: Vec<Key>,
}

/// What a program claims of a range of its own.
#[derive(Clone, Debug)]
pub struct Claim {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// `registered` or a reason.
    pub word: String,
}

/// What the checker has to know beside what it reads.
#[derive(Clone, Debug)]
pub struct Expected {
    /// How the process runs.
    pub mode: Mode,
    /// A budget was set: `limit` is a true reason.
    pub limited: bool,
    /// Something was excluded or opted out: `opted-out` is a true reason.
    pub opted_out: bool,
}

impl Expected {
    /// Nothing but the mode.
    pub fn of(mode: Mode) -> Self {
        Self {
            mode,
            limited: false,
            opted_out: false,
        }
    }
}

/// `regall dump`'s lines of ranges, or why there are none.
pub fn dump(pid: u32) -> Result<Vec<Line>, String> {
    whole(pid).map(|dump| dump.lines)
}

/// All that `regall dump` says, or why it says nothing.
pub fn whole(pid: u32) -> Result<Dump, String> {
    let mut command = Command::new(build::regall());
    let done = child::run(
        command.arg("dump").arg(pid.to_string()),
        Duration::from_secs(20),
    );
    if done.end() != "exit 0" {
        return Err(format!(
            "regall dump: {}: {}",
            done.end(),
            done.stderr.trim()
        ));
    }
    parse(pid, &done.stdout)
}

/// Parses `regall dump`'s output.
pub fn parse(pid: u32, text: &str) -> Result<Dump, String> {
    let mut lines = text.lines();
    let head: Vec<_> = lines.next().unwrap_or("").split(' ').collect();
    match head[..] {
        ["#", "regall", "1", "pid", p, "start", _, "generation", _, "busy", busy] => {
            if p != pid.to_string() {
                return Err(format!("dump is of pid {p}"));
            }
            if busy != "0" {
                return Err(format!("{busy} hooked calls in progress at a quiet point"));
            }
        }
        _ => return Err(format!("dump begins with {head:?}")),
    }
    let (lines, keys): (Vec<_>, Vec<_>) = lines.partition(|l| !l.starts_with('#'));
    let wrong = |l: &str| format!("dump says {l:?}");
    let lines = lines.into_iter().map(|l| line(l).ok_or_else(|| wrong(l)));
    let keys = keys.into_iter().map(|l| key(l).ok_or_else(|| wrong(l)));
    Ok(Dump {
        lines: lines.collect::<Result<_, _>>()?,
        keys: keys.collect::<Result<_, _>>()?,
    })
}

fn line(text: &str) -> Option<Line> {
    let words: Vec<_> = text.split(' ').collect();
    let [range, prot, state, reason, lkey, rkey, pin, hca] = words[..] else {
        return None;
    };
    let (start, end) = addresses(range)?;
    Some(Line {
        start,
        end,
        prot: prot.into(),
        state: state.into(),
        reason: reason.into(),
        lkey: number(lkey)?,
        rkey: number(rkey)?,
        pin: pin.into(),
        hca: hca.into(),
    })
}

fn key(text: &str) -> Option<Key> {
    let words: Vec<_> = text.split(' ').collect();
    let ["#", "key", range, pd, access, lkey, rkey] = words[..] else {
        return None;
    };
    let (start, end) = addresses(range)?;
    Some(Key {
        start,
        end,
        pd: pd.parse().ok()?,
        access: access.into(),
        lkey: number(lkey)??,
        rkey: number(rkey)?,
    })
}

fn addresses(range: &str) -> Option<(u64, u64)> {
    let (start, end) = range.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some((hex(start)?, hex(end)?)).filter(|(start, end)| start < end)
}

/// A key, or `-` for none; `None` if it is neither.
fn number(text: &str) -> Option<Option<u32>> {
    match text {
        "-" => Some(None),
        key => u32::from_str_radix(key.strip_prefix("0x")?, 16)
            .ok()
            .map(Some),
    }
}

/// How many mappings a process has, and how many bytes of them are said to be the shim's.
pub fn own_memory(pid: u32) -> Result<(usize, u64), String> {
    let lines = dump(pid)?;
    let own = lines.iter().filter(|l| l.word() == "shim");
    let bytes = own.map(|l| l.end - l.start).sum();
    Ok((lines.len(), bytes))
}

/// Everything that is wrong with a process's coverage now.
pub fn check(pid: u32, claims: &[Claim], expected: &Expected) -> Vec<String> {
    let both = whole(pid).and_then(|d| procfs::smaps(pid).map(|m| (d, m)));
    let (dump, maps) = match both {
        Ok(both) => both,
        Err(e) => return vec![e],
    };
    let mut problems = compare(pid, &dump.lines, &maps, expected);
    problems.extend(dump.keys.iter().flat_map(|k| unmapped(k, &maps)));
    if expected.mode.pins() {
        let claims = claims.iter();
        problems.extend(claims.flat_map(|c| unkept(c, &dump.lines, expected)));
    }
    problems
}

/// The lines against the mappings.
pub fn compare(pid: u32, dump: &[Line], maps: &[Vma], expected: &Expected) -> Vec<String> {
    let mut problems = Vec::new();
    for pair in dump.windows(2) {
        if pair[0].end > pair[1].start {
            problems.push(format!("dump overlaps at {:x}", pair[1].start));
        }
    }
    for line in dump {
        for (from, to) in holes(line.start, line.end, maps) {
            problems.push(format!("{from:x}-{to:x} is not mapped: {}", line.word()));
        }
    }
    let facts = Facts {
        pid,
        expected,
        forked: procfs::is_fork(pid),
        lock_limit: procfs::lock_limit(pid),
    };
    let mut shim_bytes = 0;
    for vma in maps {
        let mut at = vma.start;
        let from = dump.partition_point(|l| l.end <= vma.start);
        for line in dump[from..].iter().take_while(|l| l.start < vma.end) {
            if line.start > at {
                problems.push(gap(at, line.start, vma));
            }
            let part = (line.start.max(vma.start), line.end.min(vma.end));
            if let Err(why) = facts.is_true(line, vma, part) {
                let (s, e) = part;
                problems.push(format!(
                    "{s:x}-{e:x}: {} pin {}: {why} ({} {} [{}])",
                    line.word(),
                    line.pin,
                    vma.prot,
                    vma.name,
                    vma.flags.join(" ")
                ));
            }
            if line.word() == "shim" {
                shim_bytes += part.1 - part.0;
            }
            at = part.1;
        }
        // The kernel maps that page by itself, when a probe is hit.
        if at < vma.end && vma.name != "[uprobes]" {
            problems.push(gap(at, vma.end, vma));
        }
    }
    if shim_bytes > SHIM_MOST {
        problems.push(format!("{shim_bytes} bytes are said to be the shim's own"));
    }
    problems
}

/// What of a memory region is not mapped. One for the whole address space (on
/// demand, from 0) is not of mapped memory.
fn unmapped(key: &Key, maps: &[Vma]) -> Vec<String> {
    if key.start == 0 && key.access.split(',').any(|word| word == "on-demand") {
        return Vec::new();
    }
    let missing = holes(key.start, key.end, maps).into_iter();
    missing
        .map(|(from, to)| format!("{from:x}-{to:x} is not mapped: {key:?}"))
        .collect()
}

/// What of a range is not mapped.
fn holes(start: u64, end: u64, maps: &[Vma]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut at = start;
    let from = maps.partition_point(|vma| vma.end <= start);
    for vma in maps[from..].iter().take_while(|vma| vma.start < end) {
        if at < vma.start {
            found.push((at, vma.start));
        }
        at = vma.end;
    }
    if at < end {
        found.push((at, end));
    }
    found
}

fn gap(start: u64, end: u64, vma: &Vma) -> String {
    format!(
        "gap {start:x}-{end:x} in {} {} [{}]",
        vma.prot,
        vma.name,
        vma.flags.join(" ")
    )
}

struct Facts<'a> {
    pid: u32,
    expected: &'a Expected,
    forked: bool,
    lock_limit: Option<u64>,
}

impl Facts<'_> {
    /// Whether what `line` says of `part` of `vma` is so.
    fn is_true(&self, line: &Line, vma: &Vma, part: (u64, u64)) -> Result<(), String> {
        if line.prot != vma.prot {
            return Err(format!("protection is said to be {}", line.prot));
        }
        let held = ["yes", "kept"].contains(&line.pin.as_str());
        let registered = held || line.hca == "yes";
        if (line.state == "registered") != registered || registered != (line.reason == "-") {
            return Err(format!(
                "state {}, reason {}, hca {}",
                line.state, line.reason, line.hca
            ));
        }
        if line.hca == "yes" && line.lkey.is_none() {
            return Err("no region holds what the adapter is said to hold".into());
        }
        if line.pin == "yes" {
            return self.pinned(vma);
        }
        let fine = match line.pin.as_str() {
            "no-access" => vma.prot.starts_with("---"),
            "kernel" => vma.name.starts_with("[v") || vma.name == "[uprobes]",
            "device" => vma.has("io") || vma.has("pf"),
            // (The stand-in of c-tests/managed.c, of which the kernel shows what it is.)
            "managed" => vma.name == "/dev/zero (deleted)",
            "shim" => {
                // A helper's window: shared memory, or under a filter a file without a name.
                let nameless = ["/dev/zero (deleted)", "/dev/shm/#"];
                let is_window = vma.end - vma.start == WINDOW
                    && nameless.iter().any(|name| vma.name.starts_with(name));
                let plain = vma.name.is_empty() || vma.name.starts_with("[anon");
                vma.name.contains("regall") || plain || is_window
            }
            "opted-out" => self.expected.opted_out,
            "limit" => self.expected.limited || self.lock_limit.is_some(),
            "inherited" => self.forked,
            "off" => self.expected.mode == Mode::Off,
            "kept" => self.expected.mode == Mode::Auto && !procfs::has_swap() && !is_cache(vma),
            "cache" => self.expected.mode == Mode::Auto && is_cache(vma) && !vma.has("lo"),
            "refused:1" if procfs::is_filtered(self.pid) => true,
            refused if refused.starts_with("refused:") => self.refusable(vma, part),
            _ => false,
        };
        if fine {
            Ok(())
        } else {
            Err("not a true reason".into())
        }
    }

    fn pinned(&self, vma: &Vma) -> Result<(), String> {
        if self.expected.mode == Mode::Off {
            return Err("nothing is to be pinned".into());
        }
        if vma.has("ht") {
            return Ok(()); // huge pages are never swapped, and never marked
        }
        if !vma.has("lo") {
            return Err("the kernel has not locked it".into());
        }
        let lazy = ["lf", "gu", "um", "uw", "gd"].iter().any(|f| vma.has(f));
        let whole = self.size_in_file(vma);
        if !lazy && vma.has("wr") && vma.rss < whole && self.lock_limit.is_none() {
            return Err(format!(
                "locked, but only {} of {whole} bytes are resident",
                vma.rss
            ));
        }
        Ok(())
    }

    /// Why the kernel may refuse to lock something.
    fn refusable(&self, vma: &Vma, part: (u64, u64)) -> bool {
        let special = ["de", "io", "pf", "mm", "gu", "ss"]
            .iter()
            .any(|f| vma.has(f));
        let beyond_file = part.0 - vma.start >= self.size_in_file(vma);
        let partly = part.1 - vma.start > self.size_in_file(vma);
        special
            || vma.name.starts_with("/secretmem")
            || beyond_file
            || partly
            || self.lock_limit.is_some()
    }

    /// Bytes of a mapping that its file has pages for.
    fn size_in_file(&self, vma: &Vma) -> u64 {
        let size = vma.end - vma.start;
        if !vma.name.starts_with('/') {
            return size;
        }
        let file = procfs::file_size(self.pid, vma).unwrap_or(u64::MAX - PAGE);
        let pages = file.div_ceil(PAGE) * PAGE;
        pages.saturating_sub(vma.offset).min(size)
    }
}

/// Returns whether a mapping is of a file's pages that the kernel can read again.
fn is_cache(vma: &Vma) -> bool {
    let memory = [
        "/memfd:",
        "/dev/zero",
        "/dev/shm/",
        "/SYSV",
        "/anon_hugepage",
        "/[aio]",
    ];
    let file = vma.name.starts_with('/') && !memory.iter().any(|m| vma.name.starts_with(m));
    file && (vma.prot.ends_with('s') || !vma.prot.contains('w')) && !procfs::is_on_tmpfs(vma)
}

/// What of a claim is not so. Where there is a limit that the program has not reckoned with, what
/// it calls registered may be beyond it, and `auto` calls page cache what it is.
fn unkept(claim: &Claim, dump: &[Line], expected: &Expected) -> Vec<String> {
    let mut problems = Vec::new();
    let mut at = claim.start;
    for line in dump
        .iter()
        .filter(|l| l.start < claim.end && l.end > claim.start)
    {
        let other = match line.word() {
            "limit" => expected.limited,
            "cache" => expected.mode == Mode::Auto,
            _ => false,
        };
        if line.word() != claim.word && !(other && claim.word == "registered") {
            problems.push(format!(
                "{:x}-{:x} is {}, not {} as the program says",
                line.start,
                line.end,
                line.word(),
                claim.word
            ));
        }
        if line.start > at {
            problems.push(format!("nothing is said of {at:x}-{:x}", line.start));
        }
        at = line.end;
    }
    if at < claim.end {
        problems.push(format!("nothing is said of {at:x}-{:x}", claim.end));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dump of this process that a perfect shim in REGALL_PIN=off would give.
    fn perfect(maps: &[Vma]) -> Vec<Line> {
        let word = |v: &Vma| match () {
            () if v.name.starts_with("[v") => "kernel",
            () if v.prot.starts_with("---") => "no-access",
            () => "off",
        };
        let line = |v: &Vma| Line {
            start: v.start,
            end: v.end,
            prot: v.prot.clone(),
            state: "excluded".into(),
            reason: word(v).into(),
            lkey: None,
            rkey: None,
            pin: word(v).into(),
            hca: "off".into(),
        };
        maps.iter().map(line).collect()
    }

    #[test]
    fn a_wrong_dump_is_found_out() {
        let me = std::process::id();
        let maps = procfs::smaps(me).unwrap();
        let off = Expected::of(Mode::Off);
        let good = perfect(&maps);
        assert_eq!(compare(me, &good, &maps, &off), Vec::<String>::new());

        let broken = |change: &dyn Fn(&mut Vec<Line>)| {
            let mut lines = good.clone();
            change(&mut lines);
            compare(me, &lines, &maps, &off)
        };
        assert!(!broken(&|l| drop(l.remove(3))).is_empty(), "a missing line");
        assert!(!broken(&|l| l.truncate(2)).is_empty(), "a short dump");
        assert!(!broken(&|l| l[2].end -= PAGE).is_empty(), "a missing page");
        assert!(!broken(&|l| l[1].start -= PAGE).is_empty(), "an overlap");
        assert!(
            !broken(&|l| l[0].prot = "rwxp".into()).is_empty(),
            "a wrong protection"
        );
        for lie in [
            "no-access",
            "kernel",
            "device",
            "limit",
            "inherited",
            "opted-out",
            "refused:12",
            "scope",
            "?",
        ] {
            let told = broken(&|l| {
                l[0].pin = lie.into();
                l[0].reason = lie.into();
            });
            assert!(!told.is_empty(), "{lie} of the program's text");
        }
        let unheld = broken(&|l| {
            l[0].hca = "yes".into();
            l[0].state = "registered".into();
            l[0].reason = "-".into();
        });
        assert!(unheld[0].contains("no region holds"), "{unheld:?}");
        let gone = broken(&|l| {
            let mut line = l[0].clone();
            (line.start, line.end) = (0x1000, 0x2000);
            l.insert(0, line);
        });
        assert!(gone[0].contains("1000-2000 is not mapped"), "{gone:?}");
        let pinned = Expected::of(Mode::Populate);
        let mut lines = good.clone();
        lines[0].pin = "yes".into();
        lines[0].reason = "-".into();
        lines[0].state = "registered".into();
        let told = compare(me, &lines, &maps, &pinned);
        assert!(told[0].contains("has not locked"), "{told:?}");
    }

    #[test]
    fn a_broken_claim_is_found_out() {
        let dump = parse(7, "# regall 1 pid 7 start 1 generation 1 busy 0\n1000-3000 rw-p registered - - - yes off\n").unwrap().lines;
        let claim = |start, end, word: &str| Claim {
            start,
            end,
            word: word.into(),
        };
        let of = |mode, limited| Expected {
            limited,
            ..Expected::of(mode)
        };
        assert!(unkept(
            &claim(0x1000, 0x3000, "registered"),
            &dump,
            &of(Mode::Populate, false)
        )
        .is_empty());
        assert!(!unkept(
            &claim(0x1000, 0x4000, "registered"),
            &dump,
            &of(Mode::Populate, false)
        )
        .is_empty());
        assert!(!unkept(
            &claim(0, 0x2000, "registered"),
            &dump,
            &of(Mode::Populate, false)
        )
        .is_empty());
        assert!(!unkept(
            &claim(0x1000, 0x3000, "limit"),
            &dump,
            &of(Mode::Populate, false)
        )
        .is_empty());
        let limit = parse(7, "# regall 1 pid 7 start 1 generation 1 busy 0\n1000-3000 rw-p excluded limit - - limit off\n").unwrap().lines;
        let claimed = |word: &str, limited| {
            let expected = of(Mode::Populate, limited);
            unkept(&claim(0x1000, 0x3000, word), &limit, &expected)
        };
        assert!(claimed("registered", true).is_empty());
        assert!(!claimed("registered", false).is_empty());
        assert!(!claimed("off", true).is_empty());
        let cache = parse(7, "# regall 1 pid 7 start 1 generation 1 busy 0\n1000-3000 r--p excluded cache - - cache off\n").unwrap().lines;
        let claimed = |mode| {
            unkept(
                &claim(0x1000, 0x3000, "registered"),
                &cache,
                &of(mode, true),
            )
        };
        assert!(claimed(Mode::Auto).is_empty());
        assert!(!claimed(Mode::OnFault).is_empty());
        assert!(parse(7, "# regall 1 pid 7 start 1 generation 1 busy 2\n").is_err());
        assert!(parse(8, "# regall 1 pid 7 start 1 generation 1 busy 0\n").is_err());
    }
    #[test]
    fn regions_are_read_and_must_be_of_mapped_memory() {
        let with = |line: &str| {
            let head = "# regall 1 pid 7 start 1 generation 1 busy 0\n";
            parse(7, &format!("{head}{line}\n"))
        };
        let dump = with("1000-3000 rw-p registered - 0x11 - yes yes\n# key 2000-9000 3 local-write,remote-read 0xff 0x22").unwrap();
        assert_eq!((dump.lines[0].lkey, dump.lines[0].rkey), (Some(0x11), None));
        let key = Key {
            start: 0x2000,
            end: 0x9000,
            pd: 3,
            access: "local-write,remote-read".into(),
            lkey: 0xff,
            rkey: Some(0x22),
        };
        assert_eq!(dump.keys, [key]);
        for wrong in [
            "# key 3000-3000 3 read 0x1 -",
            "# key 3000-4000 x read 0x1 -",
            "# key 3000-4000 3 read - -",
            "# key 3000-4000 3 read 0x1",
            "# lock 3000-4000 3 read 0x1 -",
            "1000-3000 rw-p registered - 11 - yes yes",
        ] {
            assert!(with(wrong).is_err(), "{wrong}");
        }
        let mut vma = procfs::smaps(std::process::id()).unwrap().remove(0);
        let mut at = |start, end| {
            (vma.start, vma.end) = (start, end);
            vma.clone()
        };
        let maps = [at(0x1000, 0x3000), at(0x3000, 0x5000), at(0x6000, 0x8000)];
        let found = unmapped(&dump.keys[0], &maps);
        assert!(found[0].starts_with("5000-6000 ") && found[1].starts_with("8000-9000 "));
        assert_eq!(found.len(), 2);
        let implicit = with("# key 0-100000000000000 3 local-write,on-demand 0x1 0x1").unwrap();
        assert!(unmapped(&implicit.keys[0], &maps).is_empty());
    }
}
