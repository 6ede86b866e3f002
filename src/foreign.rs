//! Programs of another C library than glibc: the shim stays out of them.
//!
//! musl's loader preloads libraries, too, and calls their constructors without arguments:
//! what is in the registers then is anything.

use crate::arch;
use crate::logger;
use crate::sys::file::{self, Fd};
use regall_directory::settings::LAUNCHERS;

/// Whether a constructor's arguments are glibc's (argc, argv, envp).
pub fn is_from_glibc(args: &[u64; 6]) -> bool {
    let [argc, argv, envp, ..] = *args;
    // Where a program starts its environment stands behind its arguments: no other caller
    // leaves three such numbers by chance. Later (dlopen) it may have been moved by setenv.
    let behind = argc
        .checked_add(1)
        .and_then(|words| argv.checked_add(words.checked_mul(8)?));
    let pointers = argv != 0 && argv % 8 == 0 && envp != 0 && envp % 8 == 0;
    pointers && (behind == Some(envp) || arch::glibc_is_loaded())
}

/// Says that there is nothing done here, if something was asked for.
#[cold]
#[inline(never)]
pub fn decline() {
    if is_asked_for() && !is_launcher() {
        logger::early(
            "warn",
            format_args!("this program's C library is not glibc: regall stays off"),
        );
    }
}

fn is_launcher() -> bool {
    let mut buffer = [0u8; 1024];
    let path = file::read_link(c"/proc/self/exe", &mut buffer);
    path.is_ok_and(|path| {
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
        crate::glob::matches_any(LAUNCHERS, name)
    })
}

/// Whether REGALL is 1, by the kernel's word: nobody has told where the environment is.
fn is_asked_for() -> bool {
    let Ok(environment) = Fd::open(c"/proc/self/environ", libc::O_RDONLY, 0) else {
        return false;
    };
    let mut search = Search::default();
    let (mut buffer, mut at) = ([0u8; 1024], 0);
    while let Ok(n @ 1..) = environment.read_on(&mut at, &mut buffer) {
        let bytes = buffer.get(..n).unwrap_or(&[]);
        if bytes.iter().any(|byte| search.ends_at(*byte)) {
            return true;
        }
    }
    false
}

/// The search for a whole string among strings that end in NUL.
#[derive(Default)]
struct Search {
    /// Bytes of it that this string began with; none: it is another one.
    matched: Option<usize>,
    inside: bool,
}

impl Search {
    const WANTED: &[u8] = b"REGALL=1\0";

    /// Whether it ends with this byte.
    fn ends_at(&mut self, byte: u8) -> bool {
        let at = if self.inside { self.matched } else { Some(0) };
        self.matched = at
            .filter(|at| Self::WANTED.get(*at) == Some(&byte))
            .map(|at| at + 1);
        self.inside = byte != 0;
        self.matched == Some(Self::WANTED.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_string_is_found_whole() {
        for (environment, found) in [
            (&b"REGALL=1\0"[..], true),
            (b"A=B\0REGALL=1\0C=D\0", true),
            (b"REGALL=0\0REGALL=1\0", true),
            (b"XREGALL=1\0", false),
            (b"REGALL=10\0", false),
            (b"REGALL=1", false),
            (b"REGALL=\x00001\0", false),
            (b"\0\0REGALL=1\0", true),
            (b"", false),
        ] {
            let mut search = Search::default();
            let any = environment.iter().any(|byte| search.ends_at(*byte));
            assert_eq!(any, found, "{:?}", core::str::from_utf8(environment));
        }
    }

    #[test]
    fn arguments_that_are_none() {
        let argv = 0x7fff_0000_0000;
        assert!(is_from_glibc(&[2, argv, argv + 24, 0, 0, 0]));
        assert!(is_from_glibc(&[0, argv, argv + 8, 0, 0, 0]));
        for args in [
            [0; 6],
            [1, 0, 16, 0, 0, 0],
            [2, argv + 1, argv + 25, 0, 0, 0],
            [u64::MAX, argv, 3, 0, 0, 0],
        ] {
            assert!(!is_from_glibc(&args), "{args:x?}");
        }
    }
}
