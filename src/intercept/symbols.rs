//! The fallback where code can't be patched (`REGALL_INTERCEPT=symbols`): the
//! relocation slots through which modules call libc's memory functions are
//! pointed at functions here. What libc does inside itself is not seen (malloc,
//! thread stacks, dlopen's own mappings); audits find it.
//!
//! Nothing is exported under libc's names: an exported wrapper would be in the
//! way of every program that the shim is inert in, and other patchers would
//! patch it instead of libc.

use crate::arch::Frame;
use crate::base::maps;
use crate::intercept::slots::Turn;
use crate::intercept::strict::{self, waits};
use crate::patch::elf::{tag, Module};
use crate::patch::find_function;
use crate::patch::modules::{groups, Group, Origin, BUFFER_BYTES};
use crate::rights::Files;
use crate::sys::{self, lasting};
use core::arch::global_asm;
use core::cell::Cell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::numbers;

const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;
/// Longer than the longest name that is replaced.
const NAME_MAX: usize = 24;

/// Addresses of libc's own functions, found when slots are first rewritten.
static ERRNO_LOCATION: AtomicU64 = AtomicU64::new(0);
static REAL_BRK: AtomicU64 = AtomicU64::new(0);
static REAL_SBRK: AtomicU64 = AtomicU64::new(0);
static REAL_FORK: AtomicU64 = AtomicU64::new(0);
static REAL_RAW_FORK: AtomicU64 = AtomicU64::new(0);
static REAL_DLOPEN: AtomicU64 = AtomicU64::new(0);
static REAL_SYSCALL: AtomicU64 = AtomicU64::new(0);
static REAL_IOCTL: AtomicU64 = AtomicU64::new(0);
static REAL_MSYNC: AtomicU64 = AtomicU64::new(0);
static REAL_CLOSE: AtomicU64 = AtomicU64::new(0);

/// Calls that are cancellation points are all that is wanted.
static CANCELLABLE_ALONE: AtomicBool = AtomicBool::new(false);
/// libc's own functions of [`CREDENTIALS`].
static REAL_CREDENTIALS: [AtomicU64; CREDENTIALS.len()] =
    [const { AtomicU64::new(0) }; CREDENTIALS.len()];

/// Naps until another thread has rewritten slots: a second or more, and twenty milliseconds.
const LONG: u32 = 20_000;
const SHORT: u32 = 400;

/// Rewrites the slots of every module that is loaded now. Returns how many
/// were; 0 if libc was not found.
pub fn install() -> u32 {
    if !find_real() {
        return 0;
    }
    // All modules must be rewritten, whoever else does not come to an end.
    let _turn = Turn::begin(LONG);
    let mut buffer = [0u8; BUFFER_BYTES];
    let mut rewritten = 0u32;
    let _ = groups(&mut buffer, |group| {
        rewritten = rewritten.saturating_add(rewrite(group));
        true
    });
    rewritten
}

/// As [`install`], for calls of libc that are cancellation points: it makes them by a site that
/// must not be patched (`patch::discover`). Of the modules that are loaded now.
pub fn install_cancellable(strict: bool) {
    CANCELLABLE_ALONE.store(true, Relaxed);
    if strict {
        waits::find_real();
    }
    install();
}

fn find_real() -> bool {
    let wanted = [
        ("__errno_location", &ERRNO_LOCATION),
        ("brk", &REAL_BRK),
        ("sbrk", &REAL_SBRK),
        ("fork", &REAL_FORK),
        ("_Fork", &REAL_RAW_FORK),
        ("dlopen", &REAL_DLOPEN),
        ("syscall", &REAL_SYSCALL),
        ("ioctl", &REAL_IOCTL),
        ("msync", &REAL_MSYNC),
        ("close", &REAL_CLOSE),
    ];
    let credentials = CREDENTIALS.iter().map(|(name, _)| *name);
    for (name, place) in wanted.into_iter().chain(credentials.zip(&REAL_CREDENTIALS)) {
        if place.load(Relaxed) == 0 {
            place.store(find_function(name).unwrap_or(0), Relaxed);
        }
    }
    ERRNO_LOCATION.load(Relaxed) != 0
}

