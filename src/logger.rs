//! The log: one line a message, made on the stack and written with one system
//! call to standard error or to REGALL_LOG_FILE. Never to standard output.

use crate::base::{launched, settings};
use crate::config::names::Names;
use crate::config::Config;
use crate::sys::{self, file};
use crate::text::Text;
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
        // A handler that jumps away would leave it open.
        let _undisturbed = sys::Undisturbed::new();
        let pattern = &settings::config().log_file;
        let path: Text<1100> = with_names(pattern.as_bytes());
        if let Some(path) = path.as_cstr() {
            // Where it would have to wait for who reads a pipe the line is left out.
            let how = libc::O_APPEND | libc::O_CREAT | libc::O_NOCTTY | libc::O_NONBLOCK;
            let flags = libc::O_WRONLY | how;
            if let Ok(fd) = file::Fd::open(path, flags, 0o600) {
                let _ = fd.write_all(out.as_bytes());
            }
        }
        return;
    }
    let same = file::stat_fd(2)
        .is_ok_and(|s| s.dev == STDERR_DEV.load(Relaxed) && s.inode == STDERR_INODE.load(Relaxed));
    if same {
        file::write_foreign(2, out.as_bytes());
    }
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
