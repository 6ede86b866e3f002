//! Processes that are killed at random moments leave nothing that the next start does not
//! clean up; a rank that is killed is to the others what it is without the shim.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use regall_tests::mode::{self, Mode};
use regall_tests::soak::{self, Row};
use regall_tests::{build, child};

const TIMEOUT: Duration = Duration::from_secs(120);

/// What of this process and its children is left: files of the user's folder, by kind.
fn left(group: &[u32]) -> Vec<String> {
    // SAFETY: a system call without arguments.
    let uid = unsafe { libc::geteuid() };
    let mut all = Vec::new();
    for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        let folder = entry.file_name().to_string_lossy().into_owned();
        if !folder.starts_with(&format!("regall-{uid}")) {
            continue;
        }
        for file in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            let pid = name.split('.').next().and_then(|p| p.parse().ok());
            if pid.is_some_and(|pid| group.contains(&pid)) {
                let socket = file.file_type().is_ok_and(|t| t.is_socket());
                all.push(format!("{name}{}", if socket { " (socket)" } else { "" }));
            }
        }
    }
    all
}

/// Processes of a group, zombies too.
fn members(group: u32) -> Vec<u32> {
    let of = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let rest = stat.rsplit_once(") ")?.1.to_owned();
        (rest.split(' ').nth(2)? == group.to_string()).then_some(pid)
    };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|e| e.file_name().to_str()?.parse().ok())
        .filter_map(of)
        .collect()
}

/// System V segments and their attachments: what a process could leave in the kernel.
fn segments() -> usize {
    fs::read_to_string("/proc/sysvipc/shm")
        .unwrap_or_default()
        .lines()
        .count()
}

#[test]
fn killed_at_random_moments() {
    let row = Row::begin("death", "kill -9 at random moments");
    let times = soak::rounds(20, 200);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut random = now.expect("a clock").as_nanos() as u64 | 1;
    let mut draw = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) % below
    };
    let (mut files, mut sockets, mut besides) = (0, 0, 0);
    let before = segments();
    for n in 0..times {
        let mut command = Command::new(build::program("faults/owner"));
        Mode::Populate.apply(&mut command);
        command
            .env("REGALL_COPY", "helper")
            .env("REGALL_LOG_FILE", "/dev/null");
        if n % 3 == 1 {
            command.env("REGALL_SHARE", "always");
        }
        if n % 3 == 2 {
            command.env("REGALL_INTERCEPT", "strict");
        }
        let mut owner = std::os::unix::process::CommandExt::process_group(&mut command, 0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("an owner");
        // From before main on: start-up takes some milliseconds.
        let moment = Duration::from_micros(draw(if n % 2 == 0 { 20_000 } else { 250_000 }));
        std::thread::sleep(moment);
        let group = owner.id();
        let ended = owner.try_wait().expect("an owner");
        assert_eq!(ended, None, "it ended before it was killed");
        let mut pids = members(group);
        // SAFETY: a system call without memory; the group is our child's, not waited for.
        unsafe { libc::killpg(group as i32, libc::SIGKILL) };
        owner.wait().expect("an owner");
        let begun = std::time::Instant::now();
        while members(group).iter().any(|p| !pids.contains(p)) || !members(group).is_empty() {
            pids.extend(members(group));
            assert!(begun.elapsed() < TIMEOUT, "somebody of it still lives");
            std::thread::sleep(Duration::from_millis(1));
        }
        let there = left(&pids);
        files += usize::from(!there.is_empty());
        sockets += there.iter().filter(|f| f.ends_with("(socket)")).count();
        besides += there.iter().filter(|f| f.split('.').count() > 3).count();

        // The next that starts sweeps.
        let mut next = Command::new(build::program("hello"));
        Mode::Populate.apply(&mut next);
        let done = child::run(&mut next, TIMEOUT);
        assert_eq!(done.end(), "exit 7", "{}", done.stderr);
        assert_eq!(done.regall_lines(), [""; 0], "after a kill at {moment:?}");
        assert_eq!(left(&pids), [""; 0], "after a kill at {moment:?}");
    }
    assert_eq!(segments(), before, "System V segments");
    // Else there was nothing to sweep. Other processes of this user sweep as well.
    assert!(
        files as u64 * 4 > times,
        "only {files} of {times} left anything"
    );
    assert!(besides > 0, "none left a region's file, a pipe or a socket");
    row.passed(format!(
        "{times} times; {files} left files, {besides} beside them, {sockets} sockets"
    ));
}

/// `mpirun OPTIONS -np 3 mourn`: how the launcher ended, and whether the others went on.
fn mourn(mpi: &str, options: &[&str], with: bool) -> (String, bool) {
    let mut command = Command::new(build::regall());
    let launcher = format!("mpirun.{mpi}");
    if with {
        command.args(["run", "--"]).arg(&launcher);
    } else {
        command = Command::new(&launcher);
    }
    command.args(options).args(["-np", "3"]);
    command.arg(build::program(&format!("mourn.{mpi}")));
    let done = mode::launch(&mut command, TIMEOUT);
    let said = done.stdout.contains("the others go on: 0 errors");
    assert!(
        !done.stdout.contains("go on: ") || said,
        "{}{}",
        done.stdout,
        done.stderr
    );
    (done.end(), said)
}

#[test]
fn mpi_ranks_that_die() {
    let row = Row::begin("death", "a rank of three is killed");
    let open: &[&str] = &["--oversubscribe", "--bind-to", "none"];
    let stay = [open, &["--enable-recovery"]].concat();
    let mut notes = Vec::new();
    for _ in 0..soak::rounds(1, 10) {
        // Left to itself, the launcher ends the others: how far they got is chance.
        for (mpi, options) in [("openmpi", open), ("mpich", &[])] {
            let (plain, _) = mourn(mpi, options, false);
            let (end, _) = mourn(mpi, options, true);
            assert_eq!(end, plain, "{mpi}");
            notes.push(format!("{mpi}: {end}"));
        }
        // Told to leave them, they go on.
        let plain = mourn("openmpi", &stay, false);
        assert_eq!(plain, ("exit 0".into(), true), "without the shim");
        assert_eq!(mourn("openmpi", &stay, true), plain);
    }
    notes.dedup();
    row.passed(format!(
        "{}; where they are left, the others go on",
        notes.join(", ")
    ));
}
