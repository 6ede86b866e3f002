//! Copies between two processes that stand to each other as ranks do: neither is the
//! other's parent, which Yama would let pass.

use rustix::event::pause;
use rustix::io::{self, Errno};
use rustix::process::{set_ptracer, PTracer};

use super::attempt::{errno, fastest, in_child, last, say, text, time, Child};
use super::finding::{Finding, Standing::*, Who};
use super::pages::{in_huge_pages, touched, HUGE_PAGE};
use super::place::{read, Place};

/// Sizes that are copied.
const SIZES: [usize; 2] = [64 << 10, 1 << 20];
/// Each as often; the fastest counts.
const TIMES: usize = 9;

/// A process with memory to be read.
struct Owner {
    child: Child,
    small: usize,
    huge: usize,
}

impl Owner {
    /// Starts one; `willing`: it asks Yama to let anybody at it.
    fn start(willing: bool) -> Option<Self> {
        let child = Child::start(|pipe| {
            if willing {
                // EINVAL without Yama.
                let _ = set_ptracer(PTracer::Any);
            }
            let at = |huge| touched(HUGE_PAGE, huge).map_or(0, |p| p as i64);
            say(pipe, &[at(false), at(true)]);
            // Its parent kills it.
            pause();
        })
        .ok()?;
        let [small, huge] = child.numbers().ok()?;
        (small != 0).then_some(Self {
            child,
            small: small as usize,
            huge: huge as usize,
        })
    }

    /// Whether it has a huge page: where there is none, what was measured is not that.
    fn has_huge_page(&self) -> bool {
        let had = in_huge_pages(&self.child.pid().to_string());
        self.huge != 0 && had.is_some_and(|bytes| bytes >= HUGE_PAGE as u64)
    }
}

