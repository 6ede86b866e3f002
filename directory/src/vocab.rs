//! The words for what a range is and what is done with it, in 8 bytes.

use core::fmt;

/// Protection and sharing, as the four characters of `/proc/PID/maps`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prot(u8);

impl Prot {
    /// Readable; same bit as PROT_READ.
    pub const READ: u8 = 1;
    /// Writable; same bit as PROT_WRITE.
    pub const WRITE: u8 = 2;
    /// Executable; same bit as PROT_EXEC.
    pub const EXEC: u8 = 4;
    /// A shared mapping (`s` instead of `p`).
    pub const SHARED: u8 = 8;

    /// From the bits above; others are dropped.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 15)
    }
    /// From mmap's `prot` argument and whether the mapping is shared.
    #[inline]
    pub const fn from_call(prot: u64, shared: bool) -> Self {
        Self((prot & 7) as u8 | if shared { Self::SHARED } else { 0 })
    }
    /// The bits.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }
    /// No access at all (PROT_NONE).
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 & 7 == 0
    }
    /// Whether it can be read.
    #[inline]
    pub const fn readable(self) -> bool {
        self.0 & Self::READ != 0
    }
    /// Whether it can be written.
    #[inline]
    pub const fn writable(self) -> bool {
        self.0 & Self::WRITE != 0
    }
    /// Whether it can be executed.
    #[inline]
    pub const fn executable(self) -> bool {
        self.0 & Self::EXEC != 0
    }
    /// Whether it is shared.
    #[inline]
    pub const fn shared(self) -> bool {
        self.0 & Self::SHARED != 0
    }
    /// The protection after mprotect to `prot`, shared as before.
    #[inline]
    pub const fn with_prot(self, prot: u64) -> Self {
        Self((self.0 & Self::SHARED) | (prot & 7) as u8)
    }
}

impl fmt::Display for Prot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = |bit, yes: char, no: char| if self.0 & bit != 0 { yes } else { no };
        write!(
            f,
            "{}{}{}{}",
            c(Self::READ, 'r', '-'),
            c(Self::WRITE, 'w', '-'),
            c(Self::EXEC, 'x', '-'),
            c(Self::SHARED, 's', 'p')
        )
    }
}

macro_rules! byte_enum {
    ($(#[$m:meta])* $name:ident { $($(#[$vm:meta])* $v:ident = $n:literal => $s:literal),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$vm])* $v = $n),* }
        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$v),*];
            /// From its number; `None` for a number that means nothing.
            #[inline]
            pub const fn from_u8(n: u8) -> Option<Self> {
                match n { $($n => Some(Self::$v),)* _ => None }
            }
            /// The word that is printed for it.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$v => $s),* }
            }
        }
    };
}

byte_enum! {
    /// What a mapping is.
    Kind {
        /// Anonymous memory.
        Anon = 0 => "anon",
        /// A file's pages (tmpfs and memfd too).
        File = 1 => "file",
        /// The heap that brk moves.
        Heap = 2 => "heap",
        /// The main thread's stack.
        Stack = 3 => "stack",
        /// Memory mapped with MAP_STACK.
        ThreadStack = 4 => "thread-stack",
        /// System V shared memory.
        Shm = 5 => "sysv-shm",
        /// Huge pages from hugetlbfs or MAP_HUGETLB.
        Huge = 6 => "hugetlb",
        /// vdso, vvar, vsyscall and their like.
        Kernel = 7 => "kernel",
        /// VM_IO or VM_PFNMAP.
        Device = 8 => "device",
        /// The shim's own memory.
        Shim = 9 => "shim",
        /// Memory that can't be locked though it is no device (io_uring's
        /// rings and other VM_DONTEXPAND mappings).
        Special = 10 => "special",
        /// A hardware shadow stack.
        ShadowStack = 11 => "shadow-stack",
        /// Memory that a driver moves between host and device (CUDA's managed memory).
        Managed = 12 => "managed",
    }
}