/// Our function for libc's `name`, if there is one and libc has its own.
fn replacement(name: &[u8]) -> Option<u64> {
    let with_real =
        |real: &AtomicU64, ours: *const ()| (real.load(Relaxed) != 0).then_some(ours as u64);
    if CANCELLABLE_ALONE.load(Relaxed) && ![&b"msync"[..], b"close"].contains(&name) {
        return waits::replacement(name);
    }
    match name {
        b"close" => with_real(&REAL_CLOSE, close_of_libc as _),
        b"msync" => with_real(&REAL_MSYNC, msync_of_libc as _),
        b"posix_madvise" => Some(posix_madvise as *const () as u64),
        b"brk" => with_real(&REAL_BRK, brk as _),
        b"sbrk" => with_real(&REAL_SBRK, sbrk as _),
        b"fork" => with_real(&REAL_FORK, fork as _),
        b"_Fork" => with_real(&REAL_RAW_FORK, raw_fork as _),
        b"dlopen" => with_real(&REAL_DLOPEN, regall_dlopen as _),
        b"syscall" => with_real(&REAL_SYSCALL, regall_syscall as _),
        b"ioctl" => with_real(&REAL_IOCTL, ioctl as _),
        _ => wrapper(name)
            .map(|ours| ours as u64)
            .or_else(|| credentials(name)),
    }
}

/// As [`replacement`], of what changes the credentials.
fn credentials(name: &[u8]) -> Option<u64> {
    let n = CREDENTIALS.iter().position(|(n, _)| n.as_bytes() == name)?;
    let has_real = REAL_CREDENTIALS.get(n)?.load(Relaxed) != 0;
    let ours = CREDENTIALS.get(n)?.1;
    has_real.then_some(ours as *const () as u64)
}

type OfCredentials = extern "C" fn(u64, u64, u64) -> i32;

/// What changes the credentials, of all threads: libc must make the call.
const CREDENTIALS: [(&str, OfCredentials); 11] = [
    ("setuid", change::<0>),
    ("setgid", change::<1>),
    ("seteuid", change::<2>),
    ("setegid", change::<3>),
    ("setreuid", change::<4>),
    ("setregid", change::<5>),
    ("setresuid", change::<6>),
    ("setresgid", change::<7>),
    ("setfsuid", change::<8>),
    ("setfsgid", change::<9>),
    ("capset", change::<10>),
];

extern "C" fn change<const N: usize>(a: u64, b: u64, c: u64) -> i32 {
    let real = REAL_CREDENTIALS.get(N).map_or(0, |r| r.load(Relaxed));
    // SAFETY: the address of libc's function of number `N`, saved before any slot pointed here;
    // none has more than three arguments, which are words whatever their types.
    let real: OfCredentials = unsafe { core::mem::transmute(real as *const ()) };
    let files = match CREDENTIALS.get(N).map(|(name, _)| *name) {
        Some("setfsuid") => Some((Files::User, a as u32)),
        Some("setfsgid") => Some((Files::Group, a as u32)),
        _ => None,
    };
    crate::rights::change_by(files, || i64::from(real(a, b, c))) as i32
}

/// Points the slots by which the library that has `inside` in its text calls itself, and that
/// hold one of `ours`, at its own functions of these names. Whether none holds one of them now; not if
/// another thread rewrites slots meanwhile.
#[cold]
#[inline(never)]
pub fn let_it_call_itself(inside: u64, ours: &[(&str, u64)]) -> bool {
    let Some(_turn) = Turn::begin(SHORT) else {
        return false;
    };
    let mut buffer = [0u8; BUFFER_BYTES];
    let mut done = false;
    let _ = groups(&mut buffer, |group| {
        let is_it = group.segments().any(|s| s.range.contains(inside));
        if is_it {
            done = Module::open(group).is_some_and(|module| give_own(group, &module, ours));
        }
        !is_it
    });
    done
}

/// Puts the module's own functions into its slots that hold one of `ours`. Whether none is left.
fn give_own(group: &Group, module: &Module, ours: &[(&str, u64)]) -> bool {
    let of_ours = |name: &[u8]| ours.iter().find(|(n, _)| n.as_bytes() == name);
    rewrite_tables(group, module, &|name, now| {
        let (_, at) = of_ours(name)?;
        // One that holds an address of the module's own: ld.so has not looked it up as yet.
        let is_own = || group.segments().any(|s| s.range.contains(now));
        let is_meant = *at == now || is_own();
        is_meant.then(|| module.symbol(name)).flatten()
    });
    // What could not be changed is there still.
    let left = Cell::new(false);
    rewrite_tables(group, module, &|name, now| {
        left.set(left.get() || of_ours(name).is_some_and(|(_, at)| *at == now));
        None
    });
    !left.get()
}

