//! The mechanisms by name, the order in which they are tried, and what they say when they
//! did not copy.

use core::sync::atomic::{AtomicU32, Ordering::*};
use regall_directory::each_mechanism;
use regall_directory::layout::Counter;
use regall_directory::settings::{copy_bits, COPIES, MECHANISMS};
use regall_sys::Errno;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $n:literal => $word:literal, $file:ident::$type:ident,
        $transfers:ident, $bytes:ident;)*) => {
        /// A mechanism.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $name = $n),*
        }

        impl Kind {
            /// All of them, in the order of `auto`.
            pub const ALL: [Self; MECHANISMS.len()] = [$(Self::$name),*];

            /// The mechanism's counters: transfers, and their bytes.
            pub const fn counters(self) -> (Counter, Counter) {
                match self {
                    $(Self::$name => (Counter::$transfers, Counter::$bytes)),*
                }
            }

            /// Its name in REGALL_COPY.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word),*
                }
            }
        }

        impl Order {
            /// `auto`.
            pub const AUTO: Self = Self {
                kinds: [$(Some(Kind::$name)),*],
                auto: true,
            };
        }
    };
}

each_mechanism! { kinds }

/// REGALL_COPY: which mechanisms are tried, in which order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    kinds: [Option<Kind>; Kind::ALL.len()],
    /// Whether the size has a say in it.
    auto: bool,
}

impl Order {
    /// What it can be made of, in words.
    pub const VALUES: &'static str = COPIES;

    /// `off`.
    pub const OFF: Self = Self {
        kinds: [None; Kind::ALL.len()],
        auto: false,
    };

    /// From `auto`, `off`, or names with commas between them, each at most once.
    pub fn parse(value: &[u8]) -> Option<Self> {
        match value {
            b"auto" => return Some(Self::AUTO),
            b"off" => return Some(Self::OFF),
            _ => (),
        }
        let mut order = Self::OFF;
        for word in value.split(|b| *b == b',') {
            let named = |k: &Kind| k.word().as_bytes() == word;
            let kind = Kind::ALL.into_iter().find(named)?;
            if order.has(kind) {
                return None;
            }
            let free = order.kinds.iter_mut().find(|k| k.is_none())?;
            *free = Some(kind);
        }
        Some(order)
    }

    /// Whether `kind` is among them.
    pub fn has(&self, kind: Kind) -> bool {
        self.kinds().any(|k| k == kind)
    }

    /// The mechanisms, the one to be tried first first.
    #[inline]
    pub fn kinds(&self) -> impl Iterator<Item = Kind> + '_ {
        self.kinds.iter().map_while(|k| *k)
    }

    /// Whether the size may decide, too.
    pub fn is_auto(&self) -> bool {
        self.auto
    }

    /// The list as the directory has it.
    pub fn bits(&self) -> u64 {
        copy_bits(self.kinds().map(|k| k as usize), self.auto)
    }
}

/// Which mechanisms can't run between this process and a peer, each found out by trying.
pub struct States {
    refused: AtomicU32,
}

impl Default for States {
    fn default() -> Self {
        Self::new()
    }
}

impl States {
    /// A state in which nothing is known yet.
    pub const fn new() -> Self {
        Self {
            refused: AtomicU32::new(0),
        }
    }

    /// Whether `kind` is worth trying.
    #[inline]
    pub fn hopeful(&self, kind: Kind) -> bool {
        self.refused.load(Relaxed) & (1 << kind as u32) == 0
    }

    /// `kind` can't run.
    pub fn refuse(&self, kind: Kind) {
        self.refused.fetch_or(1 << kind as u32, Relaxed);
    }
}

/// Why a mechanism did not copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum No {
    /// The mechanism can't run between these two processes.
    Never,
    /// The mechanism is not for this memory.
    NotThis,
    /// The mechanism tried and failed with this error.
    Failed(Errno),
}

#[cfg(test)]
mod tests {
    use super::*;
    use regall_directory::settings::each;

    #[test]
    fn the_directory_has_the_same_names() {
        for (n, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, n);
            let (transfers, bytes) = kind.counters();
            let word = format!("copy_{}", kind.word());
            assert_eq!(
                (transfers.word(), bytes.word()),
                (&*word, &*(word.clone() + "_bytes"))
            );
        }
        let told = |value: &[u8]| {
            let bits = Order::parse(value).unwrap().bits();
            let mut copy = String::new();
            let done: core::result::Result<(), ()> = each(bits, "", |name, value| {
                if name == "copy" {
                    copy = value.to_string();
                }
                Ok(())
            });
            assert_eq!(done, Ok(()));
            copy
        };
        for value in [
            "auto",
            "off",
            "cma",
            "helper,map",
            "knem,xpmem,helper,cma,map",
        ] {
            assert_eq!(told(value.as_bytes()), value);
        }
    }

    #[test]
    fn orders_are_lists() {
        assert_eq!(Order::parse(b"auto"), Some(Order::AUTO));
        assert_eq!(Order::parse(b"off").unwrap().kinds().count(), 0);
        let some = Order::parse(b"cma,map").unwrap();
        assert!(some.kinds().eq([Kind::Cma, Kind::Map]) && !some.is_auto());
        for bad in ["", "cma,", "cma,cma", "CMA", "cma map", "map,off"] {
            assert_eq!(Order::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
