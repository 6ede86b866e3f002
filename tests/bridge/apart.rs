//! Peers in containers of their own, and of other users.

use super::*;

/// A container of sorts: its own pids, the same /dev/shm.
fn container(args: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(args);
    command
}

fn no_containers() -> bool {
    if build::have("unshare") && said(container(&[]).arg("true")).code == Some(0) {
        return false;
    }
    skip("two pid namespaces: unshare(1) is not there, or may not");
    true
}

#[test]
fn a_container_can_not_name_who_is_outside() {
    if no_containers() || !is_root() {
        return;
    }
    let owner = Owner::new();
    let (pid, at) = (owner.pid(), owner.at("big").to_string());
    let regall = build::regall();
    let inside = said(container(&[]).arg(&regall).args(["peek", &pid, &at, "1"]));
    assert_eq!(inside.code, Some(2), "{}", inside.stderr);
    one_line(&inside, "from inside");
    assert!(
        inside.stderr.contains("another pid namespace"),
        "{}",
        inside.stderr
    );
    // Without a /proc of its own it sees the numbers from outside, which reach others, or
    // nobody, in system calls.
    let mut bare = Command::new("unshare");
    bare.args(["--pid", "--fork", "--kill-child"]);
    let inside = said(bare.arg(&regall).args(["peek", &pid, &at, "2000"]));
    assert_eq!(inside.code, Some(2), "{}", inside.stderr);
    assert!(
        inside.stderr.contains("another pid namespace"),
        "{}",
        inside.stderr
    );
}

/// In a pid namespace of its own, whose /proc is the one outside, a process's number there is
/// somebody else's or nobody's: whoever starts must not take the living for dead.
const WITHOUT_PROC: &str = r#"
namespace=$(readlink /proc/self/ns/pid)
namespace=${namespace//[^0-9]/}
/bin/sleep 100 &
pid=$!
of_it() { compgen -G "/dev/shm/regall-*/$pid.*.$namespace" >/dev/null; }
for n in {1..1000}; do of_it && break; /bin/sleep 0.01; done
for n in 1 2 3; do /bin/true; done
of_it && echo stands
kill -9 "$pid"
wait "$pid"
/bin/true
of_it || echo swept
"#;

#[test]
fn the_living_are_not_swept_by_the_numbers_of_another_proc() {
    if no_containers() || !is_root() {
        return;
    }
    let mut bare = Command::new("unshare");
    bare.args([
        "--pid",
        "--fork",
        "--kill-child",
        "bash",
        "-c",
        WITHOUT_PROC,
    ]);
    Mode::Auto.apply(&mut bare);
    let inside = child::run(&mut bare, TIMEOUT);
    assert_eq!(inside.stdout, "stands\nswept\n", "{}", inside.stderr);
}

#[test]
fn who_is_in_a_container_is_read_from_outside() {
    if no_containers() || !is_root() {
        return;
    }
    let program = build::program("bridge/copy");
    let owner = Owner::by(container(&[]).arg(program).arg("owner"));
    // The child of unshare, by its number out here.
    let pid = owner.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("proc");
    let inner = children.split_whitespace().next().expect("a child");
    let (at, want) = (
        owner.at("big").to_string(),
        (0..5000).map(pattern).collect::<Vec<_>>(),
    );
    let outside = peek(&[inner, &at, "5000"]);
    assert_eq!(outside.code, Some(0), "{}", outside.stderr);
    assert!(outside.bytes == want);
}

/// Runs a command as nobody.
fn as_nobody(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;
    command.uid(65534).gid(65534)
}

#[test]
fn somebody_else_may_not_and_root_may() {
    if !is_root() {
        return skip("another user's process: only root can be two users");
    }
    // Nobody may not go where cargo builds: the programs are copied.
    let folder = tempfile::tempdir().expect("a folder");
    let there = |name: &str, from: &std::path::Path| {
        let to = folder.path().join(name);
        fs::copy(from, &to).expect("a copy");
        to
    };
    let regall = there("regall", &build::regall());
    let program = there("copy", &build::program("bridge/copy"));
    let shim = there("libregall.so", &build::shim());
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), mode).expect("permissions");

    let of_root = Owner::new();
    let mut command = Command::new(&regall);
    command.args([
        "peek",
        &of_root.pid(),
        &of_root.at("big").to_string(),
        "100",
    ]);
    let refused = said(as_nobody(&mut command));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.bytes.is_empty());
    one_line(&refused, "nobody");

    // A preload that nobody can read is none.
    let mut wrapped = Command::new("sh");
    wrapped.args(["-c", "LD_PRELOAD=$0 exec $1 owner"]);
    let of_nobody = Owner::by(as_nobody(wrapped.arg(&shim).arg(&program)));
    // A small area: nobody may not lock much.
    let read = peek(&[&of_nobody.pid(), &of_nobody.at("none").to_string(), "5000"]);
    assert_eq!(read.code, Some(0), "{}", read.stderr);
    assert!(read.bytes == (0..5000).map(pattern).collect::<Vec<_>>());
}