/// Reads from a process, all of it.
fn get(pid: i32, from: usize, to: *mut u8, bytes: usize) -> io::Result<()> {
    let local = libc::iovec {
        iov_base: to.cast(),
        iov_len: bytes,
    };
    let remote = libc::iovec {
        iov_base: from as *mut libc::c_void,
        iov_len: bytes,
    };
    // SAFETY: `to` has room for as much; the other side is the kernel's to check.
    match unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) } {
        ..0 => Err(last()),
        got if got as usize == bytes => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

/// Nanoseconds for a copy of each size; the errno of what failed.
#[derive(Clone, Copy)]
struct Times([i64; 2]);

impl Times {
    fn text(self) -> String {
        let Self([small, large]) = self;
        format!("64 KiB in {}, 1 MiB in {}", time(small), time(large))
    }
}

/// A sibling of the owner's copies from `from`.
fn times(pid: i32, from: usize) -> Result<Times, String> {
    let tried = in_child(|| {
        let Some(to) = touched(HUGE_PAGE, true) else {
            return [i64::from(libc::ENOMEM), 0, 0];
        };
        let [small, large] = SIZES.map(|n| fastest(TIMES, || get(pid, from, to, n)));
        match (small, large) {
            (Ok(small), Ok(large)) => [0, small, large],
            (Err(no), _) | (_, Err(no)) => [no.raw_os_error().into(), 0, 0],
        }
    });
    match tried {
        Ok([0, small, large]) => Ok(Times([small, large])),
        Ok([no, ..]) => Err(text(no)),
        Err(why) => Err(why.to_string()),
    }
}

/// What the processor takes for it where the memory is mapped on both sides.
fn mapped() -> Option<Times> {
    let tried = in_child(|| {
        let (Some(from), Some(to)) = (touched(HUGE_PAGE, false), touched(HUGE_PAGE, true)) else {
            return [-1, -1];
        };
        SIZES.map(|n| {
            let copy = || {
                // SAFETY: two pieces of memory of this child's own, each with room.
                unsafe { std::ptr::copy_nonoverlapping(from, to, n) };
                std::hint::black_box(to);
                Ok(())
            };
            fastest(TIMES, copy).unwrap_or(-1)
        })
    });
    tried.ok().filter(|t| t.iter().all(|&t| t > 0)).map(Times)
}

pub fn single_copy(near: &Place) -> Finding {
    let name = "single copy";
    let Some(owner) = Owner::start(false) else {
        return Finding::new(name, Unknown, "no process could be made to copy from");
    };
    let pid = owner.child.pid();
    let small = match times(pid, owner.small) {
        Ok(times) => times,
        Err(why) => return forbidden(near, &why),
    };
    let huge = match owner.has_huge_page() {
        true => times(pid, owner.huge).ok(),
        false => None,
    };
    let mapped = mapped();
    let found = format!("process_vm_readv from a sibling process: {}", small.text());
    let effect = [
        huge.map(|t| format!("with huge pages there {}", t.text())),
        mapped.map(|t| format!("mapped {}", t.text())),
    ];
    let effect = effect.into_iter().flatten().collect::<Vec<_>>().join("; ");
    let mut finding = Finding::new(name, Good, found);
    for (what, times) in [("cma", Some(small)), ("cma_huge", huge), ("mapped", mapped)] {
        if let Some(Times([a, b])) = times {
            finding = finding
                .measured(&format!("{what}_64kib_ns"), a)
                .measured(&format!("{what}_1mib_ns"), b);
        }
    }
    match effect.is_empty() {
        true => finding,
        false => finding.effect(effect),
    }
}

/// What is in the way, found out by leaving one thing after the other away.
fn forbidden(near: &Place, why: &str) -> Finding {
    let found = format!("process_vm_readv from a sibling process: {why}");
    let finding = Finding::new("single copy", Limits, found).effect(
        "MPI libraries copy twice, or say \"Read -1, expected N\"; with regall on both sides \
         copies are served by mapping, /proc/PID/mem or a helper thread",
    );
    let itself = in_child(|| {
        let (from, mut to) = (1u8, 0u8);
        let this = std::process::id() as i32;
        [errno(get(this, &raw const from as usize, &mut to, 1))]
    });
    if itself != Ok([0]) {
        // Whose memory it is does not matter: the call itself is filtered.
        return near.mend(
            finding,
            "--cap-add=SYS_PTRACE --security-opt seccomp=unconfined",
            "allow process_vm_readv and process_vm_writev in the seccomp filter",
        );
    }
    let willing = Owner::start(true);
    let by_yama = willing.is_some_and(|o| times(o.child.pid(), o.small).is_ok());
    if by_yama || scope().is_some_and(|s| s != "0") {
        return near.mend_host(finding, YAMA);
    }
    near.mend(
        finding,
        "--cap-add=SYS_PTRACE",
        "see which security module forbids ptrace between processes of one user",
    )
}

const YAMA: &str = "echo kernel.yama.ptrace_scope=0 | sudo tee /etc/sysctl.d/90-regall.conf && \
    sudo sysctl --system";

fn scope() -> Option<String> {
    read("/proc/sys/kernel/yama/ptrace_scope")
}

/// What MPI libraries read before they try: with a value other than 0 they do not,
/// or only in part.
pub fn yama(near: &Place) -> Finding {
    let name = "Yama";
    let found = match scope().as_deref() {
        None => return Finding::new(name, Good, "not in this kernel: it forbids nothing"),
        Some("0") => return Finding::new(name, Good, "ptrace_scope 0"),
        Some("1") => "ptrace_scope 1: a rank may read only ranks that allow it by PR_SET_PTRACER",
        Some("2") => "ptrace_scope 2: for administrators only",
        Some("3") => "ptrace_scope 3: for nobody, until the next boot",
        Some(other) => {
            let found = format!("ptrace_scope {other}, which this version does not know");
            return Finding::new(name, Unknown, found);
        }
    };
    let finding = Finding::new(name, Limits, found)
        .effect("MPICH tries a single copy only with 0, Open MPI with 0 and 1");
    let finding = near.mend_host(finding, YAMA);
    match found.contains("scope 3") {
        true => finding.mend(Who::Administrator, "sudo reboot # it can't be lowered"),
        false => finding,
    }
}
