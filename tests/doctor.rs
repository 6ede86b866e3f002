//! `regall doctor` where something has been made bad on purpose: it says so, and what
//! mends it, and its exit code is for scripts.

use std::ffi::CString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use regall_tests::apart::private_shm;
use regall_tests::filter::{self, Fate};
use regall_tests::mode::Mode;
use regall_tests::{build, child, procfs, skip};
use serde_json::Value;

#[path = "doctor/memory.rs"]
mod memory;

const TIMEOUT: Duration = Duration::from_secs(120);

/// What it said, and how it ended.
struct Said {
    findings: Vec<Value>,
    end: String,
}

fn ask(command: &mut Command) -> Said {
    let done = child::run(command, TIMEOUT);
    let findings: Value = serde_json::from_str(&done.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", done.stdout, done.stderr));
    let said = Said {
        findings: findings["findings"].as_array().expect("a list").clone(),
        end: done.end(),
    };
    said.is_sound();
    said
}

fn doctor() -> Command {
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(&mut command);
    // Limits of the machine that the tests run on.
    for name in ["SLURM_CONF", "SLURM_JOB_ID", "OMPI_COMM_WORLD_LOCAL_SIZE"] {
        command.env_remove(name);
    }
    command.args(["doctor", "--json"]);
    command
}

impl Said {
    fn of(&self, name: &str) -> &Value {
        let found = self.findings.iter().find(|f| f["name"] == name);
        found.unwrap_or_else(|| panic!("nothing is said of {name}: {:#?}", self.findings))
    }

    /// The exit code is what the findings are, and what limits can be mended or is
    /// explained by another finding.
    fn is_sound(&self) {
        let any = |standing: &str| self.findings.iter().any(|f| f["standing"] == standing);
        let code = match (any("unknown"), any("limits")) {
            (true, _) => "exit 2",
            (_, true) => "exit 1",
            _ => "exit 0",
        };
        assert_eq!(self.end, code, "{:#?}", self.findings);
        for f in &self.findings {
            let mended = !f["mend"].as_array().expect("a list").is_empty();
            let lines = f["mend"].as_array().into_iter().flatten();
            assert!(f["found"].as_str().is_some_and(|t| !t.is_empty()), "{f}");
            assert!(
                f["standing"] != "limits" || mended || f["name"] == "a trial program",
                "{f:#}"
            );
            for mend in lines {
                assert!(
                    mend["line"].as_str().is_some_and(|l| !l.is_empty()),
                    "{f:#}"
                );
                assert!(mend["who"].as_str().is_some_and(|w| !w.is_empty()), "{f:#}");
            }
        }
    }

    /// It limits, what is found and its effect say `words`, and it is mended by a line with
    /// `line` in it.
    fn limits(&self, name: &str, words: &str, line: &str) {
        let f = self.of(name);
        assert_eq!(f["standing"], "limits", "{f:#}");
        let text = format!("{} {}", f["found"], f["effect"]);
        assert!(text.contains(words), "{words}: {f:#}");
        let lines = f["mend"].as_array().expect("a list");
        let mends = |m: &Value| m["line"].as_str().is_some_and(|l| l.contains(line));
        assert!(lines.iter().any(mends), "{line}: {f:#}");
        assert_eq!(self.end, "exit 1");
    }

    fn good(&self, name: &str) {
        assert_eq!(self.of(name)["standing"], "good", "{:#}", self.of(name));
    }
}

fn root() -> bool {
    // SAFETY: no memory, can't fail.
    unsafe { libc::geteuid() == 0 }
}

fn checked(answer: i64) -> io::Result<()> {
    match answer {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Before the command is executed, in its process: system calls alone.
fn before(command: &mut Command, f: impl Fn() -> io::Result<()> + Send + Sync + 'static) {
    // SAFETY: whoever calls this gives it a function that makes system calls alone.
    unsafe { command.pre_exec(f) };
}

/// In a mount namespace of its own.
fn apart(command: &mut Command) {
    before(command, || {
        // SAFETY: no memory.
        checked(i64::from(unsafe { libc::unshare(libc::CLONE_NEWNS) }))?;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        mount(c"none", c"/", None, private, None)
    });
}

fn mount(
    what: &std::ffi::CStr,
    at: &std::ffi::CStr,
    kind: Option<&std::ffi::CStr>,
    flags: u64,
    options: Option<&std::ffi::CStr>,
) -> io::Result<()> {
    let or_null = |s: Option<&std::ffi::CStr>| s.map_or(std::ptr::null(), |s| s.as_ptr());
    let options = or_null(options).cast();
    // SAFETY: strings that end with NUL, or none.
    let answer = unsafe { libc::mount(what.as_ptr(), at.as_ptr(), or_null(kind), flags, options) };
    checked(i64::from(answer))
}

/// With a file of `text` in the place of one of the kernel's.
fn instead(command: &mut Command, at: &'static std::ffi::CStr, text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, text).expect("a file");
    let file = CString::new(file.to_str().expect("a path")).expect("a path");
    apart(command);
    before(command, move || mount(&file, at, None, libc::MS_BIND, None));
    folder
}

/// What needs root says so where it is not.
fn not_root() -> bool {
    if !root() {
        skip("only root can mount and change its user");
    }
    !root()
}

/// Copies that anybody can execute.
fn public() -> (tempfile::TempDir, PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let open = |path: &std::path::Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    };
    open(folder.path());
    for file in [build::regall(), build::shim()] {
        let to = folder.path().join(file.file_name().expect("a name"));
        std::fs::copy(&file, &to).expect("a copy");
        open(&to);
    }
    let regall = folder.path().join("regall");
    (folder, regall)
}

/// As a user who may nothing, with so many bytes of locked memory.
fn as_nobody(regall: &PathBuf, memlock: u64) -> Command {
    let mut command = Command::new(regall);
    Mode::Plain.apply(&mut command);
    command.env_remove("SLURM_CONF").env_remove("SLURM_JOB_ID");
    command.args(["doctor", "--json"]);
    before(&mut command, move || {
        let limit = libc::rlimit {
            rlim_cur: memlock,
            rlim_max: memlock,
        };
        // SAFETY: a structure that outlives the call.
        checked(i64::from(unsafe {
            libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit)
        }))?;
        // SAFETY: no memory.
        checked(i64::from(unsafe { libc::setgroups(0, std::ptr::null()) }))?;
        // SAFETY: likewise.
        checked(i64::from(unsafe { libc::setgid(65534) }))?;
        // SAFETY: likewise.
        checked(i64::from(unsafe { libc::setuid(65534) }))
    });
    command
}

#[test]
fn as_it_is_here() {
    let began = Instant::now();
    let said = ask(&mut doctor());
    println!("{:?}", began.elapsed());
    for name in ["a trial program", "patching code", "seccomp", "/dev/shm"] {
        said.good(name);
    }
    let program = &said.of("a trial program")["measured"];
    assert!(
        program["registered_bytes"].as_u64() > Some(512 << 10),
        "{program}"
    );
    // What keeps everything from working comes first.
    let at = |name: &str| said.findings.iter().position(|f| f["name"] == name);
    let order = [
        "libregall.so",
        "a trial program",
        "patching code",
        "locked memory",
        "/dev/shm",
        "single copy",
        "RDMA adapters",
    ];
    assert!(order.windows(2).all(|w| at(w[0]) < at(w[1])), "{order:?}");
    // As text: each of them, and a last line.
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(&mut command);
    let text = child::run(command.arg("doctor"), TIMEOUT);
    for f in &said.findings {
        let name = f["name"].as_str().expect("a name");
        assert!(text.stdout.lines().any(|l| l.starts_with(name)), "{name}");
    }
    let last = text.stdout.lines().last().unwrap_or("");
    assert_eq!(
        last == "Nothing is in the way.",
        text.end() == "exit 0",
        "{last}"
    );
}

#[test]
fn copies_are_measured() {
    let said = ask(&mut doctor());
    let copy = said.of("single copy");
    let times = &copy["measured"];
    if copy["standing"] != "good" {
        return skip("this machine forbids process_vm_readv");
    }
    for (small, large) in [
        ("cma_64kib_ns", "cma_1mib_ns"),
        ("mapped_64kib_ns", "mapped_1mib_ns"),
    ] {
        let (small, large) = (times[small].as_u64(), times[large].as_u64());
        assert!(Some(100) < small && small < large, "{times}");
        assert!(large < Some(1_000_000_000), "{times}");
    }
}

#[test]
fn little_locked_memory() {
    if not_root() {
        return;
    }
    let (_folder, regall) = public();
    for bytes in [1 << 20, 64 << 10, 0u64] {
        let said = ask(&mut as_nobody(&regall, bytes));
        said.limits("locked memory", "RLIMIT_MEMLOCK", "memlock");
        // What the kernel lets one lock is what was found, to the page.
        let found = &said.of("locked memory")["measured"]["lockable_bytes"];
        assert_eq!(
            found.as_u64(),
            Some(bytes),
            "{:#}",
            said.of("locked memory")
        );
        let program = &said.of("a trial program")["measured"];
        // Where nothing is locked, nothing is over a limit.
        let over = program["limit_bytes"].as_u64().expect("a number");
        assert_eq!(over > 1 << 20, procfs::has_swap(), "{program}");
    }
    if may_raise() {
        let said = ask(&mut as_nobody(&regall, libc::RLIM_INFINITY));
        said.good("locked memory");
        said.good("a trial program");
    }
}

/// Whether this process may raise its hard limits (CAP_SYS_RESOURCE, which root in a
/// container seldom has).
fn may_raise() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let caps = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let caps = caps.and_then(|c| u64::from_str_radix(c.trim(), 16).ok());
    const CAP_SYS_RESOURCE: u32 = 24;
    caps.is_some_and(|c| c >> CAP_SYS_RESOURCE & 1 != 0)
}