/// Its user has another number there, and its folder is named by that; unshare(1), which is
/// not there yet as it starts, leaves a directory in the usual one.
#[test]
fn who_is_in_a_user_namespace_is_looked_at_from_outside() {
    let mut apart = Command::new("unshare");
    apart.arg("--user");
    if !build::have("unshare") || said(Command::new("unshare").args(["-U", "true"])).code != Some(0)
    {
        return skip("a user namespace: unshare(1) is not there, or may not");
    }
    let owner = Owner::by(apart.arg(build::program("bridge/copy")).arg("owner"));
    let (pid, regall) = (owner.pid(), build::regall());
    let dump = said(Command::new(&regall).args(["dump", &pid]));
    assert_eq!(dump.code, Some(0), "{}", dump.stderr);
    let big = format!("{:x}-", owner.at("big"));
    let text = String::from_utf8_lossy(&dump.bytes).into_owned();
    assert!(text.contains(&big), "no {big} in {text}");
    let verified = said(Command::new(&regall).args(["verify", &pid]));
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    let all = said(Command::new(&regall).args(["top", "--once", "--json"]));
    let all = String::from_utf8_lossy(&all.bytes).into_owned();
    assert!(all.contains(&pid), "no {pid} in {all}");
    // A small area: without privileges out here it may not lock much.
    let read = peek(&[&pid, &owner.at("none").to_string(), "5000"]);
    assert_eq!(read.code, Some(0), "{}", read.stderr);
    assert!(read.bytes == (0..5000).map(pattern).collect::<Vec<_>>());
    let script = build::script("verify-maps.sh");
    let again = said(Command::new(script).arg(&pid).arg(&regall));
    assert_eq!(again.code, Some(0), "{}", again.stderr);
}

/// (What becomes of it where there is Yama is seen in the guest: tests/rdma.rs.)
#[test]
fn yama_is_not_asked_for_leave() {
    if !build::have("strace") {
        return skip("PR_SET_PTRACER: no strace");
    }
    let mut command = Command::new("strace");
    let program = build::program("hello");
    command
        .args(["-f", "-e", "trace=prctl", "env"])
        .arg(format!("LD_PRELOAD={}", build::shim().display()))
        .args(["REGALL=1", "REGALL_PIN=populate"])
        .arg(program);
    let traced = said(&mut command);
    // It makes such calls, and they are seen.
    assert!(
        traced.stderr.contains("PR_GET_DUMPABLE"),
        "{}",
        traced.stderr
    );
    assert!(
        !traced.stderr.contains("PR_SET_PTRACER"),
        "{}",
        traced.stderr
    );
}

#[test]
fn a_broken_directory_is_called_so() {
    let owner = Owner::new();
    // SAFETY: a system call without arguments.
    let folder = format!("/dev/shm/regall-{}", unsafe { libc::geteuid() });
    let prefix = format!("{}.", owner.pid());
    let names = fs::read_dir(folder).expect("a folder").flatten();
    let is_directory = |name: &str| name.starts_with(&prefix) && !name.ends_with(".sock");
    let mut found = names.filter(|f| is_directory(&f.file_name().to_string_lossy()));
    let path = found.next().expect("a directory").path();
    let file = fs::OpenOptions::new().write(true).open(path);
    file.and_then(|f| f.set_len(100)).expect("cut short");
    let refused = peek(&[&owner.pid(), "0x10000", "16"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("corrupt"), "{}", refused.stderr);
    one_line(&refused, "a broken directory");
}
