//! The settings: which there are, what they may be, and how text becomes one.
//!
//! The shim reads the environment with this, and `regall run` and `regall env` their flags,
//! so that a value that one takes the other takes, too.
#![cfg_attr(not(test), no_std)]

pub mod names;

use core::fmt;
use log::LevelFilter;
use regall_bridge::boxes::layout::{MOST_LIMIT, MOST_SIZE, MOST_THRESHOLD, RINGS};
use regall_bridge::kind::Order;
use regall_sys::text::{number, Lossy, Text};

macro_rules! words {
    ($($(#[$m:meta])* $name:ident { $($(#[$vm:meta])* $v:ident = $n:literal => $word:literal),* $(,)? })*) => {$(
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name { $($(#[$vm])* $v = $n),* }
        impl $name {
            /// What it may be, in the order in which it is told.
            pub const WORDS: &'static [&'static str] = &[$($word),*];
            /// From its word.
            fn parse(value: &[u8]) -> Result<Self, Problem> {
                $(if value == $word.as_bytes() {
                    return Ok(Self::$v);
                })*
                Err(Problem::Value { expected: Expected::Words(Self::WORDS) })
            }
        }
    )*};
}

/// Words for no.
const NO: [&[u8]; 3] = [b"off", b"no", b"false"];

/// Tells what the value of REGALL says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    /// `1`.
    On,
    /// Nothing, or a word for no.
    Off,
    /// Anything else, which may be meant as yes: it is off, and that is said.
    Unclear,
}

impl Switch {
    /// Reads REGALL's value.
    pub fn of(value: &[u8]) -> Self {
        match value {
            b"1" => Self::On,
            b"" | b"0" => Self::Off,
            word if NO.iter().any(|no| word.eq_ignore_ascii_case(no)) => Self::Off,
            _ => Self::Unclear,
        }
    }
}

words! {
    /// REGALL_PIN.
    Pin {
        /// Locked when touched; adapters don't make resident what nobody has touched, but
        /// for what is small.
        Auto = 0 => "auto",
        /// Locked when touched.
        OnFault = 1 => "onfault",
        /// Locked and populated at once.
        Populate = 2 => "populate",
        /// Nothing is locked.
        Off = 3 => "off",
    }
    /// REGALL_ACCESS: what peers may do through published keys.
    Access {
        /// Nothing.
        Local = 0 => "local",
        /// Read.
        RemoteRead = 1 => "remote-read",
        /// Read and write.
        RemoteWrite = 2 => "remote-write",
        /// Read, write, and atomic operations.
        RemoteAtomic = 3 => "remote-atomic",
    }
    /// REGALL_SHARE: which private memory peers can map.
    Share {
        /// None.
        Off = 0 => "off",
        /// Large memory of a rank that has others on its node, where it pays.
        Heap = 1 => "heap",
        /// Large memory of every process, through any number of forks.
        Always = 2 => "always",
    }
    /// REGALL_CHECK: what is checked of the program itself.
    Check {
        /// Nothing.
        Off = 0 => "off",
        /// What becomes of memory under its registrations with adapters.
        Registrations = 1 => "registrations",
    }
    /// REGALL_INTERCEPT.
    Intercept {
        /// Sites of system calls.
        Patch = 1 => "patch",
        /// Relocation slots of the public functions.
        Symbols = 0 => "symbols",
        /// Sites, and Syscall User Dispatch for the rest.
        Strict = 2 => "strict",
    }
}

/// REGALL_HCA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hca {
    /// No registration with an adapter.
    Off,
    /// In every protection domain that the application allocates.
    Adopt,
    /// In a protection domain of our own on a named device.
    Device,
}

/// The words of settings that are one of two: the default, and the other.
mod pairs {
    pub const HCA_MODE: [&str; 2] = ["pinned", "odp"];
    pub const HCA_FORK: [&str; 2] = ["safe", "unsafe"];
    pub const HCA_FILL: [&str; 2] = ["now", "later"];
    pub const SCOPE: [&str; 2] = ["all", "data"];
    pub const KEYS: [&str; 2] = ["mapping", "exact"];
    pub const VERBS: [&str; 2] = ["ioctl", "symbols"];
    pub const ON_LIMIT: [&str; 2] = ["skip", "fail"];
    pub const FORK: [&str; 2] = ["inherit", "all"];
    pub const PTRACER: [&str; 2] = ["off", "any"];
    pub const HUGE: [&str; 2] = ["off", "advise"];
}

/// REGALL_LOG's.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The words that a variable may be, where it can be nothing else.
pub fn words(name: &str) -> Option<&'static [&'static str]> {
    Some(match name {
        "REGALL_PIN" => Pin::WORDS,
        "REGALL_HCA_MODE" => &pairs::HCA_MODE,
        "REGALL_HCA_FORK" => &pairs::HCA_FORK,
        "REGALL_HCA_FILL" => &pairs::HCA_FILL,
        "REGALL_SCOPE" => &pairs::SCOPE,
        "REGALL_KEYS" => &pairs::KEYS,
        "REGALL_VERBS" => &pairs::VERBS,
        "REGALL_ACCESS" => Access::WORDS,
        "REGALL_ON_LIMIT" => &pairs::ON_LIMIT,
        "REGALL_INTERCEPT" => Intercept::WORDS,
        "REGALL_FORK" => &pairs::FORK,
        "REGALL_PTRACER" => &pairs::PTRACER,
        "REGALL_SHARE" => Share::WORDS,
        "REGALL_HUGE" => &pairs::HUGE,
        "REGALL_CHECK" => Check::WORDS,
        "REGALL_LOG" => &LEVELS,
        _ => return None,
    })
}