/// Rewrites the slots of one module.
fn rewrite(group: &Group) -> u32 {
    let ours = install as *const () as u64;
    let is_ours = group.segments().any(|s| s.range.contains(ours));
    if is_ours
        || matches!(
            group.origin,
            Origin::Kernel | Origin::Heap | Origin::Stack | Origin::Anonymous
        )
    {
        return 0;
    }
    let Some(module) = Module::open(group) else {
        return 0;
    };
    // What ld.so has not looked up yet leads back into the module.
    let unresolved = |now| group.segments().any(|s| s.range.contains(now));
    rewrite_tables(group, &module, &|name, now| {
        let libcs_own = waits::is_real(name, now) || unresolved(now);
        libcs_own.then(|| replacement(name))?
    })
}

/// What is to be in the slot of a function with this name that holds that address now.
type Wanted<'a> = &'a dyn Fn(&[u8], u64) -> Option<u64>;

fn rewrite_tables(group: &Group, module: &Module, wanted: Wanted) -> u32 {
    let tables = [(tag::JMPREL, tag::PLTRELSZ), (tag::RELA, tag::RELASZ)];
    let each = tables
        .map(|(start, bytes)| rewrite_table(group, module, (start, bytes), wanted).unwrap_or(0));
    each.iter().sum()
}

fn rewrite_table(
    group: &Group,
    module: &Module,
    (start, bytes): (u64, u64),
    wanted: Wanted,
) -> Option<u32> {
    let (at, entries) = (module.pointer(start)?, module.dynamic(bytes)? / 24);
    let mut rewritten = 0u32;
    for n in 0..entries {
        let entry = at.checked_add(n.checked_mul(24)?)?;
        let info = module.memory().u64(entry.checked_add(8)?)?;
        if ![R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT].contains(&(info as u32)) {
            continue;
        }
        let name = module.name_at((info >> 32) as u32)?;
        let slot = module.bias.wrapping_add(module.memory().u64(entry)?);
        let now = module.memory().u64(slot).unwrap_or(0);
        let name = module.memory().string(name, NAME_MAX);
        let Some(new) = name.and_then(|name| wanted(name, now)) else {
            continue;
        };
        rewritten = rewritten.saturating_add(u32::from(set_slot(group, slot, new)));
    }
    Some(rewritten)
}

/// Puts `new` into the slot at `slot`; its page is writable only meanwhile if
/// it was not before (RELRO).
fn set_slot(group: &Group, slot: u64, new: u64) -> bool {
    let segment = group.segments().find(|s| s.range.contains(slot));
    let Some(segment) = segment.filter(|_| slot & 7 == 0) else {
        return false;
    };
    let Some(page) = PageRange::covering(slot, 8) else {
        return false;
    };
    let prot = i32::from(segment.prot.bits() & 7);
    let sealed = !segment.prot.writable();
    // SAFETY: it loses no access.
    if sealed && unsafe { sys::protect(page.start(), PAGE, prot | libc::PROT_WRITE) }.is_err() {
        return false;
    }
    // SAFETY: an aligned word of a page that is mapped and writable now; other
    // threads read it as one word when they call through it.
    let changed = unsafe { AtomicU64::from_ptr(slot as *mut u64) }.swap(new, Relaxed) != new;
    if sealed {
        // SAFETY: the access that it had before.
        let _ = unsafe { sys::protect(page.start(), PAGE, prot) };
    }
    changed
}

/// A call for the hook; what the kernel left in rax.
fn event(nr: libc::c_long, args: [u64; 6]) -> i64 {
    crate::intercept::event(&mut Frame {
        nr: nr as u64,
        args,
    })
}

