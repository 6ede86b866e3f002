//! Which system calls matter, by number.

use crate::each_call;
use crate::layout::Call;

/// Entries of [`CLASS`]; no number that matters is beyond it.
pub const NUMBERS: usize = 512;

/// Not a call that changes what is mapped or locked.
pub const PASS: u8 = 0;
/// A call that goes through the hook.
pub const HOOK: u8 = 1;
/// clone and clone3: through the hook of a patched site, which sends back to the site what shares the
/// address space.
pub const CLONE: u8 = 2;
/// As [`HOOK`], but only in strict mode.
pub const STRICT: u8 = 3;

/// UFFDIO_REGISTER: _IOWR(0xAA, 0, struct uffdio_register).
pub const UFFDIO_REGISTER: u64 = 0xc020_aa00;
/// RDMA_VERBS_IOCTL: _IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr).
pub const RDMA_VERBS_IOCTL: u64 = 0xc018_1b01;

/// The numbers of system calls, also of one that is newer than libc's list.
pub mod raw {
    pub use libc::*;
    /// map_shadow_stack(2)
    #[allow(non_upper_case_globals)]
    pub const SYS_map_shadow_stack: c_long = 453;
}

/// A system call that matters.
struct Row {
    nr: libc::c_long,
    call: Call,
    arguments: u8,
    class: u8,
}

macro_rules! rows {
    ($($(#[$doc:meta])* $name:ident = $n:literal => $word:literal,
        numbers [$($nr:ident $arguments:literal $class:ident),*],
        functions $functions:tt, by_syscall $by_syscall:tt;)*) => {
        /// The numbers of the table of calls.
        const ROWS: &[Row] = &[$($(Row {
            nr: raw::$nr,
            call: Call::$name,
            arguments: $arguments,
            class: $class,
        },)*)*];
    };
}

each_call! { rows }

/// The row of each number that has one, and else `$or`.
macro_rules! by_number {
    ($or:expr, |$row:ident| $value:expr) => {{
        let mut table = [$or; NUMBERS];
        let mut n = 0;
        while n < ROWS.len() {
            let $row = &ROWS[n];
            table[$row.nr as usize] = $value;
            n += 1;
        }
        table
    }};
}

static CALLS: [Option<Call>; NUMBERS] = by_number!(None, |row| Some(row.call));

/// Calls that give a number back to the kernel, which may be that of a descriptor of the shim's. They
/// change no memory, and are not counted.
const DESCRIPTORS: [libc::c_long; 4] = [
    raw::SYS_close,
    raw::SYS_dup2,
    raw::SYS_dup3,
    raw::SYS_close_range,
];

/// What a trampoline does with each number: one of the constants above.
pub static CLASS: [u8; NUMBERS] = {
    let mut table = by_number!(PASS, |row| row.class);
    let mut n = 0;
    while n < DESCRIPTORS.len() {
        table[DESCRIPTORS[n] as usize] = HOOK;
        n += 1;
    }
    table
};

/// The tracked call with number `nr`.
#[inline]
pub fn call_of(nr: u64) -> Option<Call> {
    *CALLS.get(nr as usize)?
}

/// How many arguments the call with number `nr` has: the registers behind these are noise.
#[cold]
pub fn arguments(nr: u64) -> usize {
    let row = ROWS.iter().find(|row| row.nr as u64 == nr);
    match (row, nr as libc::c_long) {
        (Some(row), _) => row.arguments.into(),
        (None, libc::SYS_vfork) => 0,
        (None, libc::SYS_ioctl) => 3,
        (None, _) => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_calls_have_six_arguments() {
        let six = (0..NUMBERS as u64).filter(|nr| call_of(*nr).is_some() && arguments(*nr) == 6);
        let words: Vec<_> = six.filter_map(call_of).map(Call::word).collect();
        let mask = "rt_sigprocmask";
        let copies = ["process_vm_readv", "process_vm_writev"];
        let all = [
            "mmap",
            "mbind",
            mask,
            mask,
            copies[0],
            copies[1],
            "io_uring_setup",
            mask,
        ];
        assert_eq!(words, all);
    }

    #[test]
    fn every_call_has_a_number_but_the_ioctl() {
        for &call in Call::ALL {
            let found = (0..NUMBERS as u64).any(|nr| call_of(nr) == Some(call));
            assert_eq!(found, call != Call::Userfault, "{}", call.word());
        }
        assert_eq!(CLASS[libc::SYS_clone as usize], CLONE);
        assert_eq!(CLASS[libc::SYS_clone3 as usize], CLONE);
        assert_eq!(CLASS[libc::SYS_fork as usize], HOOK);
        assert_eq!(CLASS[libc::SYS_read as usize], PASS);
        assert_eq!(CLASS[libc::SYS_close as usize], HOOK);
    }
    #[test]
    fn each_number_has_its_class_and_its_arguments() {
        for row in ROWS {
            let nr = row.nr as u64;
            assert_eq!(CLASS[row.nr as usize], row.class, "{nr}");
            assert_eq!(
                (call_of(nr), arguments(nr)),
                (Some(row.call), row.arguments.into())
            );
        }
        for nr in DESCRIPTORS {
            assert_eq!(CLASS[nr as usize], HOOK, "{nr}");
        }
        let classes =
            [HOOK, CLONE, STRICT].map(|class| CLASS.iter().filter(|c| **c == class).count());
        let rows = |class| ROWS.iter().filter(|row| row.class == class).count();
        assert_eq!(classes, [rows(HOOK) + DESCRIPTORS.len(), 2, rows(STRICT)]);
        assert_eq!(arguments(libc::SYS_vfork as u64), 0);
        assert_eq!(arguments(libc::SYS_ioctl as u64), 3);
        assert_eq!(arguments(libc::SYS_read as u64), 6);
        assert_eq!((call_of(NUMBERS as u64), call_of(u64::MAX)), (None, None));
    }
}
