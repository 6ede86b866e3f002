//! seccomp filters for programs under test.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What becomes of a call.
#[derive(Clone, Copy)]
pub enum Fate {
    /// It fails with this errno.
    Fails(i32),
    /// Who makes it is killed.
    Kills,
}

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const ANY_OF: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// A call, and the bits of its third argument without which it is let through; 0: always
/// caught.
pub type Caught = (i64, u32);

/// The program, and all that it starts, can't make these calls. It gets no new
/// privileges, which the kernel wants of who is not root.
pub fn forbid(command: &mut Command, calls: &[Caught], fate: Fate) {
    let verdict = match fate {
        Fate::Fails(errno) => libc::SECCOMP_RET_ERRNO | errno as u32,
        Fate::Kills => libc::SECCOMP_RET_KILL_PROCESS,
    };
    // struct seccomp_data: the number at 0, the lower half of the third argument at 32.
    let mut steps = Vec::new();
    for (number, bits) in calls {
        steps.push(step(LOAD, 0, 0, 0));
        if *bits == 0 {
            steps.push(step(EQUAL, 0, 1, *number as u32));
        } else {
            steps.push(step(EQUAL, 0, 3, *number as u32));
            steps.push(step(LOAD, 0, 0, 32));
            steps.push(step(ANY_OF, 0, 1, *bits));
        }
        steps.push(step(RETURN, 0, 0, verdict));
    }
    steps.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let install = move || {
        let program = libc::sock_fprog {
            len: steps.len() as u16,
            filter: steps.as_ptr().cast_mut(),
        };
        // SAFETY: no memory.
        let privileges = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        let filter = libc::SECCOMP_MODE_FILTER;
        // SAFETY: `program` and its steps outlive the call, which copies them.
        let filtered = unsafe { libc::prctl(libc::PR_SET_SECCOMP, filter, &program) };
        match privileges | filtered {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: `install` makes two system calls and nothing else.
    unsafe { command.pre_exec(install) };
}
