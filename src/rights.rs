//! This process's credentials: what they were when the program began, and whether they have
//! changed since. The memory of one that has given a user or capabilities up may hold what was
//! meant for those alone, so nothing of it is lent from then on, in no child either: its helper
//! ends, and its children's directories are for root.

use crate::arch::Frame;
use crate::base::{
    counters, mode,
    withheld::{self, withheld, withhold},
};
use crate::config::Intercept;
use crate::limits;
use crate::sys::credentials::Credentials;
use crate::sys::{self, file, Errno};
use crate::track::{self, adopting, filters, limited, subscribers};
use core::sync::atomic::{AtomicU64, Ordering::*};
use regall_bridge::rights;
use regall_directory::layout::Call;
use regall_directory::planted;

/// Words of [`FIRST`].
const WORDS: usize = 7;
/// The credentials of the program's first thread at its start.
static FIRST: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

fn words(it: &Credentials) -> [u64; WORDS] {
    let pair = |one: u32, other: u32| u64::from(one) << 32 | u64::from(other);
    let [a, b, c, d] = it.uids;
    let [e, f, g, h] = it.gids;
    [
        pair(a, b),
        pair(c, d),
        pair(e, f),
        pair(g, h),
        it.permitted,
        it.effective,
        it.inheritable,
    ]
}

/// The credentials of this thread. A filter may forbid one of the system calls.
fn current() -> Option<Credentials> {
    Credentials::current().or_else(by_status)
}

/// The same with the ids for files, which cost more to ask for. A program begins with them equal
/// to the effective ones.
fn current_in_full() -> Option<Credentials> {
    by_status().or_else(Credentials::current)
}

fn by_status() -> Option<Credentials> {
    Credentials::read(c"/proc/thread-self/status")
}

/// At start-up, before anything else is asked here.
pub fn init() {
    let current = current();
    if let Some(it) = &current {
        for (place, word) in FIRST.iter().zip(words(it)) {
            place.store(word, Relaxed);
        }
    }
    withheld::begin(current.is_some_and(lends));
}

/// Whether `own`, of this process at its start, are such that anything is lent. Memory that the
/// kernel keeps from others at the start of a program is that of one whose file they can't read.
#[cold]
fn lends(own: Credentials) -> bool {
    let ambient = match own.permitted {
        // It is a part of these.
        0 => 0,
        _ => match Credentials::read(c"/proc/thread-self/status") {
            Some(read) => read.ambient,
            None => return false,
        },
    };
    rights::lends(&Credentials { ambient, ..own }) && dumpable() == Some(1)
}

/// What prctl(2) says of PR_GET_DUMPABLE. The kernel sets it to another value when effective
/// or file-system ids change, or capabilities come.
pub fn dumpable() -> Option<u64> {
    sys::process::dumpable().ok()
}

/// Whether `it`, of this process, is what its first thread's were when the program began.
pub fn unchanged(it: &Credentials) -> bool {
    let first = FIRST.iter().map(|word| word.load(Relaxed));
    first.eq(words(it))
}

/// In a child of fork: its parent's thread may have had others than the program began with.
/// Where no hook sees setfsuid(2), and where the kernel says of the memory what it says after
/// that, it is looked for, too.
pub fn child() {
    if withheld() {
        return;
    }
    let unseen = mode::mode() == Intercept::Symbols || dumpable() != Some(1);
    let now = match unseen {
        true => current_in_full(),
        false => current(),
    };
    if !now.is_some_and(|it| unchanged(&it)) {
        withhold();
    }
}

/// What the first thread's were when the program began.
pub fn first() -> Credentials {
    let pair = |n: usize| {
        let word = FIRST.get(n).map_or(0, |word| word.load(Relaxed));
        [(word >> 32) as u32, word as u32]
    };
    let four = |n| {
        let ([a, b], [c, d]) = (pair(n), pair(n + 1));
        [a, b, c, d]
    };
    let [.., permitted, effective, inheritable] = &FIRST;
    Credentials {
        uids: four(0),
        gids: four(2),
        permitted: permitted.load(Relaxed),
        effective: effective.load(Relaxed),
        inheritable: inheritable.load(Relaxed),
        ambient: 0,
    }
}

/// A call that may change this thread's credentials, its limit of locked memory, or what calls it may
/// make.
#[inline(never)]
pub fn change(frame: &Frame) -> i64 {
    let [first, second, new, ..] = frame.args;
    let may_bind = match frame.nr as libc::c_long {
        libc::SYS_prctl | libc::SYS_seccomp => return filters::change(frame),
        libc::SYS_setrlimit | libc::SYS_prlimit64 => {
            // prlimit(2) takes the number of any thread, and changes the whole process's limit.
            let (resource, set) = match frame.nr as libc::c_long {
                libc::SYS_setrlimit => (first, true),
                _ => (second, new != 0),
            };
            return match set && resource as u32 == libc::RLIMIT_MEMLOCK {
                true => {
                    // What comes later would be refused.
                    adopting::finish();
                    limited::around(|| track::real(frame))
                }
                false => track::real(frame),
            };
        }
        // Of these, capabilities depend on the user alone (capabilities(7)).
        libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid | libc::SYS_capset => true,
        libc::SYS_unshare => first as i32 & libc::CLONE_NEWUSER != 0,
        // A descriptor alone does not say what it is a namespace of.
        libc::SYS_setns => second as i32 == 0 || second as i32 & libc::CLONE_NEWUSER != 0,
        _ => false,
    };
    match may_bind && limits::has_memlock() {
        true => limited::around(|| change_credentials(frame)),
        false => change_credentials(frame),
    }
}

