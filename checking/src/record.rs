//! The form of a record: a head of 64-bit words in the machine's byte order, then for each of up
//! to [`STACKS`] stacks three registers and the bytes from the stack pointer on, or text.
//!
//! The shim appends each record by one write(2) when it happens, so that a process that dies by
//! a signal leaves those that it has made.

/// First word of each record: "rgcheck" and the form's version.
pub const MAGIC: u64 = 0x01_6b_63_65_68_63_67_72;
/// Words of a head.
pub const HEAD_WORDS: usize = 20;
/// Bytes of a head.
pub const HEAD_BYTES: usize = HEAD_WORDS * 8;
/// Stacks in a record at the most.
pub const STACKS: usize = 2;
/// Bytes of a stack at the most.
pub const STACK_BYTES: usize = 16 << 10;
/// Registers that stand before a stack's bytes: instruction, stack and frame pointer.
pub const REGISTERS: usize = 3;

macro_rules! numbered {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $v:ident = $n:literal => $word:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u64)]
        pub enum $name { $($(#[$vdoc])* $v = $n),* }
        impl $name {
            /// From its number.
            pub const fn from_number(n: u64) -> Option<Self> {
                match n { $($n => Some(Self::$v),)* _ => None }
            }
            /// Its word in reports.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$v => $word),* }
            }
        }
    )*};
}

numbered! {
    /// What a record is about.
    Kind {
        /// A program image begins; the text is its path.
        Begin = 1 => "begin",
        /// What code is mapped, as lines of /proc/PID/maps: of all records until the next.
        Maps = 2 => "maps",
        /// Memory went away under a live registration. Stacks: who registered, who took it.
        Gone = 3 => "gone",
        /// Memory has come back there. Stacks: who registered, who mapped it.
        Returned = 4 => "returned",
        /// A work request names it after that. Stacks: who registered, who posted it.
        Used = 5 => "stale-use",
        /// It was deregistered twice. Stacks: the first time, the second time.
        Twice = 6 => "deregistered-twice",
        /// It was never deregistered. Stacks: who registered.
        Leaked = 7 => "never-deregistered",
        /// It lies over memory that is not mapped for writing. Stacks: who registered.
        ReadOnly = 8 => "not-writable",
        /// fork with live registrations on a kernel that does not copy. Stacks: who registered
        /// one of them, who forked.
        Forked = 9 => "fork",
        /// A registration whose memory went away was deregistered.
        Ended = 10 => "ended",
        /// The program ends; the words are [`Sums`].
        End = 11 => "end",
        /// The same memory is registered twice, in one protection domain and with one access.
        /// Stacks: who registered first, who registers now.
        Again = 12 => "registered-twice",
    }
    /// How memory went away.
    How {
        /// Nothing of the kind.
        None = 0 => "",
        /// munmap, shmdt.
        Unmapped = 1 => "unmapped",
        /// Other memory was mapped over it.
        Replaced = 2 => "replaced",
        /// Its pages were thrown away (MADV_DONTNEED, MADV_REMOVE).
        Discarded = 3 => "discarded",
        /// mremap moved it.
        Moved = 4 => "moved",
        /// The heap shrank below it.
        Shrunk = 5 => "cut off by brk",
        /// It can't be touched any more (mprotect). The pages stay.
        Inaccessible = 6 => "made inaccessible",
        /// It may be thrown away (MADV_FREE). The pages stay: the registration holds them.
        Freed = 7 => "given up by MADV_FREE",
        /// Nobody saw how: other memory is there now.
        Unseen = 8 => "gone in a call that was not seen",
    }
}

impl How {
    /// Whether an adapter still reaches pages that are no longer the address's.
    pub const fn is_stale(self) -> bool {
        !matches!(self, Self::None | Self::Inaccessible | Self::Freed)
    }
}