/// A raw result as C has it: -1 and errno for an error.
fn converted(raw: i64) -> i64 {
    let Err(errno) = sys::check(raw) else {
        return raw;
    };
    // SAFETY: the address of libc's __errno_location, which takes nothing and
    // returns a pointer to this thread's errno; we are outside ld.so here, so
    // that its lazily allocated thread-local storage is no danger.
    let location = unsafe {
        let location: extern "C" fn() -> *mut i32 =
            core::mem::transmute(ERRNO_LOCATION.load(Relaxed) as *const ());
        location()
    };
    // SAFETY: as above.
    unsafe { location.write(errno.0) };
    -1
}

/// A row has libc's name (and another one for the same), the arguments, and the call that is made.
macro_rules! wrappers {
    ($($libcs:literal $(| $other:literal)?
        => $name:ident($($arg:ident: $type:ty),*) -> $ret:ty = $nr:ident;)*) => {
        $(extern "C" fn $name($($arg: $type),*) -> $ret {
            let given = [$($arg as u64),*];
            let mut args = [0; 6];
            args.iter_mut().zip(given).for_each(|(to, from): (&mut u64, u64)| *to = from);
            converted(event(numbers::raw::$nr, args)) as $ret
        })*

        /// Our function for libc's `name` that does nothing but to make the call.
        fn wrapper(name: &[u8]) -> Option<*const ()> {
            Some(match name {
                $($libcs $(| $other)? => $name as *const (),)*
                _ => return None,
            })
        }
    };
}

wrappers! {
    b"mmap" | b"mmap64" => mmap(addr: u64, len: u64, prot: i32, flags: i32, fd: i32, offset: i64) -> i64 = SYS_mmap;
    b"munmap" => munmap(addr: u64, len: u64) -> i32 = SYS_munmap;
    // Variadic in C; the fifth argument is where it would be anyway.
    b"mremap" => mremap(addr: u64, old: u64, new: u64, flags: i32, to: u64) -> i64 = SYS_mremap;
    b"mprotect" => mprotect(addr: u64, len: u64, prot: i32) -> i32 = SYS_mprotect;
    b"pkey_mprotect" => pkey_mprotect(addr: u64, len: u64, prot: i32, key: i32) -> i32 = SYS_pkey_mprotect;
    b"madvise" => madvise(addr: u64, len: u64, advice: i32) -> i32 = SYS_madvise;
    b"process_madvise" => process_madvise(pidfd: i32, vector: u64, count: u64, advice: i32, flags: u32) -> i64 = SYS_process_madvise;
    b"shmat" => shmat(id: i32, addr: u64, flags: i32) -> i64 = SYS_shmat;
    b"shmdt" => shmdt(addr: u64) -> i32 = SYS_shmdt;
    b"remap_file_pages" => remap_file_pages(addr: u64, len: u64, prot: i32, page: u64, flags: i32) -> i32 = SYS_remap_file_pages;
    b"mlock" => mlock(addr: u64, len: u64) -> i32 = SYS_mlock;
    b"mlock2" => mlock2(addr: u64, len: u64, flags: u32) -> i32 = SYS_mlock2;
    b"munlock" => munlock(addr: u64, len: u64) -> i32 = SYS_munlock;
    b"unshare" => unshare(flags: i32) -> i32 = SYS_unshare;
    b"setns" => setns(fd: i32, kind: i32) -> i32 = SYS_setns;
    // Variadic in C, as mremap.
    b"prctl" => prctl(option: i32, a: u64, b: u64, c: u64, d: u64) -> i32 = SYS_prctl;
    b"setrlimit" | b"setrlimit64" => setrlimit(resource: u32, new: u64) -> i32 = SYS_setrlimit;
    b"prlimit" | b"prlimit64" => prlimit(pid: i32, resource: u32, new: u64, old: u64) -> i32 = SYS_prlimit64;
    b"mlockall" => mlockall(flags: i32) -> i32 = SYS_mlockall;
    b"munlockall" => munlockall() -> i32 = SYS_munlockall;
    b"msync" => msync(addr: u64, len: u64, flags: i32) -> i32 = SYS_msync;
    b"process_vm_readv" => process_vm_readv(pid: i32, local: u64, locals: u64, remote: u64, remotes: u64, flags: u64) -> i64 = SYS_process_vm_readv;
    b"process_vm_writev" => process_vm_writev(pid: i32, local: u64, locals: u64, remote: u64, remotes: u64, flags: u64) -> i64 = SYS_process_vm_writev;
    b"dup2" => dup2(from: i32, to: i32) -> i32 = SYS_dup2;
    b"dup3" => dup3(from: i32, to: i32, flags: i32) -> i32 = SYS_dup3;
    b"close_range" => close_range(first: u32, last: u32, flags: i32) -> i32 = SYS_close_range;
    b"mseal" => mseal(addr: u64, len: u64, flags: u64) -> i32 = SYS_mseal;
}

