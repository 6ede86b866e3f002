//! Nothing is left of a process that was killed.

use super::*;

/// What the kernel keeps for adapters: memory regions, and pages that they pin.
pub fn held() -> BTreeMap<&'static str, i64> {
    let mut rdma = Command::new("rdma");
    let regions = child::run(rdma.args(["res", "show", "mr"]), TIMEOUT).stdout;
    // Each processor counts by itself and hands in what it has now and then, or so.
    fs::write("/proc/sys/vm/stat_refresh", "1").expect("/proc/sys/vm/stat_refresh");
    let vmstat = fs::read_to_string("/proc/vmstat").expect("/proc/vmstat");
    let meminfo = fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    let number = |text: &str, name: &str| -> i64 {
        let line = text.lines().find_map(|l| l.strip_prefix(name));
        let word = line.and_then(|l| l.split_whitespace().next());
        word.and_then(|w| w.parse().ok()).expect("a number")
    };
    let pins = number(&vmstat, "nr_foll_pin_acquired ") - number(&vmstat, "nr_foll_pin_released ");
    BTreeMap::from([
        ("memory regions", regions.lines().count() as i64),
        ("pins of pages", pins),
        ("KiB locked", number(&meminfo, "Mlocked:")),
    ])
}

/// What is in /dev/shm/regall-UID/.
fn directories() -> Vec<String> {
    let folder = fs::read_dir("/dev/shm/regall-0").into_iter().flatten();
    let names = folder
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned());
    names.collect()
}

/// Programs are killed at random moments, from before they have begun to long after.
pub fn kills(times: u32) -> Checked {
    let seed = std::time::UNIX_EPOCH
        .elapsed()
        .map_or(1, |t| t.as_nanos() as u64);
    println!("seed {seed}");
    let mut state = seed | 1;
    let mut random = |n: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % n
    };
    let before = held();
    let busy = |rounds: &[&str], timeout| {
        let mut command = Command::new(build::program("rdma/busy"));
        Mode::Populate.apply(command.args(rounds));
        child::start(&mut command, timeout)
    };
    let start = Instant::now();
    well(&[&busy(&["21"], TIMEOUT).finish()]);
    let usual = start.elapsed();
    // What is looked for can be seen.
    let one = busy(&[], TIMEOUT);
    let regions = "memory regions";
    let all_seen = |during: &BTreeMap<&str, i64>| {
        during.iter().all(|(what, n)| *n > before[what]) && during[regions] > 100
    };
    let mut during = held();
    while !all_seen(&during) {
        assert!(
            start.elapsed() < TIMEOUT,
            "before {before:?}, while it runs {during:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
        during = held();
    }
    drop(one);
    let (mut early, mut most) = (0, 0);
    for i in 0..times {
        let delay = random(usual.as_micros() as u64 * 3 / 2);
        let done = busy(&[], Duration::from_micros(delay)).finish();
        assert_eq!(
            done.end(),
            "time-out",
            "round {i}: {}{}",
            done.stdout,
            done.stderr
        );
        assert_eq!(done.regall_lines(), Vec::<&str>::new());
        early += u32::from(!done.stdout.contains("busy"));
        // Its own, and that of the one before if it was too early to sweep.
        most = most.max(directories().len());
    }
    println!(
        "{times} killed, {early} of them before they were busy; at most {most} directories left"
    );
    assert!(early < times, "nobody got as far as registering");
    let deadline = Instant::now() + TIMEOUT;
    let mut after = held();
    while after["KiB locked"] > before["KiB locked"] && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
        after = held();
    }
    assert!(
        after["KiB locked"] <= before["KiB locked"],
        "before {before:?}, after {after:?}"
    );
    for what in ["memory regions", "pins of pages"] {
        assert_eq!(
            after[what], before[what],
            "{what}: before {before:?}, after {after:?}"
        );
    }
    well(&[&busy(&["21"], TIMEOUT).finish()]);
    assert_eq!(directories(), Vec::<String>::new(), "what the dead left");
    Ok(())
}
