//! A /dev/shm of one's own: nobody else's directories are in it, and who fills it disturbs
//! nobody.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::child;
use crate::mode::Mode;
use crate::onlooker;

/// Gives the calling thread, and what it starts from now on, a /dev/shm of `megabytes` MiB.
/// Only root may; anybody else gets the reason.
pub fn private_shm(megabytes: usize) -> Result<(), String> {
    let done = |what: &str, result: i32| {
        let failed = || format!("{what}: {}", io::Error::last_os_error());
        (result == 0).then_some(()).ok_or_else(failed)
    };
    let options = format!("size={megabytes}m,mode=1777\0");
    // SAFETY: system calls; all texts end with a zero and are only read. The namespace is
    // this thread's alone, and mounts in it are seen by nobody else once it is private.
    unsafe {
        done("unshare", libc::unshare(libc::CLONE_NEWNS))?;
        let none = std::ptr::null();
        let private = libc::MS_REC | libc::MS_PRIVATE;
        done(
            "a private tree",
            libc::mount(none, c"/".as_ptr(), none, private, none.cast()),
        )?;
        done(
            "a tmpfs",
            libc::mount(
                c"tmpfs".as_ptr(),
                c"/dev/shm".as_ptr(),
                c"tmpfs".as_ptr(),
                libc::MS_NOSUID | libc::MS_NODEV,
                options.as_ptr().cast(),
            ),
        )
    }
}

/// What of directories is left in the calling thread's own /dev/shm after more programs have
/// run: each sweeps up what the dead have left. Who was killed with much memory takes a while
/// to be dead, and is not while nobody has waited for it.
pub fn left_behind() -> Vec<PathBuf> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        onlooker::reap();
        let mut next = Command::new("true");
        Mode::Populate.apply(&mut next);
        let done = child::run(&mut next, Duration::from_secs(60));
        done.must_succeed();
        let left = directories();
        if left.is_empty() || Instant::now() > until {
            return left;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn directories() -> Vec<PathBuf> {
    let folders = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let ours = folders.filter(|e| e.file_name().to_string_lossy().starts_with("regall-"));
    ours.flat_map(|e| fs::read_dir(e.path()).into_iter().flatten().flatten())
        .map(|e| e.path())
        .collect()
}