/// Returns the error instead of setting errno, and takes "don't need" for
/// advice that may be left, as glibc does (posix_madvise(3)).
extern "C" fn posix_madvise(addr: u64, len: u64, advice: i32) -> i32 {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    let raw = event(libc::SYS_madvise, [addr, len, advice as u64, 0, 0, 0]);
    sys::check(raw).map_or_else(|errno| errno.0, |_| 0)
}

/// Only what fails on pinned memory is ours; else it stays a cancellation point.
extern "C" fn msync_of_libc(addr: u64, len: u64, flags: i32) -> i32 {
    if flags & libc::MS_INVALIDATE != 0 {
        let _pass = strict::pass();
        return msync(addr, len, flags);
    }
    // SAFETY: the address of libc's msync, saved before any slot pointed here.
    let real: extern "C" fn(u64, u64, i32) -> i32 =
        unsafe { core::mem::transmute(REAL_MSYNC.load(Relaxed) as *const ()) };
    real(addr, len, flags)
}

/// Only the shim's own descriptor is ours; else it stays a cancellation point.
extern "C" fn close_of_libc(fd: i32) -> i32 {
    let pass = strict::pass();
    if lasting::is_lasting(fd as u64) {
        return converted(event(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0])) as i32;
    }
    drop(pass);
    // SAFETY: the address of libc's close, saved before any slot pointed here.
    let real: extern "C" fn(i32) -> i32 =
        unsafe { core::mem::transmute(REAL_CLOSE.load(Relaxed) as *const ()) };
    real(fd)
}

/// libc keeps the break in a variable of its own, so it must make the call.
extern "C" fn brk(addr: *mut c_void) -> i32 {
    // SAFETY: the address of libc's brk, saved before any slot pointed here.
    let real: extern "C" fn(*mut c_void) -> i32 =
        unsafe { core::mem::transmute(REAL_BRK.load(Relaxed) as *const ()) };
    let result = real(addr);
    crate::track::audit();
    result
}

extern "C" fn sbrk(more: isize) -> *mut c_void {
    // SAFETY: the address of libc's sbrk, saved before any slot pointed here.
    let real: extern "C" fn(isize) -> *mut c_void =
        unsafe { core::mem::transmute(REAL_SBRK.load(Relaxed) as *const ()) };
    let result = real(more);
    if more != 0 {
        crate::track::audit();
    }
    result
}

extern "C" fn fork() -> i32 {
    fork_by(&REAL_FORK)
}

extern "C" fn raw_fork() -> i32 {
    fork_by(&REAL_RAW_FORK)
}

fn fork_by(real: &AtomicU64) -> i32 {
    // SAFETY: the address of libc's fork or _Fork, saved before any slot pointed here.
    let real: extern "C" fn() -> i32 =
        unsafe { core::mem::transmute(real.load(Relaxed) as *const ()) };
    let result = real();
    crate::track::audit();
    result
}

// dlopen looks at its return address for the module that calls it, whose
// RUNPATH and namespace it goes by. So the real one is called with a return
// address in that module: that of a `ret` instruction there, which comes back
// here.
global_asm!(
    r#"
    .hidden regall_dlopen
    .globl regall_dlopen
    .type regall_dlopen, @function
regall_dlopen:
    .cfi_startproc
    mov rdx, qword ptr [rsp]
    jmp {dlopen}
    .cfi_endproc
    .size regall_dlopen, . - regall_dlopen

    .hidden regall_call_from
    .globl regall_call_from
    .type regall_call_from, @function
regall_call_from:
    .cfi_startproc
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    sub rsp, 8
    lea rax, [rip + 2f]
    push rax
    push rcx
    jmp rdx
2:  mov rsp, rbp
    pop rbp
    .cfi_restore rbp
    .cfi_def_cfa rsp, 8
    ret
    .cfi_endproc
    .size regall_call_from, . - regall_call_from
"#,
    dlopen = sym dlopen,
);