#[test]
fn a_filter_that_forbids_copies() {
    let mut command = doctor();
    let calls = [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev];
    let calls = calls.map(|c| (c, 0));
    filter::forbid(&mut command, &calls, Fate::Fails(libc::EPERM));
    let said = ask(&mut command);
    said.limits(
        "seccomp",
        "process_vm_readv (Operation not permitted)",
        "REGALL_COPY=",
    );
    said.limits("single copy", "Operation not permitted", "seccomp");
    said.good("locked memory");
}

#[test]
fn a_filter_that_kills_who_locks() {
    let mut command = doctor();
    let calls = [(libc::SYS_mlock, 0), (libc::SYS_mlock2, 0)];
    filter::forbid(&mut command, &calls, Fate::Kills);
    let said = ask(&mut command);
    said.limits("seccomp", "mlock2 (kills)", "REGALL_PIN=off");
    said.limits("locked memory", "kills", "REGALL_PIN=off");
    // The program calls neither where there is no swap space.
    let standing = if procfs::has_swap() { "limits" } else { "good" };
    assert_eq!(said.of("a trial program")["standing"], standing);
    said.good("single copy");
}

#[test]
fn a_filter_that_lets_all_through() {
    let mut command = doctor();
    filter::forbid(&mut command, &[(libc::SYS_reboot, 0)], Fate::Kills);
    let said = ask(&mut command);
    said.good("seccomp");
    assert!(said.of("seccomp")["found"]
        .as_str()
        .is_some_and(|t| t.starts_with("a filter")));
}

