//! What the kernel lets one do to code, which calls a filter takes away, and what
//! only newer kernels have.

use rustix::fs::{open, Mode, OFlags};
use rustix::io::pwrite;
use rustix::ioctl::{ioctl, opcode, Opcode, Updater};
use rustix::mm::{mprotect, MapFlags, MprotectFlags};

use super::attempt::{errno, in_child, last, map, text, Failure, READ_WRITE};
use super::finding::{Finding, Standing::*, Who};
use super::place::{field, read, Place};

/// Whether the instructions of mapped code can be changed, as the shim does it: by
/// mprotect, else through /proc/self/mem.
pub fn patching(near: &Place) -> Finding {
    let name = "patching code";
    let tried = in_child(|| {
        // A page of this very code: a private mapping of a file, as libc's is.
        let page = (patching as fn(&Place) -> Finding as usize) & !4095;
        let all = MprotectFlags::READ | MprotectFlags::WRITE | MprotectFlags::EXEC;
        // SAFETY: nothing is written, and only a child of fork sees the protection.
        let by_mprotect = errno(unsafe { mprotect(page as _, 4096, all) });
        [by_mprotect, through_memory(page)]
    });
    match tried {
        Ok([0, _]) => Finding::new(name, Good, "text can be made writable and executable"),
        Ok([no, 0]) => Finding::new(
            name,
            Good,
            format!(
                "through /proc/self/mem (writable and executable at once: {})",
                text(no)
            ),
        ),
        Ok([no, no_memory]) => {
            let found = format!(
                "mprotect: {}; /proc/self/mem: {}",
                text(no),
                text(no_memory)
            );
            let finding = Finding::new(name, Limits, found)
                .effect("REGALL_INTERCEPT=symbols, which misses malloc's memory and thread stacks");
            near.mend(
                finding,
                "--security-opt seccomp=unconfined",
                "sudo setsebool -P allow_execmod 1 # SELinux; else see the filter below",
            )
        }
        Err(why) => Finding::new(name, Limits, why.to_string())
            .effect("programs with the shim are killed when it patches code")
            .mend(Who::You, "REGALL_INTERCEPT=symbols"),
    }
}

/// Writes the byte that is there to `page`, which it may not write.
fn through_memory(page: usize) -> i64 {
    // SAFETY: this process's own code, which can be read.
    let byte = unsafe { (page as *const u8).read() };
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let memory = open("/proc/self/mem", flags, Mode::empty());
    errno(memory.and_then(|memory| pwrite(memory, &[byte], page as u64)))
}

/// A call that the shim makes, and what is lost without it.
struct Call {
    name: &'static str,
    /// What it answers: 0, or the errno.
    made: fn() -> i64,
    /// What to do where it is refused, and where it kills.
    without: &'static str,
}

/// A page of a child's own, or 0.
fn page() -> u64 {
    map(4096, READ_WRITE, MapFlags::empty()).map_or(0, |p| p as u64)
}

/// Makes a call by its number: a filter may let another one through that does the same.
fn call(number: i64, arguments: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: whoever calls this gives it memory of a child of its own.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => last().raw_os_error().into(),
        _ => 0,
    }
}

const CALLS: [Call; 9] = [
    Call {
        name: "mlock",
        made: || call(libc::SYS_mlock, [page(), 4096, 0, 0, 0, 0]),
        without: "REGALL_PIN=off",
    },
    Call {
        name: "mlock2",
        made: || call(libc::SYS_mlock2, [page(), 4096, 1, 0, 0, 0]),
        without: "REGALL_PIN=populate or off",
    },
    Call {
        name: "munlock",
        made: || call(libc::SYS_munlock, [page(), 4096, 0, 0, 0, 0]),
        without: "REGALL_PIN=off",
    },
    Call {
        name: "prlimit64",
        made: || {
            let mut limit = [0u64; 2];
            let to = limit.as_mut_ptr() as u64;
            call(
                libc::SYS_prlimit64,
                [0, libc::RLIMIT_MEMLOCK.into(), 0, to, 0, 0],
            )
        },
        without: "REGALL_PIN=off",
    },
    Call {
        name: "capget",
        made: || {
            let (mut header, mut data) = ([0x2008_0522u32, 0], [0u32; 6]);
            let to = [header.as_mut_ptr() as u64, data.as_mut_ptr() as u64];
            call(libc::SYS_capget, [to[0], to[1], 0, 0, 0, 0])
        },
        without: "REGALL_PIN=off",
    },
    Call {
        name: "madvise",
        made: || {
            let dontneed = libc::MADV_DONTNEED as u64;
            call(libc::SYS_madvise, [page(), 4096, dontneed, 0, 0, 0])
        },
        without: "REGALL_ONLY=OTHERS",
    },
    Call {
        name: "memfd_create",
        made: || {
            let name = c"regall-doctor".as_ptr() as u64;
            call(
                libc::SYS_memfd_create,
                [name, libc::MFD_CLOEXEC.into(), 0, 0, 0, 0],
            )
        },
        without: "REGALL_SHARE=off",
    },
    Call {
        name: "process_vm_readv",
        // Of itself: what is refused here is not for whose memory it is.
        made: || {
            let vector = [page(), 8];
            let (pid, at) = (std::process::id().into(), vector.as_ptr() as u64);
            call(libc::SYS_process_vm_readv, [pid, at, 1, at, 1, 0])
        },
        without: "REGALL_COPY=map,helper",
    },
    Call {
        name: "socket",
        made: || {
            let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
            call(
                libc::SYS_socket,
                [libc::AF_UNIX as u64, kind as u64, 0, 0, 0, 0],
            )
        },
        without: "REGALL_COPY=map,cma",
    },
];

