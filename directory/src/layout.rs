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

/// First word of the file: "regall\0" and the layout's version in the top byte.
pub const MAGIC: u64 = 0x02_00_6c_6c_61_67_65_72;

/// What the file of a directory that is for root alone is called (memfd_create(2)).
pub const NAMELESS: &core::ffi::CStr = c"regall.directory";

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
/// Counters of calls, by [`Call`].
pub const CALLS: usize = 32;

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
    pub counters: [AtomicU64; 48],
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
    /// The device that REGALL_HCA names, NUL-padded; empty: none.
    pub device: [AtomicU64; DEVICE_WORDS],
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

numbered! {
    /// The calls that are tracked; index of [`Header::calls`].
    Call {
        /// mmap
        Mmap = 0 => "mmap",
        /// munmap
        Munmap = 1 => "munmap",
        /// mremap
        Mremap = 2 => "mremap",
        /// mprotect
        Mprotect = 3 => "mprotect",
        /// pkey_mprotect
        PkeyMprotect = 4 => "pkey_mprotect",
        /// brk
        Brk = 5 => "brk",
        /// madvise
        Madvise = 6 => "madvise",
        /// process_madvise
        ProcessMadvise = 7 => "process_madvise",
        /// shmat
        Shmat = 8 => "shmat",
        /// shmdt
        Shmdt = 9 => "shmdt",
        /// remap_file_pages
        RemapFilePages = 10 => "remap_file_pages",
        /// mlock
        Mlock = 11 => "mlock",
        /// mlock2
        Mlock2 = 12 => "mlock2",
        /// munlock
        Munlock = 13 => "munlock",
        /// mlockall
        Mlockall = 14 => "mlockall",
        /// munlockall
        Munlockall = 15 => "munlockall",
        /// map_shadow_stack
        MapShadowStack = 16 => "map_shadow_stack",
        /// msync (MS_INVALIDATE fails on locked memory)
        Msync = 17 => "msync",
        /// fork, or clone that copies the address space
        Fork = 18 => "fork",
        /// io_setup maps a ring
        IoSetup = 19 => "io_setup",
        /// io_destroy unmaps it
        IoDestroy = 20 => "io_destroy",
        /// exit_group
        ExitGroup = 21 => "exit_group",
        /// ioctl UFFDIO_REGISTER
        Userfault = 22 => "uffdio_register",
        /// mbind
        Mbind = 23 => "mbind",
        /// set_robust_list, the first call of a new thread (strict mode)
        ThreadStart = 24 => "thread_start",
        /// rt_sigaction (strict mode)
        Sigaction = 25 => "rt_sigaction",
        /// rt_sigprocmask (strict mode)
        Sigprocmask = 26 => "rt_sigprocmask",
        /// process_vm_readv (served from what is mapped of the peer's memory)
        ProcessVmReadv = 27 => "process_vm_readv",
        /// process_vm_writev, likewise
        ProcessVmWritev = 28 => "process_vm_writev",
        /// mseal
        Mseal = 29 => "mseal",
        /// io_uring_setup (advice that is given through a ring is not seen)
        IoUringSetup = 30 => "io_uring_setup",
        /// setuid and its like, setfsuid, setfsgid, capset, unshare and setns (what arrives of
        /// setrlimit and prlimit64 is not counted)
        Credentials = 31 => "set_credentials",
    }
}

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
        /// munlock calls made to let go
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
        /// Hooks that were left half-way (siglongjmp, cancellation)
        Abandoned = 10 => "abandoned",
        /// Calls retried after the shim let go of its pins (RLIMIT_MEMLOCK)
        Relented = 11 => "relented",
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
        /// Breakpoints (probes, debuggers) found in the place of a hook, once a look
        Probed = 40 => "probed",
        /// Bytes locked on fault that count against the budget: some may not be resident yet
        LazyBytes = 41 => "lazy_bytes",
        /// Bytes resident, never touched: adapters have them, and the program has not used them yet
        AheadBytes = 42 => "resident_untouched_bytes",
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
        assert!(Call::ALL.len() <= CALLS && Counter::ALL.len() <= 48);
    }
}
