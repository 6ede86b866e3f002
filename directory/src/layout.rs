//! The file, byte by byte. All fields are 64-bit words in the machine's own
//! byte order; every one is read and written with atomic loads and stores,
//! since other processes look at it at any time.
//!
//! ```text
//! 0                      Header, HEADER_BYTES
//! HEADER_BYTES           segment 0: SEGMENT0_SLOTS slots
//! ...                    segment k: SEGMENT0_SLOTS << k slots, right behind k - 1
//! ```
//!
//! A slot is 64 bytes. Its first word is its generation: 0 while it is free or
//! being filled, else a number that no other entry has had. A range's new slot is
//! filled before its old one is freed, so where two slots overlap, the one with
//! the higher generation is right.

use crate::atomic::AtomicU64;
use core::num::NonZeroU32;

/// First word of the file: "regall\0" and the layout's version in the top byte. The version
/// rises with every change of what is below, [`CALLS`] and [`COUNTERS`] included: readers refuse
/// any other one.
pub const MAGIC: u64 = 0x05_00_6c_6c_61_67_65_72;

/// What the file of a directory that is for root alone is called (memfd_create(2)).
pub const NAMELESS: &core::ffi::CStr = c"regall.directory";

/// What the file of a process that has the shim on and can't make its directory is called
/// (memfd_create(2)): this, and the errno. It is empty; a page of it is mapped.
pub const UNPUBLISHED: &str = "regall.unpublished.";

/// Bytes in front of the first slot.
pub const HEADER_BYTES: usize = 8192;
/// Bytes in a slot.
pub const SLOT_BYTES: usize = 64;
/// Slots in segment 0; segment k has this many, k times doubled.
pub const SEGMENT0_SLOTS: usize = 1024;
/// Segments at the most: over four million mappings, beyond any max_map_count in use.
pub const SEGMENTS: usize = 12;
/// Hooked calls that can be shown as in progress at one time.
pub const INFLIGHT: usize = if cfg!(feature = "few-places") { 2 } else { 256 };
/// Places for counters of calls, by [`Call`]: more than there are, so that a new one does not
/// move what is behind them.
pub const CALLS: usize = 48;
/// Places for other counters, by [`Counter`]; likewise.
pub const COUNTERS: usize = 64;

// Each has a place, and a bit in `Header::selftest_missed`.
const _: () = assert!(Call::ALL.len() <= CALLS && CALLS <= 64);
const _: () = assert!(Counter::ALL.len() <= COUNTERS);

/// Words for the name of an executable.
pub const EXE_WORDS: usize = 32;
/// Words for a device's name: the kernel's IB_DEVICE_NAME_MAX.
pub const DEVICE_WORDS: usize = 8;

/// Offset in bytes of segment `k`.
pub const fn segment_offset(k: usize) -> usize {
    HEADER_BYTES + SEGMENT0_SLOTS * SLOT_BYTES * ((1 << k) - 1)
}

/// Bytes in segment `k`.
pub const fn segment_bytes(k: usize) -> usize {
    (SEGMENT0_SLOTS << k) * SLOT_BYTES
}

/// Segment and index within it of slot number `n` (counted over all segments).
#[inline]
pub const fn locate(n: usize) -> (usize, usize) {
    let block = n / SEGMENT0_SLOTS + 1;
    let k = (usize::BITS - 1 - block.leading_zeros()) as usize;
    (k, n - SEGMENT0_SLOTS * ((1 << k) - 1))
}

