//! The rows that a program runs in: values of what is set and of who runs it, such that each pair
//! of values of two of them is in some row.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build;
use crate::mode::Mode;

/// REGALL_INTERCEPT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs)]
pub enum Intercept {
    Patch,
    Symbols,
    Strict,
}

/// REGALL_PIN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs)]
pub enum Pin {
    Auto,
    OnFault,
    Populate,
    Off,
}

/// REGALL_SHARE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs)]
pub enum Share {
    Off,
    Always,
}

/// Who runs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum User {
    /// Who runs the tests: root, for whom RLIMIT_MEMLOCK does not bind.
    Root,
    /// User 1000 with an RLIMIT_MEMLOCK of 64 KiB.
    KiB64,
    /// User 1000 with an RLIMIT_MEMLOCK of 8 MiB.
    MiB8,
    /// User 1000 without a limit: of RLIM_INFINITY, or by CAP_IPC_LOCK where root may not raise one.
    Unlimited,
}

/// A way to run a program with the shim on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs)]
pub struct Row {
    pub intercept: Intercept,
    pub pin: Pin,
    pub share: Share,
    pub user: User,
}

/// Each of them.
pub const USERS: [User; 4] = [User::Root, User::KiB64, User::MiB8, User::Unlimited];
const PINS: [Pin; 4] = [Pin::Auto, Pin::OnFault, Pin::Populate, Pin::Off];
const INTERCEPTS: [Intercept; 3] = [Intercept::Patch, Intercept::Strict, Intercept::Symbols];
const SHARES: [Share; 2] = [Share::Off, Share::Always];

/// The defaults, as root.
pub const DEFAULT: Row = row(0, 0);
/// Rows of a program, beside the one in which the shim is there and off.
pub const MOST: usize = 6;
/// As many of them, in `make test`.
pub const FEW: usize = 3;

/// The row of the `pin`th pin and the `user`th user; the other two follow from both, so that
/// all pairs are there.
const fn row(pin: usize, user: usize) -> Row {
    Row {
        pin: PINS[pin],
        user: USERS[user],
        intercept: INTERCEPTS[(pin + user) % 3],
        share: SHARES[(user ^ (pin >> 1)) & 1],
    }
}

/// All rows.
pub fn all() -> Vec<Row> {
    let pairs = (0..PINS.len()).flat_map(|pin| (0..USERS.len()).map(move |user| (pin, user)));
    pairs.map(|(pin, user)| row(pin, user)).collect()
}

/// So many rows of a program: the defaults, then those that its name says.
pub fn of(program: &str, count: usize) -> Vec<Row> {
    let mut rest = all();
    rest.retain(|row| *row != DEFAULT);
    // FNV-1a, of the name and the row: another order for each program.
    let rank = |row: &Row| {
        let text = format!("{program} {row:?}");
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        })
    };
    rest.sort_by_key(rank);
    rest.truncate(count - 1);
    [vec![DEFAULT], rest].concat()
}

impl Row {
    /// Its values, each by a word that no other has.
    pub fn values(self) -> [String; 4] {
        [
            format!("intercept {:?}", self.intercept),
            format!("pin {:?}", self.pin),
            format!("share {:?}", self.share),
            format!("user {:?}", self.user),
        ]
    }

    /// What is expected of it as far as pinning goes.
    pub fn mode(self) -> Mode {
        match self.pin {
            Pin::Auto => Mode::Auto,
            Pin::OnFault => Mode::OnFault,
            Pin::Populate => Mode::Populate,
            Pin::Off => Mode::Off,
        }
    }

    /// Sets a command up to run in this row; [`Account`] says as whom.
    pub fn apply(self, command: &mut Command) {
        self.mode().apply(command);
        match self.intercept {
            Intercept::Patch => (),
            Intercept::Symbols => drop(command.env("REGALL_INTERCEPT", "symbols")),
            Intercept::Strict => drop(command.env("REGALL_INTERCEPT", "strict")),
        }
        if self.share == Share::Always {
            command.env("REGALL_SHARE", "always");
        }
    }
}

/// Files that user 1000 can read and run: those of the work tree, or copies of them.
#[derive(Debug)]
pub struct Account {
    copies: Option<tempfile::TempDir>,
}

const UID: u32 = 1000;
const CAP_IPC_LOCK: u32 = 14;

impl Account {
    /// Finds out whether the user gets at what `program` and the shim need.
    pub fn new(program: &Path) -> Self {
        let reads = |file: &Path| {
            let mut test = Command::new("test");
            let done = test.arg("-r").arg(file).uid(UID).gid(UID).status();
            done.is_ok_and(|status| status.success())
        };
        let copies = || {
            let folder = tempfile::tempdir().expect("a folder");
            let open = Permissions::from_mode(0o755);
            fs::set_permissions(folder.path(), open).expect("rights");
            folder
        };
        let reached = !is_root() || reads(program) && reads(&build::shim());
        Self {
            copies: (!reached).then(copies),
        }
    }