/// Whether a seccomp filter is in effect, and what it takes from the shim.
pub fn seccomp(near: &Place) -> Finding {
    let name = "seccomp";
    let Some(status) = read("/proc/self/status") else {
        return Finding::new(name, Unknown, "/proc/self/status can't be read");
    };
    match field(&status, "Seccomp") {
        None => return Finding::new(name, Absent, "this kernel has none"),
        Some("0") => return Finding::new(name, Good, "no filter"),
        Some(_) => (),
    }
    let mut words = Vec::new();
    let mut settings: Vec<&str> = Vec::new();
    for call in &CALLS {
        let word = match in_child(|| [(call.made)()]) {
            Ok([0]) => continue,
            // A limit is another finding's.
            Ok([no]) if no == i64::from(libc::ENOMEM) => continue,
            Ok([no]) => format!("{} ({})", call.name, text(no)),
            Err(Failure::Killed(_)) => format!("{} (kills)", call.name),
            Err(why) => format!("{} ({why})", call.name),
        };
        words.push(word);
        if !settings.contains(&call.without) {
            settings.push(call.without);
        }
    }
    if words.is_empty() {
        return Finding::new(
            name,
            Good,
            "a filter, which lets through what the shim calls",
        );
    }
    let finding = Finding::new(
        name,
        Limits,
        format!("a filter forbids {}", words.join(", ")),
    )
    .measured("forbidden", words)
    .effect("the shim does without these calls, or the program is killed for them")
    .mend(Who::You, settings.join(" "));
    near.mend(
        finding,
        "--security-opt seccomp=unconfined # or a profile that allows them",
        "allow them where the filter is made (systemd: SystemCallFilter=)",
    )
}

/// Calls of newer kernels that the shim uses where they are.
pub fn advice() -> Finding {
    let name = "kernel";
    let release = read("/proc/sys/kernel/osrelease").unwrap_or("without a name".into());
    let tried = in_child(|| {
        let advised = |advice: i32| call(libc::SYS_madvise, [page(), 4096, advice as u64, 0, 0, 0]);
        // MADV_DONTNEED_LOCKED.
        [advised(24), advised(libc::MADV_POPULATE_READ), query()]
    });
    let [unpins, populates, queries] = match tried {
        Ok(answers) => answers,
        Err(why) => return Finding::new(name, Limits, format!("{release}: {why}")),
    };
    let word = |answer| if answer == 0 { "yes" } else { "no" };
    let found = format!(
        "{release}; MADV_DONTNEED_LOCKED (5.18) {}, MADV_POPULATE (5.14) {}, PROCMAP_QUERY (6.11) {}",
        word(unpins),
        word(populates),
        word(queries)
    );
    if unpins == 0 {
        return Finding::new(name, Good, found);
    }
    Finding::new(name, Limits, found)
        .effect("an application's madvise of pinned memory costs an unpin and a pin")
        .mend(
            Who::Administrator,
            "sudo apt-get install -t bookworm-backports linux-image-amd64 # Debian; then reboot",
        )
}

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    flags: u64,
    addr: u64,
    answers: [u64; 6],
    device: [u32; 2],
    sizes: [u32; 2],
    texts: [u64; 2],
}

/// One look-up in the list of mappings: 0, or the errno.
fn query() -> i64 {
    const PROCMAP_QUERY: Opcode = opcode::read_write::<ProcmapQuery>(b'f', 17);
    const { assert!(size_of::<ProcmapQuery>() == 0x68 && PROCMAP_QUERY == 0xc068_6611) };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let maps = open("/proc/self/maps", flags, Mode::empty());
    let mut query = ProcmapQuery {
        size: size_of::<ProcmapQuery>() as u64,
        addr: query as fn() -> i64 as usize as u64,
        ..ProcmapQuery::default()
    };
    // SAFETY: the structure that this request takes.
    let request = unsafe { Updater::<PROCMAP_QUERY, _>::new(&mut query) };
    // SAFETY: the request changes nothing but that structure.
    errno(maps.and_then(|maps| unsafe { ioctl(maps, request) }))
}

/// Syscall User Dispatch, for REGALL_INTERCEPT=strict.
pub fn dispatch() -> Finding {
    let name = "strict mode";
    let tried = in_child(|| {
        // Every address may call, so nothing is dispatched.
        let (on, all) = (1u64, u64::MAX >> 1);
        const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
        [call(
            libc::SYS_prctl,
            [PR_SET_SYSCALL_USER_DISPATCH, on, 0, all, 0, 0],
        )]
    });
    match tried {
        Ok([0]) => Finding::new(name, Good, "Syscall User Dispatch is there"),
        Ok([no]) => Finding::new(name, Absent, format!("Syscall User Dispatch: {}", text(no)))
            .effect("REGALL_INTERCEPT=strict acts as patch; nothing else needs it"),
        Err(why) => Finding::new(name, Absent, format!("Syscall User Dispatch: {why}"))
            .effect("REGALL_INTERCEPT=strict can't be used here; nothing else needs it"),
    }
}