/// A process's directory begins with this.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`]; stored last of the header's words when the file is made.
    pub magic: AtomicU64,
    /// The writer's pid, in its own pid namespace.
    pub pid: AtomicU64,
    /// Field 22 of /proc/PID/stat: clock ticks since boot.
    pub start_time: AtomicU64,
    /// Random; another one after exec or fork.
    pub image: AtomicU64,
    /// Inode number of /proc/PID/ns/pid.
    pub pid_namespace: AtomicU64,
    /// Effective uid.
    pub uid: AtomicU64,
    /// Higher with each event, and at least as high as that of each slot.
    pub generation: AtomicU64,
    /// Slots 0..high_water have been used at some time.
    pub high_water: AtomicU64,
    /// Segments that the file has.
    pub segments: AtomicU64,
    /// Ranges that could not be published (/dev/shm full). Not 0: incomplete.
    pub unpublished: AtomicU64,
    /// The settings; see the SETTING_ constants and [`crate::settings`].
    pub settings: AtomicU64,
    /// Budget in bytes; u64::MAX: none.
    pub budget: AtomicU64,
    /// Sites patched.
    pub sites_patched: AtomicU64,
    /// Sites of memory calls that could not be patched.
    pub sites_refused: AtomicU64,
    /// Self-test: bit n is set if [`Call`] n was fired and did not arrive.
    pub selftest_missed: AtomicU64,
    /// Lowest address that the main stack may grow down to; 0: it can't.
    pub stack_floor: AtomicU64,
    /// Counters, by [`Counter`].
    pub counters: [AtomicU64; COUNTERS],
    /// Events handled, by [`Call`].
    pub calls: [AtomicU64; CALLS],
    /// Hooked calls in progress: 0, or call number << 32 | thread id.
    pub inflight: [AtomicU64; INFLIGHT],
    /// Name of the executable (its /proc/self/exe, cut to fit), NUL-padded.
    pub exe: [AtomicU64; EXE_WORDS],
    /// Number of the domain (see [`Slot::domain`]) that the HCA column is about; 0: none.
    pub primary: AtomicU64,
    /// Number of the XPMEM segment that is the whole address space; 0: none.
    pub xpmem: AtomicU64,
    /// Where the box is mapped to which others send messages for this process; 0: there is none.
    pub boxes: AtomicU64,
    /// The device that REGALL_HCA names, NUL-padded; empty: none.
    pub device: [AtomicU64; DEVICE_WORDS],
    /// Requests that the helper has answered. As long as it counts, it is not stuck.
    pub answered: AtomicU64,
}

const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);

/// What is said of one range, or one memory region that lies in it.
///
/// Ranges and the regions of each domain are lists of their own: within one list
/// nothing overlaps but what is being replaced. A region may hold several ranges, and
/// several regions may lie in one range.
#[repr(C, align(64))]
pub struct Slot {
    /// 0: free; else what tells this entry from all others, the higher the newer.
    pub generation: AtomicU64,
    /// First address.
    pub start: AtomicU64,
    /// First address behind it.
    pub end: AtomicU64,
    /// Of a range: [`crate::vocab::Attr`], packed. Of a region: its access, IBV_ACCESS_ bits.
    pub attr: AtomicU64,
    /// Unique number of the entry in the ledger, or of the region; 0: none.
    pub id: AtomicU64,
    /// Of a region: lkey | rkey << 32.
    pub keys: AtomicU64,
    /// 0: a range. Else a region, of this domain: its number, from 1, in the low 32
    /// bits, and the kernel's handle of its protection domain above.
    pub domain: AtomicU64,
    /// For what is to come.
    pub spare: AtomicU64,
}

const _: () = assert!(size_of::<Slot>() == SLOT_BYTES);

/// What tells an entry of a directory from all others that it has had and will have: the newer,
/// the higher.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Generation(u64);

impl Generation {
    /// No entry's: a slot with it is free.
    pub const NONE: Self = Self(0);

    /// As a word of the file has it.
    #[inline]
    pub const fn from_raw(word: u64) -> Self {
        Self(word)
    }

