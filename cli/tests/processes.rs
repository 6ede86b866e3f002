//! The command against live processes: `examples/publisher.rs` stands in for
//! one with the shim, and does wrong on purpose.

mod common;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{regall, text, Publisher, REGALL};

#[test]
fn no_gap_and_one_made_on_purpose() {
    let mut p = Publisher::new();
    assert!(p.both_say(0).contains(": ok, "));
    p.tell("-");
    let said = p.both_say(1);
    assert!(said.contains("rw-p (anonymous): not covered"), "{said}");
    p.tell("u");
    assert!(p.verify(&[]).1.contains("3 ranges unpublished"));
    p.tell("+").both_say(0);
    p.tell("r");
    assert!(p.both_say(1).contains("wrong protection"));
}

/// The lines of `text` that say something of memory regions and their ranges, with
/// the first address of the victim as 0.
fn of_regions(text: &str, victim: u64) -> Vec<String> {
    let all = text
        .lines()
        .filter(|l| l.contains(" 0x") || l.contains("yes yes"));
    let relative = |line: &str| -> Vec<String> {
        let words = line.split(' ').map(|word| {
            let Some((start, end)) = word.split_once('-') else {
                return word.to_string();
            };
            let address =
                |text| u64::from_str_radix(text, 16).map(|a| a.wrapping_sub(victim) >> 12);
            match (address(start), address(end)) {
                (Ok(start), Ok(end)) => format!("{start}-{end}"),
                _ => word.to_string(),
            }
        });
        words.collect()
    };
    all.map(|l| relative(l).join(" ")).collect()
}

/// Where the victim begins.
fn victim(p: &Publisher) -> u64 {
    let (_, dump) = regall(&["dump", &p.pid()]);
    let line = dump.lines().find(|l| l.contains(" 0x11 0x22 ")).unwrap();
    u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()
}

#[test]
fn dump_is_cut_where_regions_begin_and_end() {
    let mut p = Publisher::new();
    let start = victim(&p);
    let said = |p: &Publisher| of_regions(&regall(&["dump", &p.pid()]).1, start);
    assert_eq!(said(&p), ["0-256 rw-p registered - 0x11 0x22 yes yes"]);
    p.tell("2").both_say(0);
    p.tell("d").both_say(0);
    assert_eq!(
        said(&p),
        [
            "0-64 rw-p registered - 0x33 0x66 yes yes",
            "64-256 rw-p registered - 0x44 0x88 yes yes",
            "# key 0-256 9 read 0x66 0xcc",
            "# key 0-128 9 local-write,remote-write,remote-read,remote-atomic,relaxed-ordering 0x77 0xee",
        ]
    );
    p.tell("h");
    assert_eq!(
        said(&p)[..3],
        [
            "0-64 rw-p registered - 0x33 0x66 yes yes",
            "64-69 rw-p registered - - - yes yes",
            "69-256 rw-p registered - 0x44 0x88 yes yes",
        ]
    );
}

#[test]
fn what_no_region_holds_though_it_is_said_is_a_gap() {
    let mut p = Publisher::new();
    let start = victim(&p) + (64 << 12);
    let said = p.tell("h").both_say(1);
    let gap = format!(
        "gap {start:08x}-{:08x} rw-p (anonymous): said to be registered, but no region holds it\n",
        start + (5 << 12)
    );
    assert!(said.contains(&gap), "{said}");
    assert!(said.contains(": 1 gap, 20 KiB in all"), "{said}");
    // While a call is in progress it may be on its way.
    p.tell("b");
    assert_eq!((p.verify(&[]).0, p.script()), (2, 2));
    p.tell("B").tell("2").both_say(0);
    // It is not said any more.
    p.tell("h").tell("+").both_say(0);
}

