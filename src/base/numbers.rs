//! Which system calls matter, by number.

use regall_directory::layout::Call;

/// Entries of [`CLASS`]; no number that matters is beyond it.
pub const NUMBERS: usize = 512;

/// Not a call that changes what is mapped or locked.
pub const PASS: u8 = 0;
/// A call that goes through the hook.
pub const HOOK: u8 = 1;
/// clone: through the hook only if it copies the address space (no CLONE_VM).
pub const CLONE: u8 = 2;
/// As [`HOOK`], but only in strict mode.
pub const STRICT: u8 = 3;
/// clone3: through the hook of a patched site, which looks at the flags in memory and sends
/// back to the site what shares the address space.
pub const CLONE3: u8 = 4;

/// mseal, map_shadow_stack and process_madvise are newer than some libc crates' lists.
const SYS_MAP_SHADOW_STACK: usize = 453;
const SYS_MSEAL: usize = 462;

/// UFFDIO_REGISTER: _IOWR(0xAA, 0, struct uffdio_register).
pub const UFFDIO_REGISTER: u64 = 0xc020_aa00;

/// The tracked call with number `nr`.
#[inline]
pub fn call_of(nr: u64) -> Option<Call> {
    *CALLS.get(nr as usize)?
}

static CALLS: [Option<Call>; NUMBERS] = {
    let mut table = [None; NUMBERS];
    let mut nr = 0;
    while nr < NUMBERS {
        table[nr] = named(nr as u64);
        nr += 1;
    }
    table
};

const fn named(nr: u64) -> Option<Call> {
    Some(match nr as libc::c_long {
        libc::SYS_mmap => Call::Mmap,
        libc::SYS_munmap => Call::Munmap,
        libc::SYS_mremap => Call::Mremap,
        libc::SYS_mprotect => Call::Mprotect,
        libc::SYS_pkey_mprotect => Call::PkeyMprotect,
        libc::SYS_brk => Call::Brk,
        libc::SYS_madvise => Call::Madvise,
        libc::SYS_process_madvise => Call::ProcessMadvise,
        libc::SYS_shmat => Call::Shmat,
        libc::SYS_shmdt => Call::Shmdt,
        libc::SYS_remap_file_pages => Call::RemapFilePages,
        libc::SYS_mlock => Call::Mlock,
        libc::SYS_mlock2 => Call::Mlock2,
        libc::SYS_munlock => Call::Munlock,
        libc::SYS_mlockall => Call::Mlockall,
        libc::SYS_munlockall => Call::Munlockall,
        libc::SYS_msync => Call::Msync,
        libc::SYS_fork | libc::SYS_clone | libc::SYS_clone3 => Call::Fork,
        libc::SYS_io_setup => Call::IoSetup,
        libc::SYS_io_destroy => Call::IoDestroy,
        libc::SYS_io_uring_setup => Call::IoUringSetup,
        libc::SYS_exit_group => Call::ExitGroup,
        libc::SYS_mbind => Call::Mbind,
        libc::SYS_set_robust_list => Call::ThreadStart,
        libc::SYS_rt_sigaction => Call::Sigaction,
        libc::SYS_rt_sigprocmask | libc::SYS_rt_sigsuspend => Call::Sigprocmask,
        libc::SYS_process_vm_readv => Call::ProcessVmReadv,
        libc::SYS_process_vm_writev => Call::ProcessVmWritev,
        libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setfsuid
        | libc::SYS_setfsgid
        | libc::SYS_capset
        | libc::SYS_unshare
        | libc::SYS_setns
        | libc::SYS_setrlimit
        | libc::SYS_prlimit64 => Call::Credentials,
        _ if nr as usize == SYS_MAP_SHADOW_STACK => Call::MapShadowStack,
        _ if nr as usize == SYS_MSEAL => Call::Mseal,
        _ => return None,
    })
}

/// How many arguments the call with number `nr` has: the registers behind these are noise.
pub const fn arguments(nr: u64) -> usize {
    match nr as libc::c_long {
        libc::SYS_fork | libc::SYS_vfork | libc::SYS_munlockall => 0,
        libc::SYS_brk | libc::SYS_shmdt | libc::SYS_mlockall => 1,
        libc::SYS_setuid | libc::SYS_setgid | libc::SYS_setfsuid | libc::SYS_setfsgid => 1,
        libc::SYS_unshare => 1,
        libc::SYS_setrlimit => 2,
        libc::SYS_prlimit64 => 4,
        libc::SYS_setreuid | libc::SYS_setregid | libc::SYS_capset | libc::SYS_setns => 2,
        libc::SYS_setresuid | libc::SYS_setresgid => 3,
        libc::SYS_io_destroy | libc::SYS_exit_group => 1,
        libc::SYS_munmap | libc::SYS_mlock | libc::SYS_munlock | libc::SYS_io_setup => 2,
        libc::SYS_clone3 | libc::SYS_set_robust_list | libc::SYS_rt_sigsuspend => 2,
        libc::SYS_io_uring_setup => 2,
        libc::SYS_mprotect | libc::SYS_madvise | libc::SYS_mlock2 | libc::SYS_msync => 3,
        libc::SYS_shmat | libc::SYS_ioctl => 3,
        libc::SYS_pkey_mprotect | libc::SYS_rt_sigaction | libc::SYS_rt_sigprocmask => 4,
        libc::SYS_mremap | libc::SYS_remap_file_pages | libc::SYS_process_madvise => 5,
        libc::SYS_clone => 5,
        _ if matches!(nr as usize, SYS_MAP_SHADOW_STACK | SYS_MSEAL) => 3,
        _ => 6,
    }
}

/// What a trampoline does with each number: one of the constants above.
pub static CLASS: [u8; NUMBERS] = {
    let mut table = [PASS; NUMBERS];
    let mut nr = 0;
    while nr < NUMBERS {
        table[nr] = match named(nr as u64) {
            None => PASS,
            Some(Call::ThreadStart | Call::Sigaction | Call::Sigprocmask) => STRICT,
            Some(Call::Fork) if nr as libc::c_long == libc::SYS_clone => CLONE,
            Some(Call::Fork) if nr as libc::c_long == libc::SYS_clone3 => CLONE3,
            Some(_) => HOOK,
        };
        nr += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_calls_have_six_arguments() {
        let six = (0..NUMBERS as u64).filter(|nr| call_of(*nr).is_some() && arguments(*nr) == 6);
        let words: Vec<_> = six.filter_map(call_of).map(Call::word).collect();
        let all = ["mmap", "mbind", "process_vm_readv", "process_vm_writev"];
        assert_eq!(words, all);
    }

    #[test]
    fn every_call_has_a_number_but_the_ioctl() {
        for &call in Call::ALL {
            let found = (0..NUMBERS as u64).any(|nr| call_of(nr) == Some(call));
            assert_eq!(found, call != Call::Userfault, "{}", call.word());
        }
        assert_eq!(CLASS[libc::SYS_clone as usize], CLONE);
        assert_eq!(CLASS[libc::SYS_clone3 as usize], CLONE3);
        assert_eq!(CLASS[libc::SYS_fork as usize], HOOK);
        assert_eq!(CLASS[libc::SYS_read as usize], PASS);
    }
}