/// The head of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Head {
    /// [`Kind`].
    pub kind: u64,
    /// Bytes of the whole record, head included; a multiple of 8.
    pub bytes: u64,
    /// The process.
    pub pid: u64,
    /// The thread.
    pub tid: u64,
    /// Counts up in a process; never 0.
    pub id: u64,
    /// The record that this one goes on from; 0: none.
    pub of: u64,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
    /// [`How`].
    pub how: u64,
    /// Number of the system call; of a record about verbs, anything.
    pub call: u64,
    /// What of the registration it is about: from here ...
    pub start: u64,
    /// ... to here.
    pub end: u64,
    /// First byte of the registration.
    pub addr: u64,
    /// Its bytes.
    pub len: u64,
    /// Its keys: local in the low half, remote in the high one.
    pub keys: u64,
    /// The access that was asked for.
    pub access: u64,
    /// Its number among all registrations of the process.
    pub serial: u64,
    /// Bytes of each stack without its registers, 32 bits each; 0: it is not there.
    pub stacks: u64,
    /// Bytes of text behind the stacks.
    pub text: u64,
    /// 1: the stacks were left out, since many records of this kind were written before.
    pub brief: u64,
}

impl Head {
    /// The head as words; the first is [`MAGIC`].
    pub const fn words(&self) -> [u64; HEAD_WORDS] {
        [
            MAGIC,
            self.kind,
            self.bytes,
            self.pid,
            self.tid,
            self.id,
            self.of,
            self.time,
            self.how,
            self.call,
            self.start,
            self.end,
            self.addr,
            self.len,
            self.keys,
            self.access,
            self.serial,
            self.stacks,
            self.text,
            self.brief,
        ]
    }

    /// A head from words. `None`: it is none, or says what can't be.
    pub fn from_words(words: &[u64; HEAD_WORDS]) -> Option<Self> {
        let [magic, kind, bytes, pid, tid, id, of, time, how, call, start, end, addr, len, keys, access, serial, stacks, text, brief] =
            *words;
        let head = Self {
            kind,
            bytes,
            pid,
            tid,
            id,
            of,
            time,
            how,
            call,
            start,
            end,
            addr,
            len,
            keys,
            access,
            serial,
            stacks,
            text,
            brief,
        };
        let room = bytes.checked_sub(HEAD_BYTES as u64)?;
        let good = magic == MAGIC && bytes % 8 == 0 && head.payload()? <= room;
        good.then_some(head)
    }

    /// Bytes of stack `n`.
    pub const fn stack_bytes(&self, n: usize) -> u64 {
        if n < STACKS {
            self.stacks >> (32 * n) & 0xffff_ffff
        } else {
            0
        }
    }

    /// With the length of stack `n`.
    pub const fn with_stack(mut self, n: usize, bytes: u32) -> Self {
        if n < STACKS {
            self.stacks |= (bytes as u64) << (32 * n);
        }
        self
    }

    /// Bytes of a stack in a record, with its registers.
    pub const fn stack_room(bytes: u64) -> u64 {
        match bytes {
            0 => 0,
            _ => (REGISTERS * 8) as u64 + bytes.next_multiple_of(8),
        }
    }

    /// Bytes of stacks and text.
    pub fn payload(&self) -> Option<u64> {
        let stacks = (0..STACKS).map(|n| Self::stack_room(self.stack_bytes(n)));
        let stacks: u64 = stacks.sum();
        stacks.checked_add(self.text.checked_next_multiple_of(8)?)
    }
}

/// What an [`Kind::End`] record says in words of other names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// Registrations that were seen.
    pub registered: u64,
    /// Deregistrations of these.
    pub deregistered: u64,
    /// Registrations that the table had no room for.
    pub untracked: u64,
    /// Records that were not written.
    pub dropped: u64,
    /// Ranges that went away under a registration of which four were known already.
    pub crowded: u64,
    /// Devices whose work requests are looked at.
    pub watched: u64,
}

impl Sums {
    /// The head that says so.
    pub const fn head(&self) -> Head {
        Head {
            kind: Kind::End as u64,
            bytes: 0,
            pid: 0,
            tid: 0,
            id: 0,
            of: 0,
            time: 0,
            how: 0,
            call: 0,
            start: self.registered,
            end: self.deregistered,
            addr: self.untracked,
            len: self.dropped,
            keys: self.crowded,
            access: self.watched,
            serial: 0,
            stacks: 0,
            text: 0,
            brief: 0,
        }
    }