/// If the call changes them, the helper has ended before the application goes on.
fn change_credentials(frame: &Frame) -> i64 {
    counters::count_call(Call::Credentials);
    without_rotator(|| planted!("credentials-unseen", track::real(frame), change_seen(frame)))
}

/// No thread of the shim's has credentials of before, nor is one in the way of the call.
fn without_rotator(make: impl FnOnce() -> i64) -> i64 {
    let paused = (subscribers::table().keys_pause)();
    let value = make();
    if paused {
        (subscribers::table().keys_resume)();
    }
    value
}

fn change_seen(frame: &Frame) -> i64 {
    let namespaces = matches!(
        frame.nr as libc::c_long,
        libc::SYS_unshare | libc::SYS_setns
    );
    let changes = wants_one_thread(frame);
    if changes {
        alone();
    }
    // Of the calls for namespaces, one that takes more threads leaves the credentials alone.
    if withheld() || namespaces && !changes {
        return track::real(frame);
    }
    let of_files = match frame.nr as libc::c_long {
        libc::SYS_setfsuid => Some(Files::User),
        libc::SYS_setfsgid => Some(Files::Group),
        _ => None,
    };
    let files = of_files.map(|which| (which, frame.args[0] as u32));
    around(files, || track::real(frame))
}

/// Whether the kernel refuses this call to a process with more than one thread, or with one that
/// shares its root and working directory (unshare(2), setns(2)).
fn wants_one_thread(frame: &Frame) -> bool {
    const UNSHARE: i32 =
        libc::CLONE_NEWUSER | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM;
    /// CLONE_NEWTIME.
    const TIME: i32 = 0x80;
    const SETNS: i32 = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | TIME;
    match frame.nr as libc::c_long {
        libc::SYS_unshare => frame.args[0] as i32 & UNSHARE != 0,
        // Whatever the descriptor is of. What is of no namespace is refused.
        libc::SYS_setns if frame.args[1] as i32 == 0 => {
            match file::namespace_kind(frame.args[0] as i32) {
                Ok(Some(kind)) => kind & SETNS != 0,
                Ok(None) | Err(Errno::BADF) => false,
                Err(_) => true,
            }
        }
        libc::SYS_setns => frame.args[1] as i32 & SETNS != 0,
        _ => false,
    }
}

/// Ends the helper, if there is one, before a call that it would be in the way of. It does not
/// come back: most such calls change what the process may do.
#[cold]
#[inline(never)]
fn alone() {
    if sys::is_memory_owner() && subscribers::helpers() != 0 {
        withhold();
        subscribers::nothing_lent(true);
    }
}

/// Which id for files a call sets.
#[derive(Clone, Copy)]
pub enum Files {
    /// The user id of setfsuid(2).
    User,
    /// The group id of setfsgid(2).
    Group,
}

/// As [`change`], around whatever makes the call; `files`: the id for files that it asks for.
pub fn change_by(files: Option<(Files, u32)>, make: impl FnOnce() -> i64) -> i64 {
    without_rotator(|| match limits::has_memlock() {
        true => limited::around(|| around(files, make)),
        false => around(files, make),
    })
}

/// Ends the helper if `make` changes the credentials.
#[cold]
#[inline(never)]
fn around(files: Option<(Files, u32)>, make: impl FnOnce() -> i64) -> i64 {
    let value = make();
    // Whether it failed does not matter, and setfsuid(2) would not say. A child of vfork changes
    // its own, not its parent's.
    let ours = sys::is_memory_owner();
    if ours && !withheld() && !is_unchanged_by(files) {
        withhold();
        subscribers::nothing_lent(false);
    }
    value
}

/// Whether this thread's credentials are the first ones still. What the kernel can't be asked
/// after setfsuid(2) counts as done.
fn is_unchanged_by(files: Option<(Files, u32)>) -> bool {
    let now = match files {
        None | Some((_, NO_ID)) => current(),
        Some((which, id)) => by_status().or_else(|| {
            let mut now = Credentials::current()?;
            match which {
                Files::User => now.uids[3] = id,
                Files::Group => now.gids[3] = id,
            }
            Some(now)
        }),
    };
    now.is_some_and(|it| unchanged(&it))
}

/// With it, setfsuid(2) only tells.
const NO_ID: u32 = u32::MAX;