    /// As a word of the file.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The one behind this.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// A slot that is in use: its number plus 1, so that an `Option` of it is 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct SlotRef(NonZeroU32);

impl SlotRef {
    /// From what [`SlotRef::get`] gave.
    #[inline]
    pub const fn from_raw(raw: NonZeroU32) -> Self {
        Self(raw)
    }
    /// The slot as a number to be kept.
    #[inline]
    pub const fn get(self) -> NonZeroU32 {
        self.0
    }
    /// The slot's number, counted over all segments.
    #[inline]
    pub const fn number(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// [`Header::settings`]: REGALL_PIN, 2 bits: 0 off, 1 onfault, 2 populate, 3 auto.
pub const SETTING_PIN_SHIFT: u32 = 0;
/// [`Header::settings`]: REGALL_INTERCEPT in force, 2 bits: 0 symbols, 1 patch, 2 strict.
pub const SETTING_INTERCEPT_SHIFT: u32 = 2;
/// [`Header::settings`]: bit set if REGALL_HCA=off.
pub const SETTING_HCA_OFF: u64 = 1 << 4;
/// [`Header::settings`]: bit set once the shim has given up (it no longer tracks).
pub const SETTING_GAVE_UP: u64 = 1 << 5;
/// [`Header::settings`]: bit set in a forked child that left what it inherited alone.
/// The bits above are [`crate::settings`]'s.
pub const SETTING_FORKED: u64 = 1 << 6;

macro_rules! numbered {
    ($(#[$m:meta])* $name:ident { $($(#[$vm:meta])* $v:ident = $n:literal => $s:literal),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum $name { $($(#[$vm])* $v = $n),* }
        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$v),*];
            /// The name that is printed for it.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$v => $s),* }
            }
        }
    };
}