/// REGALL_LIMIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of what the process may have, 1 to 100.
    Percent(u64),
}

/// The settings that are off while the program is checked, and their values then: see
/// [`Config::complete`].
pub const CHECKED: [(&str, &str); 7] = [
    ("REGALL_PIN", "off"),
    ("REGALL_HCA", "off"),
    ("REGALL_SHARE", "off"),
    ("REGALL_COPY", "off"),
    ("REGALL_HUGE", "off"),
    ("REGALL_ON_LIMIT", "skip"),
    ("REGALL_PTRACER", "off"),
];

/// All settings.
pub struct Config {
    /// REGALL_PIN.
    pub pin: Pin,
    /// REGALL_HCA.
    pub hca: Hca,
    /// The device that REGALL_HCA names.
    pub hca_device: Text<64>,
    /// REGALL_HCA_DEVICES; empty: all.
    pub hca_devices: Text<1024>,
    /// REGALL_HCA_MODE=odp.
    pub hca_odp: bool,
    /// REGALL_HCA_FORK=unsafe.
    pub hca_fork_unsafe: bool,
    /// REGALL_HCA_FILL=later.
    pub hca_fill_later: bool,
    /// REGALL_SCOPE=data.
    pub scope_data: bool,
    /// REGALL_KEYS=exact.
    pub keys_exact: bool,
    /// REGALL_VERBS=ioctl.
    pub verbs_ioctl: bool,
    /// REGALL_REVOKE_MS; `None`: off.
    pub revoke_ms: Option<u32>,
    /// REGALL_ACCESS.
    pub access: Access,
    /// REGALL_LIMIT.
    pub limit: Limit,
    /// REGALL_ON_LIMIT=fail.
    pub fail_on_limit: bool,
    /// REGALL_INTERCEPT.
    pub intercept: Intercept,
    /// REGALL_FORK=all.
    pub fork_all: bool,
    /// REGALL_COPY.
    pub copy: Order,
    /// REGALL_PTRACER=any.
    pub ptracer_any: bool,
    /// REGALL_BOX_LIMIT: bytes of the longest message.
    pub box_limit: u64,
    /// REGALL_BOX_SIZE: bytes of a ring.
    pub box_size: u64,
    /// REGALL_BOX_MAX: rings of this process's box.
    pub box_max: u64,
    /// REGALL_BOX_THRESHOLD: messages before a sender has a ring.
    pub box_threshold: u64,
    /// REGALL_SHARE.
    pub share: Share,
    /// REGALL_HUGE=advise.
    pub huge: bool,
    /// REGALL_EXCLUDE.
    pub exclude: Text<2048>,
    /// REGALL_STATS_FILE.
    pub stats_file: Text<1024>,
    /// REGALL_CHECK=registrations.
    pub check: bool,
    /// REGALL_CHECK_FILE.
    pub check_file: Text<1024>,
    /// REGALL_LOG.
    pub log_level: LevelFilter,
    /// REGALL_LOG_FILE.
    pub log_file: Text<1024>,
}