#[test]
fn code_that_can_not_be_patched() {
    // Neither by mprotect (to writable and executable) nor through /proc/self/mem.
    let mut command = doctor();
    let calls = [
        (libc::SYS_mprotect, libc::PROT_EXEC as u32),
        (libc::SYS_pwrite64, 0),
    ];
    filter::forbid(&mut command, &calls, Fate::Fails(libc::EACCES));
    let said = ask(&mut command);
    said.limits("patching code", "Permission denied", "s");
    let program = said.of("a trial program");
    assert_eq!(program["standing"], "limits", "{program:#}");
    let says = "code can't be patched here";
    assert!(
        program["effect"].as_str().is_some_and(|t| t.contains(says)),
        "{program:#}"
    );
    // One of both is enough.
    let mut command = doctor();
    filter::forbid(&mut command, &calls[..1], Fate::Fails(libc::EACCES));
    let said = ask(&mut command);
    said.good("patching code");
    said.good("a trial program");
}

#[test]
fn shared_memory_that_is_small_read_only_or_gone() {
    if not_root() {
        return;
    }
    let mounted = |flags: u64, options: &'static std::ffi::CStr| {
        let mut command = doctor();
        apart(&mut command);
        before(&mut command, move || {
            mount(c"none", c"/dev/shm", Some(c"tmpfs"), flags, Some(options))
        });
        ask(&mut command)
    };
    let small = mounted(0, c"size=64k");
    small.limits("/dev/shm", "full", "size");
    small.limits(
        "a trial program",
        "no directory under /dev/shm (errno 28)",
        "troubleshooting",
    );
    mounted(0, c"size=16m").limits("/dev/shm", "16 MiB free", "size");
    let said = mounted(libc::MS_RDONLY, c"size=1g");
    said.limits("/dev/shm", "Read-only file system", "mode=1777");
    said.limits(
        "a trial program",
        "no directory under /dev/shm",
        "troubleshooting",
    );
    mounted(0, c"size=1g").good("/dev/shm");
}