/// The table of the system calls that are tracked: hands its rows to the macro `$then`, which makes
/// of them what it needs. The enum [`Call`] is made here, numbers and arguments in
/// [`crate::numbers`], the self-test's calls in the shim's `intercept/selftest.rs`. A row has
///
/// - the call's name as a value of [`Call`], its index there, and its name for people;
/// - `numbers`: each system call that is this one, how many arguments it has, and what a trampoline
///   does with it (a constant of [`crate::numbers`]);
/// - `functions`: libc's functions that make it, with arguments that the kernel refuses, for the
///   self-test;
/// - `by_syscall`: numbers that the self-test makes by libc's `syscall()`, with such arguments.
///
/// `UNALIGNED` and `NONSENSE` are the self-test's: an address and flags that no kernel takes.
#[macro_export]
macro_rules! each_call {
    ($then:ident) => {
        $then! {
            /// mmap
            Mmap = 0 => "mmap",
                numbers [SYS_mmap 6 HOOK],
                functions [("mmap", [0, 0, 0, 0, u64::MAX, 0])], by_syscall [(SYS_mmap, [0, 0, 0, 0, u64::MAX, 0])];
            /// munmap
            Munmap = 1 => "munmap",
                numbers [SYS_munmap 2 HOOK],
                functions [("munmap", [UNALIGNED, 0, 0, 0, 0, 0])], by_syscall [];
            /// mremap
            // libc looks at mremap's flags itself: these have to be good ones.
            Mremap = 2 => "mremap",
                numbers [SYS_mremap 5 HOOK],
                functions [("mremap", [UNALIGNED, 0, 0, 0, 0, 0])], by_syscall [];
            /// mprotect
            Mprotect = 3 => "mprotect",
                numbers [SYS_mprotect 3 HOOK],
                functions [("mprotect", [UNALIGNED, 0, NONSENSE, 0, 0, 0])], by_syscall [];
            /// pkey_mprotect
            PkeyMprotect = 4 => "pkey_mprotect",
                numbers [SYS_pkey_mprotect 4 HOOK],
                functions [("pkey_mprotect", [UNALIGNED, 0, NONSENSE, 0, 0, 0])], by_syscall [];
            /// brk
            // libc keeps what brk returns, so its brk can't fail harmlessly.
            Brk = 5 => "brk",
                numbers [SYS_brk 1 HOOK],
                functions [], by_syscall [(SYS_brk, [0, 0, 0, 0, 0, 0])];
            /// madvise
            Madvise = 6 => "madvise",
                numbers [SYS_madvise 3 HOOK],
                functions [("madvise", [UNALIGNED, 0, NONSENSE, 0, 0, 0])], by_syscall [];
            /// process_madvise
            ProcessMadvise = 7 => "process_madvise",
                numbers [SYS_process_madvise 5 HOOK],
                functions [("process_madvise", [u64::MAX, 0, 0, NONSENSE, NONSENSE, 0])], by_syscall [];
            /// shmat
            Shmat = 8 => "shmat",
                numbers [SYS_shmat 3 HOOK],
                functions [("shmat", [u64::MAX, UNALIGNED, 0, 0, 0, 0])], by_syscall [];
            /// shmdt
            Shmdt = 9 => "shmdt",
                numbers [SYS_shmdt 1 HOOK],
                functions [("shmdt", [UNALIGNED, 0, 0, 0, 0, 0])], by_syscall [];
            /// remap_file_pages
            RemapFilePages = 10 => "remap_file_pages",
                numbers [SYS_remap_file_pages 5 HOOK],
                functions [("remap_file_pages", [UNALIGNED, 0, NONSENSE, 0, NONSENSE, 0])], by_syscall [];
            /// mlock
            Mlock = 11 => "mlock",
                numbers [SYS_mlock 2 HOOK],
                functions [("mlock", [u64::MAX, 4096, 0, 0, 0, 0])], by_syscall [];
            /// mlock2
            Mlock2 = 12 => "mlock2",
                numbers [SYS_mlock2 3 HOOK],
                functions [("mlock2", [u64::MAX, 4096, 1, 0, 0, 0])], by_syscall [];
            /// munlock
            Munlock = 13 => "munlock",
                numbers [SYS_munlock 2 HOOK],
                functions [("munlock", [u64::MAX, 4096, 0, 0, 0, 0])], by_syscall [];
            /// mlockall
            Mlockall = 14 => "mlockall",
                numbers [SYS_mlockall 1 HOOK],
                functions [("mlockall", [NONSENSE, 0, 0, 0, 0, 0])], by_syscall [];
            /// munlockall
            Munlockall = 15 => "munlockall",
                numbers [SYS_munlockall 0 HOOK],
                functions [], by_syscall [];
            /// map_shadow_stack
            MapShadowStack = 16 => "map_shadow_stack",
                numbers [SYS_map_shadow_stack 3 HOOK],
                functions [], by_syscall [(SYS_map_shadow_stack, [UNALIGNED, 0, NONSENSE, 0, 0, 0])];
            /// msync (MS_INVALIDATE fails on locked memory)
            Msync = 17 => "msync",
                numbers [SYS_msync 3 HOOK],
                functions [("msync", [UNALIGNED, 0, NONSENSE, 0, 0, 0])], by_syscall [];
            /// fork, or clone that copies the address space
            Fork = 18 => "fork",
                numbers [SYS_fork 0 HOOK, SYS_clone 5 CLONE, SYS_clone3 2 CLONE],
                functions [], by_syscall [];
            /// io_setup maps a ring
            IoSetup = 19 => "io_setup",
                numbers [SYS_io_setup 2 HOOK],
                functions [], by_syscall [];
            /// io_destroy unmaps it
            IoDestroy = 20 => "io_destroy",
                numbers [SYS_io_destroy 1 HOOK],
                functions [], by_syscall [];
            /// exit_group
            ExitGroup = 21 => "exit_group",
                numbers [SYS_exit_group 1 HOOK],
                functions [], by_syscall [];
            /// ioctl UFFDIO_REGISTER
            // An ioctl: what number the system call has does not tell.
            Userfault = 22 => "uffdio_register",
                numbers [],
                functions [], by_syscall [];
            /// mbind
            Mbind = 23 => "mbind",
                numbers [SYS_mbind 6 HOOK],
                functions [], by_syscall [];
            /// set_robust_list, the first call of a new thread (strict mode)
            ThreadStart = 24 => "thread_start",
                numbers [SYS_set_robust_list 2 STRICT],
                functions [], by_syscall [];
            /// rt_sigaction (strict mode)
            Sigaction = 25 => "rt_sigaction",
                numbers [SYS_rt_sigaction 4 STRICT],
                functions [], by_syscall [];
            /// rt_sigprocmask, and what waits with a mask (strict mode)
            Sigprocmask = 26 => "rt_sigprocmask",
                numbers [SYS_rt_sigprocmask 4 STRICT, SYS_rt_sigsuspend 2 STRICT, SYS_ppoll 5 STRICT,
                SYS_pselect6 6 STRICT, SYS_epoll_pwait 6 STRICT, SYS_epoll_pwait2 6 STRICT],
                functions [], by_syscall [];
            /// process_vm_readv (served from what is mapped of the peer's memory)
            ProcessVmReadv = 27 => "process_vm_readv",
                numbers [SYS_process_vm_readv 6 HOOK],
                functions [("process_vm_readv", [u64::MAX, 0, 0, 0, 0, NONSENSE])], by_syscall [];
            /// process_vm_writev, likewise
            ProcessVmWritev = 28 => "process_vm_writev",
                numbers [SYS_process_vm_writev 6 HOOK],
                functions [("process_vm_writev", [u64::MAX, 0, 0, 0, 0, NONSENSE])], by_syscall [];
            /// mseal
            Mseal = 29 => "mseal",
                numbers [SYS_mseal 3 HOOK],
                functions [("mseal", [UNALIGNED, 0, NONSENSE, 0, 0, 0])], by_syscall [(SYS_mseal, [UNALIGNED, 0, NONSENSE, 0, 0, 0])];
            /// io_uring_setup (advice that is given through a ring is not seen)
            // (What arrives of io_uring_enter is not counted: it tells of a ring that another
            // process has set up.)
            IoUringSetup = 30 => "io_uring_setup",
                numbers [SYS_io_uring_setup 2 HOOK, SYS_io_uring_enter 6 HOOK],
                functions [], by_syscall [];
            /// setuid and its like, setfsuid, setfsgid, capset, unshare and setns (what arrives of
            /// setrlimit and prlimit64 is not counted)
            // (Nor what arrives of prctl and seccomp.) No user is -1.
            Credentials = 31 => "set_credentials",
                numbers [SYS_setuid 1 HOOK, SYS_setgid 1 HOOK, SYS_setreuid 2 HOOK, SYS_setregid 2 HOOK,
                SYS_setresuid 3 HOOK, SYS_setresgid 3 HOOK, SYS_setfsuid 1 HOOK, SYS_setfsgid 1 HOOK,
                SYS_capset 2 HOOK, SYS_unshare 1 HOOK, SYS_setns 2 HOOK, SYS_setrlimit 2 HOOK,
                SYS_prlimit64 4 HOOK, SYS_prctl 5 HOOK, SYS_seccomp 3 HOOK],
                functions [("setuid", [u64::MAX, 0, 0, 0, 0, 0])], by_syscall [];
        }
    };
}