impl Config {
    /// The defaults of the design.
    pub const fn new() -> Self {
        Self {
            pin: Pin::Auto,
            hca: Hca::Adopt,
            hca_device: Text::new(),
            hca_devices: Text::new(),
            hca_odp: false,
            hca_fork_unsafe: false,
            hca_fill_later: false,
            scope_data: false,
            keys_exact: false,
            verbs_ioctl: true,
            revoke_ms: Some(100),
            access: Access::Local,
            limit: Limit::Percent(90),
            fail_on_limit: false,
            intercept: Intercept::Patch,
            fork_all: false,
            copy: Order::AUTO,
            ptracer_any: false,
            box_limit: 4 << 10,
            box_size: 32 << 10,
            box_max: 32,
            box_threshold: 16,
            share: Share::Off,
            huge: false,
            exclude: Text::new(),
            stats_file: Text::new(),
            check: false,
            check_file: Text::new(),
            log_level: LevelFilter::Warn,
            log_file: Text::new(),
        }
    }

    /// Takes one `REGALL_…` variable in. Variables that don't begin so are no
    /// business of this function's.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), Problem> {
        let text = |expected| Problem::Value {
            expected: Expected::Text(expected),
        };
        match name {
            // The last one is of the Python package's alone.
            b"REGALL" | b"REGALL_ONLY" | b"REGALL_LIBRARY" => (),
            b"REGALL_PIN" => self.pin = Pin::parse(value)?,
            b"REGALL_HCA" => self.set_hca(value)?,
            b"REGALL_HCA_DEVICES" => keep(&mut self.hca_devices, value)?,
            b"REGALL_HCA_MODE" => self.hca_odp = second(value, &pairs::HCA_MODE)?,
            b"REGALL_HCA_FORK" => self.hca_fork_unsafe = second(value, &pairs::HCA_FORK)?,
            b"REGALL_HCA_FILL" => self.hca_fill_later = second(value, &pairs::HCA_FILL)?,
            b"REGALL_SCOPE" => self.scope_data = second(value, &pairs::SCOPE)?,
            b"REGALL_KEYS" => self.keys_exact = second(value, &pairs::KEYS)?,
            b"REGALL_VERBS" => self.verbs_ioctl = !second(value, &pairs::VERBS)?,
            b"REGALL_REVOKE_MS" => {
                self.revoke_ms = revoke(value).ok_or(text("milliseconds, 0 to 3600000, or off"))?
            }
            b"REGALL_ACCESS" => self.access = Access::parse(value)?,
            b"REGALL_LIMIT" => {
                self.limit = limit(value)
                    .ok_or(text("bytes with an optional K, M, G or T, or 1% to 100%"))?
            }
            b"REGALL_ON_LIMIT" => self.fail_on_limit = second(value, &pairs::ON_LIMIT)?,
            b"REGALL_INTERCEPT" => self.intercept = Intercept::parse(value)?,
            b"REGALL_FORK" => self.fork_all = second(value, &pairs::FORK)?,
            b"REGALL_COPY" => self.copy = Order::parse(value).ok_or(text(Order::VALUES))?,
            b"REGALL_PTRACER" => self.ptracer_any = second(value, &pairs::PTRACER)?,
            b"REGALL_BOX_LIMIT" => {
                self.box_limit = bytes(value, MOST_LIMIT).ok_or(text("bytes, 1 to 64K"))?
            }
            b"REGALL_BOX_SIZE" => {
                self.box_size = bytes(value, MOST_SIZE).ok_or(text("bytes, 1 to 1M"))?
            }
            b"REGALL_BOX_MAX" => {
                self.box_max = up_to(value, RINGS as u64).ok_or(text("rings, 0 to 62"))?
            }
            b"REGALL_BOX_THRESHOLD" => {
                self.box_threshold =
                    up_to(value, MOST_THRESHOLD).ok_or(text("messages, 0 to 1048576"))?
            }
            b"REGALL_SHARE" => self.share = Share::parse(value)?,
            b"REGALL_HUGE" => self.huge = second(value, &pairs::HUGE)?,
            b"REGALL_EXCLUDE" => keep(&mut self.exclude, value)?,
            b"REGALL_STATS_FILE" => keep(&mut self.stats_file, value)?,
            b"REGALL_CHECK" => self.check = Check::parse(value)? == Check::Registrations,
            b"REGALL_CHECK_FILE" => keep(&mut self.check_file, value)?,
            // These three are the command's.
            b"REGALL_MERGE_FILE" => keep(&mut Text::<1024>::new(), value)?,
            b"REGALL_CHECK_SUPPRESSIONS" => keep(&mut Text::<4096>::new(), value)?,
            b"REGALL_CHECK_EXIT" => {
                exit_code(value).ok_or(text("an exit code, 0 to 255"))?;
            }
            b"REGALL_LOG" => self.log_level = level(value)?,
            b"REGALL_LOG_FILE" => keep(&mut self.log_file, value)?,
            _ => return Err(Problem::Name),
        }
        Ok(())
    }

    /// All variables have been taken in: whoever checks the program does nothing else.
    pub fn complete(&mut self) {
        if !self.check {
            return;
        }
        self.pin = Pin::Off;
        self.hca = Hca::Off;
        self.share = Share::Off;
        self.copy = Order::OFF;
        self.huge = false;
        self.fail_on_limit = false;
        self.ptracer_any = false;
        if self.check_file.as_bytes().is_empty() {
            self.check_file.push(CHECK_FILE);
        }
    }

    /// Whether requests to an adapter's driver are answered that come by the kernel's ioctl.
    #[inline]
    pub fn answers_ioctl(&self) -> bool {
        self.verbs_ioctl && self.hca != Hca::Off
    }

    fn set_hca(&mut self, value: &[u8]) -> Result<(), Problem> {
        let device = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b':');
        self.hca = match value {
            b"adopt" => Hca::Adopt,
            b"off" => Hca::Off,
            name if !name.is_empty() && name.len() < 64 && name.iter().all(device) => {
                self.hca_device.clear();
                self.hca_device.push(name);
                Hca::Device
            }
            _ => {
                return Err(Problem::Value {
                    expected: Expected::Text("adopt, off or a device's name"),
                })
            }
        };
        Ok(())
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

