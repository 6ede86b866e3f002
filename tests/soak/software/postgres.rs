//! A database server with shared memory and many processes, as a user of its own.

use std::os::unix::fs::{chown, PermissionsExt};

use super::*;

/// What it does, in the folder $D.
const SCRIPT: &str = r#"
set -e
cd "$D"
initdb -D data -A trust -N -U bench >/dev/null
pg_ctl -D data -l log -o "-k $D -c listen_addresses= -c fsync=off" -w start >/dev/null
trap 'pg_ctl -D data -m immediate stop >/dev/null' EXIT
createdb -h "$D" -U bench bench
pgbench -h "$D" -U bench -i -q -s 1 bench 2>/dev/null
pgbench -h "$D" -U bench -c 4 -j 2 -t "$T" bench 2>/dev/null | grep 'actually processed'
psql -h "$D" -U bench -Atc "select count(*), sum(abalance) - (select sum(delta) from pgbench_history) from pgbench_accounts" bench
psql -h "$D" -U bench -Atc "set work_mem = '64MB'; select count(distinct aid * 7 % 100003), md5(string_agg(aid::text, ',' order by bid, aid desc)) from pgbench_accounts" bench
trap - EXIT
pg_ctl -D data -m fast -w stop >/dev/null
"#;

/// The programs of the newest version.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let found = versions.map(|v| v.path().join("bin"));
    found.filter(|p| p.join("initdb").exists()).max()
}

#[test]
fn postgres() {
    // SAFETY: a system call without arguments.
    let root = unsafe { libc::geteuid() } == 0;
    let (Some(programs), true) = (programs(), build::have("setpriv")) else {
        regall_tests::skip("PostgreSQL is not installed");
        return Row::begin("software", "PostgreSQL").skipped("not installed");
    };
    let place = tempfile::tempdir().expect("a folder");
    let open = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(place.path(), open(0o755)).expect("permissions");
    // Where everybody may read it.
    let shim = place.path().join("libregall.so");
    std::fs::copy(build::shim(), &shim).expect("a copy");
    std::fs::set_permissions(&shim, open(0o755)).expect("permissions");
    const NOBODY: u32 = 65534;
    let transactions = regall_tests::soak::rounds(100, 5000).to_string();
    let path = format!("{}:/usr/bin:/bin", programs.display());
    let command = || {
        let folder = place.path().join("database");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).expect("a folder");
        let mut command = if root {
            chown(&folder, Some(NOBODY), Some(NOBODY)).expect("an owner");
            let mut command = Command::new("setpriv");
            let id = NOBODY.to_string();
            command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
            command.arg("bash");
            command
        } else {
            Command::new("bash")
        };
        command.args(["-c", SCRIPT]).env("D", &folder);
        command.env("T", &transactions).env("PATH", &path);
        command.env_remove("PGDATABASE").env("LC_ALL", "C.UTF-8");
        command
    };
    let mut case = Case::new("PostgreSQL", "postgres", &command);
    case.preload = Some(shim.display().to_string());
    case.same();
}