#[test]
fn what_is_said_to_be_pinned_and_is_not_locked_is_a_gap() {
    let mut p = Publisher::new();
    let start = victim(&p);
    p.tell("k");
    let (code, said) = p.verify(&[]);
    let gap = format!(
        "gap {start:08x}-{:08x} rw-p (anonymous): said to be pinned, but the kernel has not locked it\n",
        start + (4 << 12)
    );
    assert!(code == 1 && said.contains(&gap), "{said}");
    assert!(said.contains(": 1 gap, 16 KiB in all"), "{said}");
    // It is said no more.
    p.tell("l").both_say(0);
}

#[test]
fn a_region_of_what_is_not_mapped_is_a_gap() {
    let mut p = Publisher::new();
    let end = victim(&p) + (1 << 20);
    let gap = |domain| {
        format!(
            "gap {end:08x}-{:08x} ---- (nothing): region of memory that is not mapped: {domain} lkey 0x88\n",
            end + 4096
        )
    };
    let said = p.tell("m").both_say(1);
    assert!(said.contains(&gap("domain 3 pd 9")), "{said}");
    p.tell("b");
    assert_eq!(p.verify(&[]).0, 2);
    p.tell("B").tell("M").both_say(0);
    // The script can't know: dump prints the primary domain's by ranges.
    let (code, said) = p.tell("n").verify(&[]);
    assert_eq!(code, 1);
    assert!(said.contains(&gap("domain 2 pd 7")), "{said}");
}

#[test]
fn a_stack_grows_out_of_its_region() {
    let mut p = Publisher::with_regions(0);
    p.both_say(0);
    p.tell("s").both_say(0);
    let (_, dump) = regall(&["dump", &p.pid()]);
    let off: Vec<_> = dump
        .lines()
        .filter(|l| l.ends_with(" - - yes off"))
        .collect();
    assert_eq!(off.len(), 1, "{dump}");
    assert!(off[0].contains(" rw-p registered - "), "{dump}");
}

/// The kernel's own page is none of ours; a file that is named like it is.
#[test]
fn the_script_takes_no_file_for_the_kernels_page() {
    let folder = std::env::temp_dir().join(format!("regall-script.{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let (program, nothing) = (
        folder.join("\u{1b}[31m\u{9b}\u{202e}a [uprobes]"),
        folder.join("regall"),
    );
    std::fs::copy("/bin/sleep", &program).unwrap();
    // Says that nothing is mapped.
    let dump = "#!/bin/sh\necho \"# regall 1 pid $2 start 1 generation 1 busy 0\"\n";
    std::fs::write(&nothing, dump).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&nothing, executable).unwrap();
    let mut process = Command::new(&program).arg("60").spawn().unwrap();
    let mut look = Command::new(common::script());
    let out = look.arg(process.id().to_string()).arg(&nothing).output();
    process.kill().unwrap();
    process.wait().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let out = out.unwrap();
    let said = common::text(&out);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("/?[31m?????a [uprobes]\n"), "{said:?}");
    assert!(
        said.chars().all(|c| c == '\n' || !c.is_ascii_control()),
        "{said:?}"
    );
}

/// What a process maps can have names that fill a disk.
#[test]
fn the_script_has_a_bound_for_names() {
    let folder = std::env::temp_dir().join(format!("regall-names.{}", std::process::id()));
    let deep = (0..15).fold(folder.clone(), |path, _| path.join("n".repeat(240)));
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join("file"), [0; 4096]).unwrap();
    let file = std::fs::File::open(deep.join("file")).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    for _ in 0..19_000 {
        // SAFETY: a new mapping, which nobody uses.
        let at = unsafe {
            let none = std::ptr::null_mut();
            libc::mmap(none, 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
    }
    let mut look = Command::new(common::script());
    let us = std::process::id().to_string();
    let out = look.arg(us).arg("true").output();
    std::fs::remove_dir_all(&folder).unwrap();
    let out = out.unwrap();
    let said = common::text(&out);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("longer names than are looked at"), "{said}");
}