#[test]
fn a_folder_that_others_may_enter() {
    if not_root() {
        return;
    }
    let names: [&std::ffi::CStr; 8] = [
        c"/dev/shm/regall-0",
        c"/dev/shm/regall-0-1",
        c"/dev/shm/regall-0-2",
        c"/dev/shm/regall-0-3",
        c"/dev/shm/regall-0-4",
        c"/dev/shm/regall-0-5",
        c"/dev/shm/regall-0-6",
        c"/dev/shm/regall-0-7",
    ];
    let with = |open: usize| {
        let mut command = doctor();
        apart(&mut command);
        before(&mut command, move || {
            mount(c"none", c"/dev/shm", Some(c"tmpfs"), 0, Some(c"size=1g"))?;
            names.iter().take(open).try_for_each(|name| {
                // SAFETY: a string that ends with NUL.
                checked(i64::from(unsafe { libc::mkdir(name.as_ptr(), 0o755) }))
            })
        });
        ask(&mut command)
    };
    // One is somebody else's: the next is taken.
    let said = with(1);
    said.good("directories");
    said.good("a trial program");
    let effect = said.of("directories")["effect"].to_string();
    assert!(effect.contains("mode 755"), "{effect}");
    assert!(
        effect.contains("takes /dev/shm/regall-0-1 instead"),
        "{effect}"
    );
    // All of them are: then it is one that nobody has foreseen.
    let said = with(names.len());
    said.good("directories");
    said.good("a trial program");
    let effect = said.of("directories")["effect"].to_string();
    assert!(effect.contains("takes a random name instead"), "{effect}");
}

#[test]
fn yama() {
    if not_root() {
        return;
    }
    for (scope, standing) in [
        ("0", "good"),
        ("1", "limits"),
        ("3", "limits"),
        ("7", "unknown"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("ptrace_scope"), scope).expect("a file");
        let from = CString::new(folder.path().to_str().expect("a path")).expect("a path");
        let mut command = doctor();
        apart(&mut command);
        before(&mut command, move || {
            mount(c"none", c"/proc/sys/kernel", Some(c"tmpfs"), 0, None)?;
            // SAFETY: a string that ends with NUL.
            checked(i64::from(unsafe {
                libc::mkdir(c"/proc/sys/kernel/yama".as_ptr(), 0o755)
            }))?;
            mount(&from, c"/proc/sys/kernel/yama", None, libc::MS_BIND, None)
        });
        let said = ask(&mut command);
        assert_eq!(said.of("Yama")["standing"], standing, "{scope}");
        if standing == "limits" {
            said.limits("Yama", "MPICH", "kernel.yama.ptrace_scope=0");
        }
    }
}

#[test]
fn a_user_namespace_of_its_own() {
    let mut command = doctor();
    before(&mut command, || {
        // SAFETY: no memory.
        checked(i64::from(unsafe { libc::unshare(libc::CLONE_NEWUSER) }))?;
        let limit = libc::rlimit {
            rlim_cur: 2 << 20,
            rlim_max: 2 << 20,
        };
        // SAFETY: a structure that outlives the call.
        checked(i64::from(unsafe {
            libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit)
        }))
    });
    // Whoever nobody is there may be in the way of executing and of /dev/shm, too.
    let said = ask(&mut command);
    let namespace = said.of("user namespace");
    let effect = namespace["effect"].as_str().unwrap_or("");
    assert!(effect.contains("RLIMIT_MEMLOCK"), "{namespace:#}");
    let locked = &said.of("locked memory")["measured"]["lockable_bytes"];
    assert_eq!(locked.as_u64(), Some(2 << 20));
}