// syscall(): a number that matters is an event; any other goes to libc's own,
// with the registers and the stack as they came, since vfork and clone must
// return on the very stack that they were called on.
global_asm!(
    r#"
    .hidden regall_syscall
    .globl regall_syscall
    .type regall_syscall, @function
regall_syscall:
    .cfi_startproc
    cmp rdi, {numbers}
    jae 2f
    lea rax, [rip + {class}]
    cmp byte ptr [rax + rdi], {hook}
    jne 2f
    push qword ptr [rsp + 8]
    .cfi_def_cfa_offset 16
    call {event}
    add rsp, 8
    .cfi_def_cfa_offset 8
    ret
2:  jmp qword ptr [rip + {real}]
    .cfi_endproc
    .size regall_syscall, . - regall_syscall
"#,
    numbers = const numbers::NUMBERS,
    hook = const numbers::HOOK,
    class = sym numbers::CLASS,
    event = sym any_call,
    real = sym REAL_SYSCALL,
);

extern "C" fn any_call(nr: u64, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> i64 {
    converted(event(nr as libc::c_long, [a, b, c, d, e, f]))
}

extern "C" fn ioctl(fd: i32, request: u64, argument: u64) -> i64 {
    if super::is_tracked_ioctl(request) {
        let args = [fd as u64, request, argument, 0, 0, 0];
        return converted(event(libc::SYS_ioctl, args));
    }
    // SAFETY: the address of libc's ioctl, saved before any slot pointed here;
    // its third argument is a word whatever its type.
    let real: extern "C" fn(i32, u64, u64) -> i32 =
        unsafe { core::mem::transmute(REAL_IOCTL.load(Relaxed) as *const ()) };
    i64::from(real(fd, request, argument))
}

unsafe extern "C" {
    fn regall_syscall();
    fn regall_dlopen(name: *const c_void, mode: i32) -> *mut c_void;
    /// Calls `real(name, mode)` so that it sees `ret_at`, the address of a
    /// `ret` instruction, as its return address.
    fn regall_call_from(name: *const c_void, mode: i32, real: u64, ret_at: u64) -> *mut c_void;
}

extern "C" fn dlopen(name: *const c_void, mode: i32, caller: u64) -> *mut c_void {
    let real = REAL_DLOPEN.load(Relaxed);
    let handle = match ret_near(caller) {
        // SAFETY: `real` is libc's dlopen, the other arguments are the
        // application's, and there is a `ret` at `ret_at`.
        Some(ret_at) => unsafe { regall_call_from(name, mode, real, ret_at) },
        None => {
            // SAFETY: the address of libc's dlopen, saved before any slot pointed here.
            let real: extern "C" fn(*const c_void, i32) -> *mut c_void =
                unsafe { core::mem::transmute(real as *const ()) };
            real(name, mode)
        }
    };
    if !handle.is_null() {
        install();
        crate::track::audit();
    }
    handle
}

/// Address of a `ret` in the page of code that `caller` returns to, or the next.
fn ret_near(caller: u64) -> Option<u64> {
    let mut buffer = [0u8; BUFFER_BYTES];
    let mut end = 0;
    let found = maps::lines(&mut buffer, |line| {
        if line.range.contains(caller) && line.prot.executable() && line.prot.readable() {
            end = line.range.end();
        }
        line.range.end() <= caller
    });
    found.ok()?;
    let stop = end.min((caller & !(PAGE - 1)).saturating_add(PAGE));
    let len = usize::try_from(stop.checked_sub(caller)?).ok()?;
    // SAFETY: the rest of the page of code that is about to be returned to.
    let code = unsafe { core::slice::from_raw_parts(caller as *const u8, len) };
    let at = code.iter().position(|&b| b == 0xc3)?;
    caller.checked_add(at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intercept::selftest::FUNCTIONS;

    #[test]
    fn each_function_of_the_table_of_calls_has_one_of_ours() {
        for (name, ..) in FUNCTIONS {
            let credentials = CREDENTIALS.iter().any(|(n, _)| n == name);
            assert!(credentials || wrapper(name.as_bytes()).is_some(), "{name}");
            assert!(name.len() < NAME_MAX, "{name}");
        }
    }
}