#[test]
fn strictly() {
    let mut p = Publisher::new();
    assert_eq!(p.verify(&["--strict"]).0, 0);
    p.tell("l").both_say(0);
    let (code, said) = p.verify(&["--strict"]);
    assert_eq!(code, 1);
    assert!(said.contains("pin: limit"), "{said}");
}

#[test]
fn a_stack_that_grew_is_no_gap() {
    let mut p = Publisher::new();
    p.tell("s").both_say(0);
}

#[test]
fn a_busy_process_is_good_without_gaps_and_busy_with_one() {
    let mut p = Publisher::new();
    p.tell("b").both_say(0);
    p.tell("-");
    let began = Instant::now();
    assert!(p.verify(&[]).1.contains("busy for 5 s"));
    assert!(began.elapsed() >= Duration::from_secs(5));
    assert_eq!(p.script(), 2);
    p.tell("B").both_say(1);
}

#[test]
fn a_process_that_never_rests() {
    let mut p = Publisher::new();
    p.tell("C");
    for _ in 0..5 {
        let (code, said) = p.verify(&[]);
        assert_ne!(code, 1, "{said}");
    }
}

#[test]
fn a_stopped_process_answers() {
    let p = Publisher::new();
    p.signal(libc::SIGSTOP);
    p.both_say(0);
    let (code, dump) = regall(&["dump", &p.pid()]);
    assert_eq!(code, 0);
    assert!(dump.starts_with(&format!("# regall 1 pid {} start ", p.pid())));
}

#[test]
fn what_cannot_be_looked_at() {
    let mut p = Publisher::new();
    p.tell("G");
    assert!(p.both_say(2).contains("has given up"));
    let mut p = Publisher::new();
    p.tell("a");
    assert!(p.both_say(2).contains("corrupt: an entry's attributes"));
    let mut p = Publisher::new();
    p.tell("A");
    assert!(p.both_say(2).contains("corrupt: a region's domain"));
    let mut p = Publisher::new();
    p.tell("t");
    assert!(p.both_say(2).contains("corrupt"));
    let mut p = Publisher::new();
    p.tell("x");
    std::thread::sleep(Duration::from_millis(100));
    assert!(p.both_say(2).contains("runs without regall"));
    let p = Publisher::new();
    p.signal(libc::SIGKILL); // and it is not waited for
    assert!(p.both_say(2).contains("no such process"));
    for command in ["verify", "dump", "maps", "stats"] {
        assert_eq!(regall(&[command, "4194305"]).0, 2);
    }
}

#[test]
fn names_that_are_no_text() {
    use std::os::unix::ffi::OsStrExt;
    // The kernel cuts the first off in the midst of a character; the second is Latin-1.
    for name in ["éééééééé".as_bytes(), b"caf\xe9"] {
        let mut p = Publisher::called(std::ffi::OsStr::from_bytes(name));
        p.both_say(0);
        for command in ["dump", "maps", "stats"] {
            assert_eq!(regall(&[command, &p.pid()]).0, 0, "{command}");
        }
        // What is pinned is looked at there, too.
        p.tell("k");
        assert_eq!(p.verify(&[]).0, 1);
    }
}

#[test]
fn two_beats_one_beats_nought() {
    let (good, mut bad) = (Publisher::new(), Publisher::new());
    bad.tell("-");
    let (good, bad) = (good.pid(), bad.pid());
    assert_eq!(regall(&["verify", &bad, &good]).0, 1);
    assert_eq!(regall(&["verify", "4194305", &bad, &good]).0, 2);
}

#[test]
fn watching_until_they_end() {
    let p = Publisher::new();
    let watch = |pid: &str| {
        let mut command = Command::new(REGALL);
        command.args(["verify", "--watch", "0.1", pid]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let child = watch(&p.pid());
    std::thread::sleep(Duration::from_millis(500));
    drop(p);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0));
    assert!(text(&out).lines().count() > 1);

    let mut p = Publisher::new();
    p.tell("-");
    let child = watch(&p.pid());
    std::thread::sleep(Duration::from_millis(500));
    p.tell("+");
    std::thread::sleep(Duration::from_millis(300));
    drop(p);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
    assert_eq!(regall(&["verify", "--watch", "0.1", "4194305"]).0, 2);
}

