//! The environment, read once before main. It comes from the constructor's
//! arguments: that early, libc's own `environ` is still empty.

use crate::text::number;
use crate::uverbs::wire::faults;
use core::ffi::CStr;
pub use regall_settings::*;

/// Takes one `REGALL_…` variable into `config`.
pub fn set(config: &mut Config, name: &[u8], value: &[u8]) -> Result<(), Problem> {
    if cfg!(feature = "planted") && name == b"REGALL_FAIL_REQUEST" {
        let mut words = value.split(|b| *b == b':').map(|w| number(w).unwrap_or(0));
        faults::arm(words.next().unwrap_or(0), words.next().unwrap_or(12));
        return Ok(());
    }
    config.set(name, value)
}

/// Variables that name files, which are written. [`Environment::names_the_library`] says where
/// they count; REGALL_CHECK has a name for its file if none is set.
pub const FILES: [&[u8]; 4] = [
    b"REGALL_CHECK",
    b"REGALL_CHECK_FILE",
    b"REGALL_LOG_FILE",
    b"REGALL_STATS_FILE",
];

/// What the library's file, and each copy of it, is called.
const LIBRARY: &[u8] = b"libregall";

/// The program's environment, as the kernel put it on the stack.
#[derive(Clone, Copy)]
pub struct Environment(*const *const core::ffi::c_char);

impl Environment {
    /// # Safety
    /// `envp` is a NULL-terminated array of C strings, or NULL.
    pub const unsafe fn new(envp: *const *const core::ffi::c_char) -> Self {
        Self(envp)
    }

    /// Returns whether LD_PRELOAD in it names the library. If not, something else has loaded it:
    /// /etc/ld.so.preload, or the program is linked with it. Then somebody who may not choose what
    /// this program loads may have chosen the environment: who ran a setuid program that has
    /// executed this one. (ld.so takes LD_PRELOAD out of such a program's environment.)
    pub fn names_the_library(self) -> bool {
        let named = |list: &[u8]| {
            let all = list.split(|b| matches!(b, b':' | b' '));
            let mut names = all.filter_map(|path| path.rsplit(|b| *b == b'/').next());
            names.any(|name| name.starts_with(LIBRARY))
        };
        self.with(b"LD_PRELOAD", named) == Some(true)
    }

    /// Calls `f` with each name and value.
    pub fn each(self, mut f: impl FnMut(&[u8], &[u8])) {
        let mut at = self.0;
        while !at.is_null() {
            // SAFETY: within the array: its NULL has not been met yet.
            let entry = unsafe { *at };
            if entry.is_null() {
                return;
            }
            // SAFETY: an entry is a C string.
            let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
            let split = text.iter().position(|b| *b == b'=').unwrap_or(text.len());
            f(
                text.get(..split).unwrap_or(&[]),
                text.get(split + 1..).unwrap_or(&[]),
            );
            // SAFETY: the array goes on until its NULL.
            at = unsafe { at.add(1) };
        }
    }

    /// Calls `f` with the value of `name`, if it is set.
    pub fn with<R>(self, name: &[u8], mut f: impl FnMut(&[u8]) -> R) -> Option<R> {
        let mut found = None;
        self.each(|n, v| {
            if n == name && found.is_none() {
                found = Some(f(v));
            }
        });
        found
    }
}