byte_enum! {
    /// Why a registrar does not hold a range. [`Reason::None`]: it does.
    Reason {
        /// Held.
        None = 0 => "-",
        /// PROT_NONE.
        NoAccess = 1 => "no-access",
        /// vdso, vvar, vsyscall.
        Kernel = 2 => "kernel",
        /// VM_IO, VM_PFNMAP.
        Device = 3 => "device",
        /// The shim's own memory.
        Shim = 4 => "shim",
        /// The user asked: REGALL_EXCLUDE or the C interface.
        OptedOut = 5 => "opted-out",
        /// REGALL_SCOPE leaves it out.
        Scope = 6 => "scope",
        /// Beyond the budget.
        Limit = 7 => "limit",
        /// A forked child's memory from before the fork.
        Inherited = 8 => "inherited",
        /// This registrar is not active.
        Off = 9 => "off",
        /// The kernel said no; the errno goes with it.
        Refused = 10 => "refused",
        /// Large memory that nobody has touched or asked for yet: an adapter would make
        /// it resident (the HCA column, REGALL_PIN=auto).
        Untouched = 11 => "untouched",
        /// Memory that a driver moves between host and device: pinned, it could not.
        Managed = 12 => "managed",
        /// Memory of files, shared memory and threads' stacks: registered exactly as it is asked
        /// for, when it is (the HCA column, REGALL_PIN=auto).
        OnRequest = 13 => "on-request",
        /// Held without a lock: there is no swap space that it could be written to (the PIN
        /// column, REGALL_PIN=auto).
        Kept = 14 => "kept",
        /// Page cache, which the kernel may drop and reads again (the PIN column,
        /// REGALL_PIN=auto).
        Cache = 15 => "cache",
    }
}

/// One registrar's word on a range: it holds it, or why not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Column {
    /// `None` if the registrar holds the range.
    pub reason: Reason,
    /// With [`Reason::Refused`], the kernel's errno (1 to 133); else 0.
    pub errno: u8,
}

impl Column {
    /// The registrar holds the range.
    pub const YES: Self = Self {
        reason: Reason::None,
        errno: 0,
    };

    /// A registrar that does not hold it, for `reason`.
    #[inline]
    pub const fn no(reason: Reason) -> Self {
        Self { reason, errno: 0 }
    }
    /// The kernel refused with `errno`.
    #[inline]
    pub const fn refused(errno: u8) -> Self {
        Self {
            reason: Reason::Refused,
            errno,
        }
    }
    /// Whether the registrar holds the range. ([`Reason::Kept`] is not held by a registrar.)
    #[inline]
    pub const fn held(self) -> bool {
        matches!(self.reason, Reason::None)
    }
}

impl fmt::Display for Column {
    /// `yes`, a reason's word, or `refused:ERRNO`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Reason::None => f.write_str("yes"),
            Reason::Refused => write!(f, "refused:{}", self.errno),
            r => f.write_str(r.word()),
        }
    }
}

/// Facts about a mapping beside its protection and kind. A set of bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(u16);

impl Flags {
    /// A set without any flag.
    pub const EMPTY: Self = Self(0);
    /// Mapped with MAP_NORESERVE.
    pub const NORESERVE: Self = Self(1);
    /// Mapped with MAP_GROWSDOWN, or the main stack.
    pub const GROWSDOWN: Self = Self(2);
    /// The application locked it itself (mlock, MAP_LOCKED, mlockall).
    pub const APP_LOCKED: Self = Self(4);
    /// ... and asked for on-fault locking.
    pub const APP_ONFAULT: Self = Self(8);
    /// Both.
    pub const APP_LOCKS: Self = Self(4 | 8);
    /// Opted out through the C interface.
    pub const OPTED_OUT: Self = Self(16);
    /// From before the fork.
    pub const INHERITED: Self = Self(32);
    /// Locked on fault, not populated.
    pub const ONFAULT: Self = Self(64);
    /// Pages beyond the end of a file.
    pub const TAIL: Self = Self(128);
    /// REGALL_EXCLUDE names it.
    pub const EXCLUDED: Self = Self(256);
    /// To be left to on-fault locking whatever else holds (userfaultfd, mbind).
    pub const KEEP_LAZY: Self = Self(512);
    /// May grow downwards without a call (the main stack).
    pub const GROWABLE: Self = Self(1024);
    /// Private file mapping that is not writable (text, rodata), for REGALL_SCOPE.
    pub const TEXT: Self = Self(2048);
    /// Private memory to the application that is a file's, so that peers can map it
    /// (REGALL_SHARE=heap); no longer shared if the protection is not.
    pub const BACKED: Self = Self(4096);
    /// ... of which a child of fork gets an empty copy (MADV_WIPEONFORK).
    pub const WIPED: Self = Self(8192);
    /// ... of which a child of fork gets nothing (MADV_DONTFORK).
    pub const NOT_FORKED: Self = Self(16384);
    /// A file's pages, which the kernel could have back if they were not locked.
    pub const CACHE: Self = Self(32768);