#[test]
fn dump_has_its_format() {
    let p = Publisher::new();
    let (_, dump) = regall(&["dump", &p.pid()]);
    let mut lines = dump.lines();
    let header: Vec<_> = lines.next().unwrap().split(' ').collect();
    assert_eq!(header[..4], ["#", "regall", "1", "pid"]);
    assert_eq!(
        (header[5], header[7], header[9]),
        ("start", "generation", "busy")
    );
    let lines: Vec<Vec<_>> = lines.map(|l| l.split(' ').collect()).collect();
    assert!(lines.iter().all(|l| l.len() == 8));
    let keys = lines.iter().find(|l| l[4] != "-").unwrap();
    assert_eq!(
        keys[1..],
        ["rw-p", "registered", "-", "0x11", "0x22", "yes", "yes"]
    );
    let kernel = lines.iter().find(|l| l[0].starts_with("ffff")).unwrap();
    assert_eq!(
        kernel[1..],
        [
            "--xp",
            "excluded",
            "kernel",
            "-",
            "-",
            "kernel",
            "opted-out"
        ]
    );
}

#[test]
fn dump_is_quick_with_many_mappings() {
    dump_is_quick(&Publisher::with(20_000));
}

#[test]
fn dump_is_quick_with_many_regions() {
    dump_is_quick(&Publisher::with_regions(20_000));
}

fn dump_is_quick(p: &Publisher) {
    p.signal(libc::SIGSTOP);
    // The best of some: other programs may be busy on the machine.
    let took = (0..10).map(|_| {
        let began = Instant::now();
        let (code, dump) = regall(&["dump", &p.pid()]);
        assert_eq!(code, 0);
        assert!(dump.lines().count() > 20_000);
        began.elapsed()
    });
    let took = took.min().unwrap();
    // An unoptimised build has ten times the time.
    let limit = if cfg!(debug_assertions) { 1000 } else { 100 };
    assert!(took < Duration::from_millis(limit), "{took:?}");
    p.both_say(0);
}

#[test]
fn maps_and_stats_say_the_same_in_all_forms() {
    let p = Publisher::new();
    let (code, table) = regall(&["maps", &p.pid()]);
    assert_eq!(code, 0);
    assert!(
        table.contains("0x11/0x22") && table.contains("[stack]"),
        "{table}"
    );
    let (_, json) = regall(&["maps", "--json", &p.pid()]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), table.lines().count() - 1);
    assert_eq!(json["regions"].as_array().unwrap().len(), 1);
    assert_eq!(
        rows.iter().find(|r| r["hca"] == "yes").unwrap()["rkey"],
        "0x22"
    );
    let file = std::env::temp_dir().join(format!("regall-{}.svg", p.pid()));
    assert_eq!(
        regall(&["maps", "--svg", file.to_str().unwrap(), &p.pid()]).0,
        0
    );
    let svg = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(svg.matches("<g>").count(), table.lines().count() - 1);

    let (_, json) = regall(&["stats", "--json", &p.pid()]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["events"]["mmap"], 42);
    assert_eq!(json["selftest_missed"][0], "brk");
    assert!(json["bytes"]["state"]["registered"].as_u64().unwrap() > 1 << 20);
    assert_eq!(
        (&json["counters"]["domains"], &json["counters"]["retired"]),
        (&3.into(), &8192.into())
    );
    let (_, text) = regall(&["stats", &p.pid()]);
    for line in [
        "events.mmap  42",
        "counters.domains  3",
        "counters.retired  8192 (8 KiB)",
        "live.regions  1",
    ] {
        let (name, value) = line.split_once("  ").unwrap();
        assert!(text.contains(&format!("{name:<34} {value}\n")), "{text}");
    }
    assert!(!text.contains("counters.served"), "{text}");
}