/// What is wrong with a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// No variable has this name.
    Name,
    /// The value is none of those that it can have.
    Value {
        /// Those.
        expected: Expected,
    },
    /// The value does not fit.
    Long,
}

/// What a value may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// One of these.
    Words(&'static [&'static str]),
    /// In words.
    Text(&'static str),
}

impl fmt::Display for Expected {
    /// Words with commas between them, and `or` before the last.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Self::Words(words) => *words,
            Self::Text(text) => return f.write_str(text),
        };
        for (n, word) in words.iter().enumerate() {
            let before = match n {
                0 => "",
                n if n + 1 == words.len() => " or ",
                _ => ", ",
            };
            write!(f, "{before}{word}")?;
        }
        Ok(())
    }
}

/// Whether it is the second of two words.
fn second(value: &[u8], words: &'static [&'static str; 2]) -> Result<bool, Problem> {
    let [first, second] = words.map(str::as_bytes);
    if value == second {
        Ok(true)
    } else if value == first {
        Ok(false)
    } else {
        let expected = Expected::Words(words);
        Err(Problem::Value { expected })
    }
}

fn keep<const N: usize>(place: &mut Text<N>, value: &[u8]) -> Result<(), Problem> {
    place.clear();
    place.push(value);
    if place.was_cut() {
        Err(Problem::Long)
    } else {
        Ok(())
    }
}

