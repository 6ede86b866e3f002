//! The log: one line a message, made on the stack and written with one system
//! call to standard error or to REGALL_LOG_FILE. Never to standard output.

use crate::base::{launched, settings};
use crate::config::names::Names;
use crate::config::Config;
use crate::sys::{self, file, Errno};
use crate::text::Text;
use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Longest line, in bytes; the rest is cut.
const LINE: usize = 512;

struct Logger;
static LOGGER: Logger = Logger;

/// What standard error was at start-up. A program that closes descriptor 2 and
/// opens a data file there must not find our words in it.
static STDERR_DEV: AtomicU64 = AtomicU64::new(0);
static STDERR_INODE: AtomicU64 = AtomicU64::new(0);
static TO_FILE: AtomicBool = AtomicBool::new(false);

/// Starts the log as `config` says. Once, from the constructor.
pub fn start(config: &Config) {
    remember_stderr();
    if !config.log_file.as_bytes().is_empty() {
        TO_FILE.store(true, Relaxed);
    }
    if log::set_logger(&LOGGER).is_ok() {
        log::set_max_level(config.log_level);
    }
}

fn remember_stderr() {
    if let Ok(s) = file::stat_fd(2) {
        STDERR_DEV.store(s.dev, Relaxed);
        STDERR_INODE.store(s.inode, Relaxed);
    }
}

/// A line for the user before the log is started (a bad setting).
pub fn early(level: &str, args: core::fmt::Arguments) {
    remember_stderr();
    write(&line(level, args));
}

#[cold]
#[inline(never)]
fn line(level: &str, args: core::fmt::Arguments) -> Text<LINE> {
    let mut text = Text::new();
    let _ = write!(text, "regall[{}]: {level}: ", sys::getpid());
    let _ = text.write_fmt(args);
    text
}

#[cold]
#[inline(never)]
fn write(text: &Text<LINE>) {
    // The last byte of the buffer is Text's NUL: use it for the line's end.
    let mut out = Text::<{ LINE + 1 }>::new();
    out.push(text.as_bytes());
    out.push(b"\n");
    if TO_FILE.load(Relaxed) {
        let pattern = settings::config().log_file.as_bytes();
        let path: Text<1100> = with_names(pattern);
        let Some(path) = path.as_cstr() else { return };
        let append = || {
            // Where it would have to wait for who reads a pipe the line is left out.
            if let Ok(fd) = open_named(path, libc::O_APPEND, 0o600) {
                let _ = fd.write_all(out.as_bytes());
            }
        };
        if is_own(pattern) {
            // A handler that jumps away would leave it open.
            let _undisturbed = sys::Undisturbed::new();
            append();
        } else {
            sys::with_own_table(append);
        }
        return;
    }
    let same = file::stat_fd(2)
        .is_ok_and(|s| s.dev == STDERR_DEV.load(Relaxed) && s.inode == STDERR_INODE.load(Relaxed));
    if same {
        file::write_foreign(2, out.as_bytes());
    }
}

/// Returns whether a path names what one of the program's own descriptors is open to.
pub fn is_own(path: &[u8]) -> bool {
    let folders: [&[u8]; 2] = [b"/dev/fd/", b"/proc/self/fd/"];
    matches!(path, b"/dev/stdout" | b"/dev/stderr") || folders.iter().any(|f| path.starts_with(f))
}

/// Opens what a variable names, to write it: what a descriptor of the program's is open to, at its
/// end; or a file that is there or is made, with O_TRUNC in `how` an empty one. No link is
/// followed, and no pipe waited for, now or when it is written to. EPERM: it is a file of another
/// user's.
pub fn open_named(path: &CStr, how: i32, mode: u32) -> Result<file::Fd, Errno> {
    let always = libc::O_WRONLY | libc::O_NOCTTY | libc::O_NONBLOCK;
    if is_own(path.to_bytes()) {
        return file::Fd::open(path, always | libc::O_APPEND, 0);
    }
    let how = how | libc::O_CREAT | libc::O_NOFOLLOW;
    let fd = file::Fd::open(path, always | how & !libc::O_TRUNC, mode)?;
    let there = fd.stat()?;
    if there.mode & libc::S_IFMT == libc::S_IFREG {
        if there.uid != sys::geteuid() {
            return Err(Errno::PERM);
        }
        // Not before it is known whose it is.
        if how & libc::O_TRUNC != 0 {
            fd.truncate(0)?;
        }
    }
    Ok(fd)
}

/// `pattern` with what each `%` and its letter stand for in this process.
pub fn with_names<const N: usize>(pattern: &[u8]) -> Text<N> {
    let host = sys::host();
    let names = Names {
        pid: sys::getpid(),
        uid: sys::geteuid(),
        host: host.as_bytes(),
        job: launched::job(),
        rank: launched::rank(),
        day: launched::day(),
    };
    names.expand(pattern)
}

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        let level = match record.level() {
            log::Level::Error => "error",
            log::Level::Warn => "warn",
            log::Level::Info => "info",
            log::Level::Debug => "debug",
            log::Level::Trace => "trace",
        };
        write(&line(level, *record.args()));
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_this_process() {
        let pid = std::process::id();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let t: Text<128> = with_names(b"/tmp/%p.%%.%h.%r");
        assert_eq!(
            std::str::from_utf8(t.as_bytes()).unwrap(),
            format!("/tmp/{pid}.%.{}.none", host.trim_end())
        );
    }
}