    /// From bits.
    #[inline]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
    /// The bits.
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }
    /// Whether all bits of `other` are set.
    #[inline]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    /// With the bits of `other` set.
    #[inline]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// With the bits of `other` cleared.
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// All that is said of a range, in 8 bytes. Neighbours with equal attributes
/// say the same of their bytes. In memory as it is packed, so that packing costs
/// nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Attr {
    /// Protection and sharing.
    pub prot: Prot,
    /// What it is.
    pub kind: Kind,
    /// Facts.
    pub flags: Flags,
    /// The pin set's word.
    pub pin: Column,
    /// The HCA registrar's word.
    pub hca: Column,
}

impl Attr {
    /// Packed for the directory: prot, kind, flags (2), pin, pin's errno, hca,
    /// hca's errno, from the lowest byte up.
    #[inline]
    pub const fn pack(self) -> u64 {
        self.prot.bits() as u64
            | (self.kind as u64) << 8
            | (self.flags.bits() as u64) << 16
            | (self.pin.reason as u64) << 32
            | (self.pin.errno as u64) << 40
            | (self.hca.reason as u64) << 48
            | (self.hca.errno as u64) << 56
    }

    /// The reverse of [`Attr::pack`]; `None` for what no writer writes.
    #[inline]
    pub const fn unpack(word: u64) -> Option<Self> {
        if word & 0xf0 != 0 {
            return None;
        }
        let Some(kind) = Kind::from_u8((word >> 8) as u8) else {
            return None;
        };
        let Some(pin) = Reason::from_u8((word >> 32) as u8) else {
            return None;
        };
        let Some(hca) = Reason::from_u8((word >> 48) as u8) else {
            return None;
        };
        Some(Self {
            prot: Prot::from_bits(word as u8),
            kind,
            flags: Flags::from_bits((word >> 16) as u16),
            pin: Column {
                reason: pin,
                errno: (word >> 40) as u8,
            },
            hca: Column {
                reason: hca,
                errno: (word >> 56) as u8,
            },
        })
    }

    /// The two registrars' [`Reason`]s as numbers, from the packed form.
    #[inline]
    pub const fn packed_reasons(word: u64) -> (u8, u8) {
        ((word >> 32) as u8, (word >> 48) as u8)
    }

    /// Whether the range is held: by at least one registrar, or by the absence of swap space.
    #[inline]
    pub const fn registered(self) -> bool {
        self.pin.held() || self.hca.held() || matches!(self.pin.reason, Reason::Kept)
    }

    /// Returns whether the kernel keeps it as shared memory, or some of it: what it maps is shared,
    /// or a file's that is on no disk.
    pub const fn is_shmem(self) -> bool {
        let no_disk = matches!(self.kind, Kind::File) && !self.flags.has(Flags::CACHE);
        self.prot.shared() || self.flags.has(Flags::BACKED) || no_disk
    }

    /// Whether it is memory of the program's that may be reached where its protection lets one:
    /// registered, or not for a reason that is nobody's wish (a limit, say). Never what the kernel
    /// itself may not read for others (memfd_secret(2)).
    pub const fn is_open(self) -> bool {
        let special = matches!(self.kind, Kind::Special);
        !special
            && !matches!(
                self.reason().reason,
                Reason::OptedOut
                    | Reason::Shim
                    | Reason::Kernel
                    | Reason::Device
                    | Reason::Managed
                    | Reason::NoAccess
            )
    }