fn level(value: &[u8]) -> Result<LevelFilter, Problem> {
    let named = |l: &LevelFilter| {
        let word = LEVELS.get(*l as usize);
        word.is_some_and(|w| w.as_bytes() == value)
    };
    LevelFilter::iter().find(named).ok_or(Problem::Value {
        expected: Expected::Words(&LEVELS),
    })
}

/// What REGALL_CHECK_FILE is if it is not set: as core files, in the working directory.
const CHECK_FILE: &[u8] = b"regall-check.%h.%p";

/// A program's exit code.
pub fn exit_code(value: &[u8]) -> Option<u8> {
    u8::try_from(number(value)?).ok()
}

/// The most milliseconds of REGALL_REVOKE_MS: an hour.
const LATEST: u64 = 3_600_000;

/// Milliseconds, or `off`.
fn revoke(value: &[u8]) -> Option<Option<u32>> {
    match value {
        b"off" => Some(None),
        digits => number(digits)
            .filter(|ms| *ms <= LATEST)
            .map(|ms| Some(ms as u32)),
    }
}

/// Bytes, with K, M, G and T as powers of 1,024, or a percentage.
fn limit(value: &[u8]) -> Option<Limit> {
    let (&last, head) = value.split_last()?;
    let shift = match last {
        b'%' => {
            return number(head)
                .filter(|p| (1..=100).contains(p))
                .map(Limit::Percent)
        }
        b'K' | b'k' => 10,
        b'M' | b'm' => 20,
        b'G' | b'g' => 30,
        b'T' | b't' => 40,
        _ => return number(value).map(Limit::Bytes),
    };
    number(head)?.checked_mul(1 << shift).map(Limit::Bytes)
}

/// Bytes, 1 to `most`, with K and its like.
fn bytes(value: &[u8], most: u64) -> Option<u64> {
    match limit(value)? {
        Limit::Bytes(bytes) => Some(bytes).filter(|n| (1..=most).contains(n)),
        Limit::Percent(_) => None,
    }
}

/// A number up to `most`.
fn up_to(value: &[u8], most: u64) -> Option<u64> {
    number(value).filter(|n| *n <= most)
}

/// A variable's problem as a line for the user.
pub struct Complaint<'a> {
    /// The variable.
    pub name: &'a [u8],
    /// The variable's value.
    pub value: &'a [u8],
    /// What is wrong.
    pub problem: Problem,
}

impl fmt::Display for Complaint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Lossy(self.name.get(..self.name.len().min(64)).unwrap_or(&[]));
        let value = Lossy(self.value.get(..self.value.len().min(64)).unwrap_or(&[]));
        match self.problem {
            Problem::Name => write!(f, "{name} is not a variable of regall; ignored"),
            Problem::Value { expected } => {
                write!(
                    f,
                    "{name}={value} is not valid (expected {expected}); regall stays off"
                )
            }
            Problem::Long => write!(f, "{name} is too long; regall stays off"),
        }
    }
}

#[cfg(test)]
mod tests;