macro_rules! enum_of_calls {
    ($($(#[$doc:meta])* $name:ident = $n:literal => $word:literal, $($of_the_shim:ident [$($row:tt)*]),*;)*) => {
        numbered! {
            /// The calls that are tracked; index of [`Header::calls`].
            Call { $($(#[$doc])* $name = $n => $word),* }
        }
    };
}

each_call! { enum_of_calls }

impl Call {
    /// The word of [`Header::inflight`] for this call of thread `tid`.
    #[inline]
    pub const fn in_flight(self, tid: u32) -> u64 {
        (self as u64) << 32 | tid as u64
    }
}

numbered! {
    /// Other counters; index of [`Header::counters`].
    Counter {
        /// mlock calls that pinned something
        Pins = 0 => "pins",
        /// munlock calls that unpinned something
        Unpins = 1 => "unpins",
        /// Bytes pinned, added up over all pins
        PinnedBytesTotal = 2 => "pinned_bytes_total",
        /// Bytes pinned now
        PinnedBytes = 3 => "pinned_bytes",
        /// Pins that the kernel refused
        PinRefused = 4 => "pin_refused",
        /// Ranges left out for the budget
        PinLimited = 5 => "pin_limited",
        /// Ranges read anew from /proc/self/maps
        Resyncs = 6 => "resyncs",
        /// Ledgers built anew from scratch
        Rebuilds = 7 => "rebuilds",
        /// Events that came while the lock was held by their own thread
        Deferred = 8 => "deferred",
        /// Events that overlapped another one in progress
        Conflicts = 9 => "conflicts",
        /// Hooks that were left before their end (siglongjmp, cancellation)
        Abandoned = 10 => "abandoned",
        /// Calls made again after the shim unpinned memory for them (RLIMIT_MEMLOCK)
        Retried = 11 => "retried",
        /// Nanoseconds spent pinning
        PinNanos = 12 => "pin_ns",
        /// Nanoseconds spent at start-up
        StartNanos = 13 => "start_ns",
        /// Nanoseconds spent in hooks without the real call and pinning, extrapolated
        HookNanos = 14 => "hook_ns",
        /// SIGSYS round trips (strict mode)
        Sigsys = 15 => "sigsys",
        /// Ranges in the ledger
        Ranges = 16 => "ranges",
        /// Bytes of memory that the shim holds itself
        ShimBytes = 17 => "shim_bytes",
        /// Trampolines in use
        Trampolines = 18 => "trampolines",
        /// Executable ranges scanned for sites
        Scans = 19 => "scans",
        /// Domains: one for a protection domain and the access that was asked for in it
        Domains = 20 => "domains",
        /// Memory regions that the shim has registered
        Registrations = 21 => "registrations",
        /// Memory regions that the shim has deregistered
        Deregistrations = 22 => "deregistrations",
        /// Registrations that the application asked for and got without a system call
        Served = 23 => "served",
        /// Registrations that the application asked for and that were passed on to the real call
        Passed = 24 => "passed",
        /// Ranges that the adapter or the kernel refused to register
        HcaRefused = 25 => "hca_refused",
        /// Ranges left out of a domain for the budget
        HcaLimited = 26 => "hca_limited",
        /// Nanoseconds spent registering and deregistering
        HcaNanos = 27 => "hca_ns",
        /// Bytes registered now, over all domains
        HcaBytes = 28 => "hca_bytes",
        /// Bytes held only by registrations that left the ledger and are still borrowed
        RetiredBytes = 29 => "retired",
        /// Transfers by the bridge's mechanism `map`
        CopyMap = 30 => "copy_map",
        /// Bytes of transfers by `map`
        CopyMapBytes = 31 => "copy_map_bytes",
        /// Transfers by the bridge's mechanism `xpmem`
        CopyXpmem = 32 => "copy_xpmem",
        /// Bytes of transfers by `xpmem`
        CopyXpmemBytes = 33 => "copy_xpmem_bytes",
        /// Transfers by the bridge's mechanism `cma`
        CopyCma = 34 => "copy_cma",
        /// Bytes of transfers by `cma`
        CopyCmaBytes = 35 => "copy_cma_bytes",
        /// Transfers by the bridge's mechanism `knem`
        CopyKnem = 36 => "copy_knem",
        /// Bytes of transfers by `knem`
        CopyKnemBytes = 37 => "copy_knem_bytes",
        /// Transfers by the bridge's mechanism `helper`
        CopyHelper = 38 => "copy_helper",
        /// Bytes of transfers by `helper`
        CopyHelperBytes = 39 => "copy_helper_bytes",
        /// Breakpoints (probes, debuggers) found in the place of a hook, counted once a check
        Probed = 40 => "probed",
        /// Bytes locked on fault that count against the budget: some may not be resident yet
        LazyBytes = 41 => "lazy_bytes",
        /// Bytes resident, never touched: adapters have them, and the program has not used them yet
        AheadBytes = 42 => "resident_untouched_bytes",
        /// Memory regions rotated: given new keys, because peers had the old ones and the
        /// application had deregistered them. Neither these registrations nor their ends are counted elsewhere
        HcaRotated = 43 => "hca_rotated",
        /// Registrations passed on because their protection domain has not cost as much yet as adopting it
        PdWaits = 44 => "pd_waits",
        /// Registrations passed on because REGALL_HCA_DEVICES leaves their adapter out
        PdLeftOut = 45 => "pd_left_out",
        /// Registrations passed on because there are as many domains, or kinds of access in their
        /// protection domain, as there can be
        DomainsFull = 46 => "domains_full",
        /// Messages sent to boxes, notes of puts and gets included
        BoxSent = 47 => "box_sent",
        /// Messages taken from this process's box
        BoxReceived = 48 => "box_received",
        /// Rings that this process was given in others' boxes, one after another
        BoxRings = 49 => "box_rings",
        /// Rings in this process's box that their senders have left, or that were idle
        BoxRingsReturned = 50 => "box_rings_returned",
        /// Messages that were not sent because there was no room
        BoxFull = 51 => "box_full",
        /// Data in this process's box that is no valid message
        BoxRubbish = 52 => "box_rubbish",
        /// Registrations passed on because the process uses io_uring, through which memory is
        /// discarded unseen
        UnlentRing = 53 => "unlent_ring",
        /// Registrations passed on because system calls may be unseen: memory was writable and
        /// executable at once, or REGALL_INTERCEPT is `symbols`
        UnlentCode = 54 => "unlent_code",
        /// Registrations passed on because their memory is a file's or shared, which others change
        /// unseen, or a thread's stack
        UnlentMemory = 55 => "unlent_memory",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_where_the_segments_are() {
        assert_eq!(locate(0), (0, 0));
        assert_eq!(locate(SEGMENT0_SLOTS - 1), (0, SEGMENT0_SLOTS - 1));
        assert_eq!(locate(SEGMENT0_SLOTS), (1, 0));
        assert_eq!(locate(3 * SEGMENT0_SLOTS - 1), (1, 2 * SEGMENT0_SLOTS - 1));
        assert_eq!(locate(3 * SEGMENT0_SLOTS), (2, 0));
        let mut expected = HEADER_BYTES;
        for k in 0..SEGMENTS {
            assert_eq!(segment_offset(k), expected);
            expected += segment_bytes(k);
        }
    }

    #[test]
    fn names_stand_at_their_numbers() {
        for (i, c) in Call::ALL.iter().enumerate() {
            assert_eq!(*c as usize, i);
        }
        for (i, c) in Counter::ALL.iter().enumerate() {
            assert_eq!(*c as usize, i);
        }
    }
    #[test]
    fn numbers_come_back() {
        assert_eq!(Call::Munmap.in_flight(77), 1 << 32 | 77);
        let generation = Generation::from_raw(41);
        assert_eq!((generation.get(), generation.next().get()), (41, 42));
        assert_eq!(Generation::from_raw(u64::MAX).next(), Generation::NONE);
        let raw = NonZeroU32::new(8).unwrap();
        assert_eq!(
            (
                SlotRef::from_raw(raw).get(),
                SlotRef::from_raw(raw).number()
            ),
            (raw, 7)
        );
        assert_eq!((segment_offset(0), segment_bytes(0)), (8192, 65536));
        assert_eq!(
            (Call::Munmap.word(), Counter::Unpins.word()),
            ("munmap", "unpins")
        );
    }
}