    /// From such a head.
    pub const fn of(head: &Head) -> Self {
        Self {
            registered: head.start,
            deregistered: head.end,
            untracked: head.addr,
            dropped: head.len,
            crowded: head.keys,
            watched: head.access,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let head = Head {
            kind: Kind::Gone as u64,
            pid: 7,
            id: 3,
            start: 0x1000,
            end: 0x2000,
            text: 5,
            ..Head::default()
        };
        let head = head.with_stack(0, 100).with_stack(1, 16);
        let bytes = HEAD_BYTES as u64 + head.payload().unwrap();
        Head { bytes, ..head }
    }

    #[test]
    fn a_head_comes_back_as_it_was() {
        let head = head();
        assert_eq!(head.payload(), Some(24 + 104 + 24 + 16 + 8));
        assert_eq!(Head::from_words(&head.words()), Some(head));
    }

    #[test]
    fn what_can_not_be_is_no_head() {
        let good = head();
        let with = |n: usize, value: u64| {
            let mut words = good.words();
            words[n] = value;
            Head::from_words(&words)
        };
        assert!(with(0, MAGIC + 1).is_none());
        assert!(with(2, good.bytes - 8).is_none());
        assert!(with(2, good.bytes + 1).is_none());
        assert!(with(2, 0).is_none());
        assert!(with(17, u64::MAX).is_none());
        assert!(with(18, u64::MAX).is_none());
    }

    #[test]
    fn words_and_numbers() {
        for n in 1..13 {
            assert_eq!(Kind::from_number(n).map(|k| k as u64), Some(n));
        }
        assert_eq!(Kind::from_number(13), None);
        for n in 0..9 {
            assert_eq!(How::from_number(n).map(|h| h as u64), Some(n));
        }
        assert!(How::Moved.is_stale() && !How::Freed.is_stale() && !How::Inaccessible.is_stale());
    }

    #[test]
    fn sums_come_back() {
        let sums = Sums {
            registered: 1,
            deregistered: 2,
            untracked: 3,
            dropped: 4,
            crowded: 5,
            watched: 6,
        };
        assert_eq!(Sums::of(&sums.head()), sums);
    }
    #[test]
    fn each_word_of_a_head_has_its_place() {
        let mut words: [u64; HEAD_WORDS] = core::array::from_fn(|n| n as u64 + 100);
        (words[0], words[2], words[17], words[18]) = (MAGIC, HEAD_BYTES as u64 + 8, 0, 8);
        let head = Head::from_words(&words).unwrap();
        assert_eq!(head.words(), words);
        assert_eq!(
            (head.kind, head.pid, head.tid, head.brief),
            (101, 103, 104, 119)
        );
        words[18] = 9;
        assert_eq!(Head::from_words(&words), None, "more text than room");
    }

    #[test]
    fn stacks_have_lengths() {
        let head = Head::default().with_stack(0, 7).with_stack(1, u32::MAX);
        assert_eq!(head.stacks, 0xffff_ffff_0000_0007);
        let bytes = [0, 1, 2, 99].map(|n| head.stack_bytes(n));
        assert_eq!(bytes, [7, 0xffff_ffff, 0, 0]);
        assert_eq!(head.with_stack(2, 9), head);
        let room = [0, 1, 8, 9].map(Head::stack_room);
        assert_eq!(room, [0, 32, 32, 40]);
        let text = |text| Head { text, ..head }.payload();
        assert_eq!(text(0), Some(32 + 24 + 0x1_0000_0000));
        assert_eq!(text(9), Some(32 + 24 + 0x1_0000_0000 + 16));
        assert_eq!(text(u64::MAX - 7), None);
    }

    /// Those whose pages an adapter still has, though the address has others.
    #[test]
    fn who_is_stale() {
        let all = (0..9).filter_map(How::from_number);
        let not: Vec<_> = all
            .filter(|how| !how.is_stale())
            .map(|how| how as u64)
            .collect();
        assert_eq!(not, [0, 6, 7]);
        assert_eq!(How::from_number(9), None);
        assert_eq!(
            (How::Moved.word(), Kind::Used.word()),
            ("moved", "stale-use")
        );
    }
}