#[test]
fn slurm_that_hands_on_limits() {
    if not_root() {
        return;
    }
    let (folder, regall) = public();
    let conf = folder.path().join("slurm.conf");
    let asked = |text: &str, memlock: u64| {
        std::fs::write(&conf, text).expect("a file");
        let mut command = as_nobody(&regall, memlock);
        ask(command.env("SLURM_CONF", &conf).env("SLURM_JOB_ID", "1"))
    };
    let said = asked("ClusterName=a\n", 1 << 20);
    said.limits(
        "Slurm",
        "inside a job",
        "PropagateResourceLimitsExcept=MEMLOCK",
    );
    asked(
        "ClusterName=a\nPropagateResourceLimitsExcept=MEMLOCK\n",
        1 << 20,
    )
    .good("Slurm");
    if may_raise() {
        asked("ClusterName=a\n", libc::RLIM_INFINITY).good("Slurm");
    }
}

#[test]
fn wrong_use_and_no_library() {
    let mut command = Command::new(build::regall());
    let done = child::run(command.args(["doctor", "--frobnicate"]), TIMEOUT);
    assert_eq!(done.end(), "exit 2");
    let folder = tempfile::tempdir().expect("a folder");
    let alone = folder.path().join("regall");
    std::fs::copy(build::regall(), &alone).expect("a copy");
    let said = ask(Command::new(&alone).args(["doctor", "--json"]));
    said.limits("libregall.so", "neither beside this command", "make");
    assert_eq!(said.of("a trial program")["standing"], "not checked");
    // One of another version.
    let text = b"\x7fELF\0regall 9.9.9 (0123)\0";
    std::fs::write(folder.path().join("libregall.so"), text).expect("a file");
    let said = ask(Command::new(&alone).args(["doctor", "--json"]));
    said.limits("libregall.so", "9.9.9", "make");
}

/// Nothing can be preloaded from there, and a staged copy can.
#[test]
fn a_path_that_ld_so_takes_apart() {
    let (folder, regall) = public();
    for name in ["with a blank", "with:colon"] {
        let to = folder.path().join(name);
        std::fs::create_dir(&to).expect("a folder");
        for file in [&regall, &folder.path().join("libregall.so")] {
            std::fs::copy(file, to.join(file.file_name().expect("a name"))).expect("a copy");
        }
        let regall = to.join("regall");
        let said = ask(Command::new(&regall).args(["doctor", "--json"]));
        said.limits("a trial program", "can't preload a path", "--stage");
        assert_eq!(said.end, "exit 1");
        let mut command = Command::new(&regall);
        Mode::Plain.apply(&mut command);
        command.env("REGALL_ONLY", "*");
        command.args([
            "run",
            "--stage",
            "--",
            "sh",
            "-c",
            "grep -c libregall /proc/$$/maps",
        ]);
        let done = child::run(&mut command, TIMEOUT);
        done.must_succeed();
        let lines: u32 = done.stdout.trim().parse().expect("a number");
        assert!(lines > 0, "{}", done.stderr);
    }
}

/// REGALL=true is no error, and not what turns it on.
#[test]
fn a_word_that_does_not_turn_it_on() {
    let with = |value: &str| ask(doctor().env("REGALL", value));
    for value in ["true", "yes", "2", " 1"] {
        with(value).limits("REGALL", value, "REGALL=1");
    }
    for value in ["", "0", "No", "1"] {
        with(value).good("REGALL");
    }
}

/// Its trial program's directory is in another folder there than the user's number names.
#[test]
fn nothing_stays_of_it_in_another_user_namespace() {
    if let Err(why) = private_shm(64) {
        return skip(&format!("a /dev/shm of one's own: {why}"));
    }
    let mut tried = Command::new("unshare");
    if !child::run(tried.args(["-r", "true"]), TIMEOUT)
        .end()
        .eq("exit 0")
    {
        return skip("no user namespace can be made here");
    }
    // The name of root's folder is taken, as for a user who is root in a namespace alone.
    let taken = "/dev/shm/regall-0";
    std::fs::create_dir(taken).expect("a folder");
    std::os::unix::fs::chown(taken, Some(12345), None).expect("another owner");
    let mut command = Command::new("unshare");
    Mode::Plain.apply(&mut command);
    command.arg("-r").arg(build::regall());
    let said = ask(command.args(["doctor", "--json"]));
    let found = said.of("a trial program")["found"].to_string();
    assert!(found.contains("registered"), "it was tried: {found}");
    let folders = std::fs::read_dir("/dev/shm").expect("a folder");
    let files = folders.flatten().flat_map(|f| std::fs::read_dir(f.path()));
    let left: Vec<_> = files.flatten().flatten().map(|f| f.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