/// The picture as SVG.
fn picture(p: &Publisher) -> String {
    let file = std::env::temp_dir().join(format!("regall-{}.svg", p.pid()));
    let path = file.to_str().unwrap();
    assert_eq!(regall(&["maps", "--svg", path, &p.pid()]).0, 0);
    let svg = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    svg
}

#[test]
fn a_picture_can_be_read_however_many_mappings_there_are() {
    let few = picture(&Publisher::new());
    assert!(few.contains("[stack]"), "{few}");
    assert!(few.contains("1 MiB, lkey 0x11<"), "{few}");
    let many = Publisher::with_regions(20_000);
    let began = Instant::now();
    let svg = picture(&many);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    let height = svg.split("height=\"").nth(1).unwrap();
    let height: u32 = height.split('"').next().unwrap().parse().unwrap();
    assert!(height < 4000, "{height} pixels high");
    assert!(svg.len() < 200_000, "{} bytes", svg.len());
    // All are there, as one box.
    assert!(svg.contains(" regions<"), "{svg}");
    let pieces = svg.split(" pieces<").filter_map(|t| {
        let number = t.rsplit([' ', '>']).next()?;
        number.replace(',', "").parse::<u32>().ok()
    });
    let most = pieces.max().unwrap();
    assert!((19_000..=20_100).contains(&most), "{most} pieces");
}

#[test]
fn maps_is_cut_where_regions_begin_and_end() {
    let mut p = Publisher::new();
    let start = victim(&p);
    p.tell("h").tell("d");
    let (_, table) = regall(&["maps", &p.pid()]);
    let keys = |l: &str| l.split_whitespace().nth(6).map(str::to_string);
    let at = table
        .lines()
        .position(|l| l.starts_with(&format!("{start:x}-")));
    let rows: Vec<_> = table
        .lines()
        .skip(at.unwrap())
        .take(3)
        .filter_map(keys)
        .collect();
    assert_eq!(rows, ["0x33/0x66", "-", "0x44/0x88"], "{table}");

    let (_, json) = regall(&["maps", "--json", &p.pid()]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let keys: Vec<_> = rows
        .iter()
        .filter(|r| r["hca"] == "yes")
        .map(|r| &r["lkey"])
        .collect();
    assert_eq!(
        keys,
        [&"0x33".into(), &serde_json::Value::Null, &"0x44".into()]
    );
    let regions = json["regions"].as_array().unwrap();
    let domains: Vec<_> = regions
        .iter()
        .map(|r| (&r["domain"], &r["primary"]))
        .collect();
    let is = |n: i32, primary: bool| (n.into(), primary.into());
    let expected: [(serde_json::Value, serde_json::Value); 4] =
        [is(1, false), is(2, true), is(2, true), is(3, false)];
    assert!(
        domains.into_iter().eq(expected.iter().map(|(n, p)| (n, p))),
        "{json}"
    );
    let local = serde_json::json!({
        "start": format!("{start:#x}"),
        "end": format!("{:#x}", start + (1 << 20)),
        "bytes": 1 << 20,
        "domain": 1,
        "primary": false,
        "pd": 9,
        "access": "read",
        "lkey": "0x66",
        "rkey": "0xcc",
    });
    assert_eq!(regions[0], local);
}

#[test]
fn a_reader_of_our_output_that_leaves_changes_nothing() {
    let mut p = Publisher::new();
    p.tell("-");
    for (arguments, code) in [(["verify"], 1), (["dump"], 0)] {
        let mut command = Command::new(REGALL);
        let mut child = command
            .args(arguments)
            .arg(p.pid())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let out = child.wait_with_output().unwrap();
        assert_eq!((out.status.code(), text(&out)), (Some(code), String::new()));
    }
}