    /// The one reason of a range that is not registered: the pin set's, unless
    /// that is merely switched off and the HCA has a better one. Says `None` of a
    /// registered range.
    #[inline]
    pub const fn reason(self) -> Column {
        if self.registered() {
            return Column::YES;
        }
        match self.pin.reason {
            Reason::Off => self.hca,
            _ => self.pin,
        }
    }
}

/// What a memory region may be used for: the kernel's IBV_ACCESS_ bits. A set of bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access(u32);

impl Access {
    /// What every region allows: reading by the adapter for its own process.
    pub const NONE: Self = Self(0);
    /// The adapter may write into it for its own process. What lets peers write needs
    /// this as well (EINVAL).
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// Peers may do atomic operations.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// Memory windows may be bound to it.
    pub const MW_BIND: Self = Self(1 << 4);
    /// Addresses count from 0.
    pub const ZERO_BASED: Self = Self(1 << 5);
    /// A region whose pages are fetched when they are used.
    pub const ON_DEMAND: Self = Self(1 << 6);
    /// All of it is huge pages.
    pub const HUGETLB: Self = Self(1 << 7);
    /// Writes may overtake each other.
    pub const RELAXED_ORDERING: Self = Self(1 << 20);

    /// The bits that have a word, with it.
    const WORDS: [(Self, &'static str); 11] = [
        (Self::LOCAL_WRITE, "local-write"),
        (Self::REMOTE_WRITE, "remote-write"),
        (Self::REMOTE_READ, "remote-read"),
        (Self::REMOTE_ATOMIC, "remote-atomic"),
        (Self::MW_BIND, "mw-bind"),
        (Self::ZERO_BASED, "zero-based"),
        (Self::ON_DEMAND, "on-demand"),
        (Self::HUGETLB, "huge-pages"),
        (Self(1 << 8), "flush-global"),
        (Self(1 << 9), "flush-persistent"),
        (Self::RELAXED_ORDERING, "relaxed-ordering"),
    ];
    /// Bits that an adapter may ignore; not all of them have a meaning yet.
    pub const OPTIONAL: Self = Self(0x3ff0_0000);
    /// All that the kernel takes.
    const ALL: Self = Self(0x3ff | Self::OPTIONAL.0);

    /// From the bits; `None` if one is set that the kernel takes from nobody.
    #[inline]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits & !(Self::ALL.0 as u64) != 0 {
            return None;
        }
        Some(Self(bits as u32))
    }
    /// As a program asks for it: bits that the kernel refuses stay set, so that it can.
    #[inline]
    pub const fn as_asked(bits: u32) -> Self {
        Self(bits)
    }
    /// The bits.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }
    /// Whether all of `wanted` is allowed.
    #[inline]
    pub const fn has(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }
    /// Whether any of `some` is allowed.
    #[inline]
    pub const fn has_any(self, some: Self) -> bool {
        self.0 & some.0 != 0
    }
    /// This, and `more`.
    #[inline]
    pub const fn with(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }
    /// This, but for `less`.
    #[inline]
    pub const fn without(self, less: Self) -> Self {
        Self(self.0 & !less.0)
    }
    /// What of `some` is allowed.
    #[inline]
    pub const fn only(self, some: Self) -> Self {
        Self(self.0 & some.0)
    }
}

impl fmt::Display for Access {
    /// Words with commas between them, or `read`: what is always allowed, and
    /// all that is. Bits without a word come last, as a hexadecimal number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("read");
        }
        let (mut left, mut comma) = (self.0, "");
        for (bit, word) in Self::WORDS {
            if left & bit.0 != 0 {
                write!(f, "{comma}{word}")?;
                (left, comma) = (left & !bit.0, ",");
            }
        }
        match left {
            0 => Ok(()),
            rest => write!(f, "{comma}{rest:#x}"),
        }
    }
}