    fn of(&self, file: &Path) -> PathBuf {
        let Some(folder) = &self.copies else {
            return file.to_owned();
        };
        let copy = folder.path().join(file.file_name().expect("a name"));
        if !copy.exists() {
            fs::copy(file, &copy).expect("a copy");
        }
        copy
    }

    /// `program` as this user, in a row or without the shim. Who runs the tests and is not root can
    /// only lower a limit; an error says that there is no such user here.
    pub fn command(&self, program: &Path, user: User, row: Option<Row>) -> io::Result<Command> {
        let file = if user == User::Root {
            program.to_owned()
        } else {
            self.of(program)
        };
        let mut command = Command::new(file);
        match row {
            None => Mode::Plain.apply(&mut command),
            Some(row) => row.apply(&mut command),
        }
        let limit = match user {
            User::Root => return Ok(command),
            User::KiB64 => 64 << 10,
            User::MiB8 => 8 << 20,
            User::Unlimited => libc::RLIM_INFINITY,
        };
        let preload =
            |(name, value): (&OsStr, Option<&OsStr>)| name == "LD_PRELOAD" && value.is_some();
        if command.get_envs().any(preload) {
            command.env("LD_PRELOAD", self.of(&build::shim()));
        }
        let root = is_root();
        if !root && limit > hard_limit() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // (Not by the command's own `uid`, behind which a limit could not be raised.)
        let become_user = move || become_user(root, limit);
        // SAFETY: `become_user` needs no memory.
        unsafe { command.pre_exec(become_user) };
        Ok(command)
    }
}

/// Makes the calling process, which is about to run a program, one of the user's (if it is root's),
/// with this RLIMIT_MEMLOCK.
fn become_user(root: bool, limit: u64) -> io::Result<()> {
    let done = |result: i64| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    let limits = libc::rlimit {
        rlim_cur: limit,
        rlim_max: limit,
    };
    // SAFETY: system calls, of values that are this function's own.
    unsafe {
        let limited = done(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limits).into());
        if !root {
            return limited;
        }
        done(libc::prctl(libc::PR_SET_KEEPCAPS, 1).into())?;
        done(libc::setgroups(0, std::ptr::null()).into())?;
        done(libc::setgid(UID).into())?;
        done(libc::setuid(UID).into())?;
        // Capabilities of version 3, effective, permitted and inheritable: that one or none.
        let head = [0x2008_0522_u32, 0];
        let locks = u32::from(limited.is_err()) << CAP_IPC_LOCK;
        let sets = [locks, locks, locks, 0, 0, 0];
        done(libc::syscall(
            libc::SYS_capset,
            head.as_ptr(),
            sets.as_ptr(),
        ))?;
        if limited.is_err() {
            let raise = libc::PR_CAP_AMBIENT_RAISE;
            done(libc::prctl(libc::PR_CAP_AMBIENT, raise, CAP_IPC_LOCK, 0, 0).into())?;
        }
    }
    Ok(())
}

fn is_root() -> bool {
    // SAFETY: a system call without arguments.
    unsafe { libc::geteuid() == 0 }
}

fn hard_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call writes into `limit` alone.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    limit.rlim_max
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn pairs(rows: &[Row]) -> BTreeSet<(String, String)> {
        let mut all = BTreeSet::new();
        for values in rows.iter().map(|row| row.values()) {
            for (n, first) in values.iter().enumerate() {
                for second in &values[n + 1..] {
                    all.insert((first.clone(), second.clone()));
                }
            }
        }
        all
    }

    #[test]
    fn each_pair_of_values_is_in_a_row() {
        // intercept x pin, x share, x user; pin x share, x user; share x user.
        let wanted = 3 * 4 + 3 * 2 + 3 * 4 + 4 * 2 + 4 * 4 + 2 * 4;
        let all = all();
        assert_eq!((all.len(), pairs(&all).len()), (16, wanted));
        // The check can fail.
        assert!(pairs(&all[1..]).len() < wanted);
    }

    #[test]
    fn programs_have_rows_of_their_own() {
        let names = ["mmap", "fork", "brk", "exec", "mlock", "shm"];
        let rows = names.map(|name| of(name, FEW));
        assert!(rows
            .iter()
            .all(|rows| rows.len() == FEW && rows[0] == DEFAULT));
        let different: BTreeSet<_> = rows.iter().map(|rows| format!("{rows:?}")).collect();
        assert!(different.len() > 3, "{rows:?}");
    }
}
