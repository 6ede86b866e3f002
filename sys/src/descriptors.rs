//! Whose descriptors a thread has.

use crate::entry::call;
use crate::errno::Errno;
use crate::file::{self, Fd};
use crate::identity::{getpid, gettid};
use crate::process::{first_thread_has_ended, may_be_filtered};
use crate::text::Text;

/// Whether this thread has the same table of descriptors as the process's first. True where nobody
/// tells: a table of its own is what few threads have.
///
/// kcmp(2) tells, but containers forbid it, and a filter may kill who calls it. Under a filter a
/// file of this thread's alone is opened: who has the same table has it there.
pub fn has_the_process_files() -> bool {
    const KCMP_FILES: u64 = 2;
    if !may_be_filtered() {
        let told = call!(libc::SYS_kcmp, gettid(), getpid(), KCMP_FILES, 0, 0);
        // Kernels may be built without it.
        if let Ok(difference) = told {
            // The process's first thread has none any more once it has ended.
            return difference == 0 || first_thread_has_ended() == Some(true);
        }
    }
    sees_own_file().unwrap_or(true)
}

/// Whether the process's first thread has, under the same number, what this one opens: a file that
/// there is one of for each thread. `None`: /proc does not say.
fn sees_own_file() -> Option<bool> {
    let own = Fd::open(
        c"/proc/thread-self/stat",
        libc::O_RDONLY | libc::O_CLOEXEC,
        0,
    )
    .ok()?;
    let here = own.stat().ok()?;
    let path: Text<64> = Text::of(format_args!("/proc/self/fd/{}", own.raw()));
    match file::stat_path(path.as_cstr()?, false) {
        Ok(there) => Some((there.dev, there.inode) == (here.dev, here.inode)),
        Err(Errno::NOENT) => Some(false),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has this thread killed for calling kcmp, with the whole process, from here on.
    fn forbid_kcmp() {
        let step = |code: u32, jt, jf, k| libc::sock_filter {
            code: code as u16,
            jt,
            jf,
            k,
        };
        let steps = [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                0,
                1,
                libc::SYS_kcmp as u32,
            ),
            step(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
            step(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog {
            len: steps.len() as u16,
            filter: steps.as_ptr().cast_mut(),
        };
        // SAFETY: no memory.
        let bound = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        assert_eq!(bound, 0);
        let filter = libc::SECCOMP_MODE_FILTER;
        // SAFETY: `program` and its steps outlive the call, which copies them.
        let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, filter, &program) };
        assert_eq!(set, 0);
    }

    #[test]
    fn a_thread_knows_whether_it_has_the_process_files() {
        for filtered in [false, true] {
            let found = std::thread::spawn(move || {
                if filtered {
                    forbid_kcmp();
                }
                let before = has_the_process_files();
                // SAFETY: this thread's descriptors are its own from here on, and it ends.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
                let after = has_the_process_files();
                (before, after, sees_own_file())
            });
            assert_eq!(
                found.join().unwrap(),
                (true, false, Some(false)),
                "{filtered}"
            );
        }
        assert_eq!(sees_own_file(), Some(true));
    }
}
