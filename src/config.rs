//! The environment, read once before main. It comes from the constructor's
//! arguments: that early, libc's own `environ` is still empty.

use crate::text::{number, Lossy, Text};
use crate::uverbs::wire::faults;
use core::ffi::CStr;
use core::fmt;
use log::LevelFilter;
use regall_bridge::kind::Order;

/// REGALL_PIN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pin {
    /// Nothing is locked.
    Off,
    /// Locked when touched; adapters don't make resident what nobody has touched, but
    /// for what is small.
    Auto,
    /// Locked when touched.
    OnFault,
    /// Locked and populated at once.
    Populate,
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

/// REGALL_ACCESS: what peers may do through published keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Nothing.
    Local,
    /// Read.
    RemoteRead,
    /// Read and write.
    RemoteWrite,
    /// Read, write, and atomic operations.
    RemoteAtomic,
}

/// REGALL_SHARE: which private memory peers can map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// None.
    Off,
    /// Large memory of a rank that has others on its node, where it pays.
    Heap,
    /// Large memory of every process, through any number of forks.
    Always,
}

/// REGALL_INTERCEPT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intercept {
    /// Relocation slots of the public functions.
    Symbols,
    /// System-call sites.
    Patch,
    /// Sites, and Syscall User Dispatch for the rest.
    Strict,
}

/// REGALL_LIMIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of what the process may have, 1 to 100.
    Percent(u64),
}

/// All settings.
pub struct Config {
    /// REGALL_PIN.
    pub pin: Pin,
    /// REGALL_HCA.
    pub hca: Hca,
    /// The device that REGALL_HCA names.
    pub hca_device: Text<64>,
    /// REGALL_HCA_MODE=odp.
    pub hca_odp: bool,
    /// REGALL_SCOPE=data.
    pub scope_data: bool,
    /// REGALL_KEYS=exact.
    pub keys_exact: bool,
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
    /// REGALL_SHARE.
    pub share: Share,
    /// REGALL_HUGE=advise.
    pub huge: Option<bool>,
    /// REGALL_EXCLUDE.
    pub exclude: Text<2048>,
    /// REGALL_STATS_FILE.
    pub stats_file: Text<1024>,
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
            hca_odp: false,
            scope_data: false,
            keys_exact: false,
            access: Access::Local,
            limit: Limit::Percent(90),
            fail_on_limit: false,
            intercept: Intercept::Patch,
            fork_all: false,
            copy: Order::AUTO,
            ptracer_any: false,
            share: Share::Off,
            huge: None,
            exclude: Text::new(),
            stats_file: Text::new(),
            log_level: LevelFilter::Warn,
            log_file: Text::new(),
        }
    }

    /// Takes one `REGALL_…` variable in. Variables that don't begin so are no
    /// business of this function's.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), Problem> {
        let bad = |expected| Problem::Value { expected };
        match name {
            b"REGALL" | b"REGALL_ONLY" => (),
            b"REGALL_PIN" => {
                self.pin = match value {
                    b"auto" => Pin::Auto,
                    b"populate" => Pin::Populate,
                    b"onfault" => Pin::OnFault,
                    b"off" => Pin::Off,
                    _ => return Err(bad("auto, onfault, populate or off")),
                }
            }
            b"REGALL_HCA" => self.set_hca(value)?,
            b"REGALL_HCA_MODE" => self.hca_odp = choice(value, b"pinned", b"odp", "pinned or odp")?,
            b"REGALL_SCOPE" => self.scope_data = choice(value, b"all", b"data", "all or data")?,
            b"REGALL_KEYS" => {
                self.keys_exact = choice(value, b"mapping", b"exact", "mapping or exact")?
            }
            b"REGALL_ACCESS" => {
                self.access = match value {
                    b"local" => Access::Local,
                    b"remote-read" => Access::RemoteRead,
                    b"remote-write" => Access::RemoteWrite,
                    b"remote-atomic" => Access::RemoteAtomic,
                    _ => return Err(bad("local, remote-read, remote-write or remote-atomic")),
                }
            }
            b"REGALL_LIMIT" => {
                self.limit =
                    limit(value).ok_or(bad("bytes with an optional K, M, G or T, or 1% to 100%"))?
            }
            b"REGALL_ON_LIMIT" => {
                self.fail_on_limit = choice(value, b"skip", b"fail", "skip or fail")?
            }
            b"REGALL_INTERCEPT" => {
                self.intercept = match value {
                    b"patch" => Intercept::Patch,
                    b"symbols" => Intercept::Symbols,
                    b"strict" => Intercept::Strict,
                    _ => return Err(bad("patch, symbols or strict")),
                }
            }
            b"REGALL_FORK" => self.fork_all = choice(value, b"inherit", b"all", "inherit or all")?,
            b"REGALL_COPY" => {
                self.copy = Order::parse(value).ok_or(bad(
                    "auto, off, or a list of map, xpmem, cma, knem and helper",
                ))?
            }
            b"REGALL_PTRACER" => self.ptracer_any = choice(value, b"off", b"any", "off or any")?,
            b"REGALL_SHARE" => {
                self.share = match value {
                    b"off" => Share::Off,
                    b"heap" => Share::Heap,
                    b"always" => Share::Always,
                    _ => return Err(bad("off, heap or always")),
                }
            }
            b"REGALL_HUGE" => self.huge = Some(!choice(value, b"advise", b"off", "advise or off")?),
            b"REGALL_EXCLUDE" => keep(&mut self.exclude, value)?,
            b"REGALL_STATS_FILE" => keep(&mut self.stats_file, value)?,
            b"REGALL_LOG" => self.log_level = level(value)?,
            b"REGALL_LOG_FILE" => keep(&mut self.log_file, value)?,
            b"REGALL_FAIL_REQUEST" if cfg!(feature = "failing-requests") => {
                let mut words = value.split(|b| *b == b':').map(|w| number(w).unwrap_or(0));
                faults::arm(words.next().unwrap_or(0), words.next().unwrap_or(12));
            }
            _ => return Err(Problem::Name),
        }
        Ok(())
    }

    /// Whether huge pages are asked for. A huge page is resident as a whole: where nothing is
    /// to be that nobody has touched, they are not, unless the user says so.
    pub fn wants_huge(&self) -> bool {
        self.huge.unwrap_or(self.pin != Pin::Auto)
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
                    expected: "adopt, off or a device's name",
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
        /// The values that are valid, in words.
        expected: &'static str,
    },
    /// The value does not fit.
    Long,
}

fn choice(value: &[u8], no: &[u8], yes: &[u8], expected: &'static str) -> Result<bool, Problem> {
    if value == yes {
        Ok(true)
    } else if value == no {
        Ok(false)
    } else {
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
    Ok(match value {
        b"off" => LevelFilter::Off,
        b"error" => LevelFilter::Error,
        b"warn" => LevelFilter::Warn,
        b"info" => LevelFilter::Info,
        b"debug" => LevelFilter::Debug,
        b"trace" => LevelFilter::Trace,
        _ => {
            return Err(Problem::Value {
                expected: "off, error, warn, info, debug or trace",
            })
        }
    })
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
            Problem::Name => write!(f, "{name} is no variable of regall's; ignored"),
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

/// The program's environment, as the kernel put it on the stack.
#[derive(Clone, Copy)]
pub struct Environment(*const *const core::ffi::c_char);

impl Environment {
    /// # Safety
    /// `envp` is a NULL-terminated array of C strings, or NULL.
    pub const unsafe fn new(envp: *const *const core::ffi::c_char) -> Self {
        Self(envp)
    }

    /// Calls `f` with each name and value.
    pub fn each(self, mut f: impl FnMut(&[u8], &[u8])) {
        let mut at = self.0;
        while !at.is_null() {
            // SAFETY: within the array: its NULL has not been met yet.
            let entry = unsafe { *at };
            if entry.is_null() {
                return;
            }
            // SAFETY: an entry is a C string.
            let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
            let split = text.iter().position(|b| *b == b'=').unwrap_or(text.len());
            f(
                text.get(..split).unwrap_or(&[]),
                text.get(split + 1..).unwrap_or(&[]),
            );
            // SAFETY: the array goes on until its NULL.
            at = unsafe { at.add(1) };
        }
    }

    /// Calls `f` with the value of `name`, if it is set.
    pub fn with<R>(self, name: &[u8], mut f: impl FnMut(&[u8]) -> R) -> Option<R> {
        let mut found = None;
        self.each(|n, v| {
            if n == name && found.is_none() {
                found = Some(f(v));
            }
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn limits() {
        assert_eq!(limit(b"90%"), Some(Limit::Percent(90)));
        assert_eq!(limit(b"16M"), Some(Limit::Bytes(16 << 20)));
        assert_eq!(limit(b"0"), Some(Limit::Bytes(0)));
        for bad in [
            "",
            "%",
            "0%",
            "101%",
            "-1",
            "1.5G",
            "M",
            "99999999999T",
            "1 G",
            "1GB",
        ] {
            assert_eq!(limit(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn every_variable_takes_its_default_and_refuses_nonsense() {
        let defaults: &[(&str, &str)] = &[
            ("REGALL_PIN", "auto"),
            ("REGALL_HCA", "adopt"),
            ("REGALL_HCA_MODE", "pinned"),
            ("REGALL_SCOPE", "all"),
            ("REGALL_KEYS", "mapping"),
            ("REGALL_ACCESS", "local"),
            ("REGALL_LIMIT", "90%"),
            ("REGALL_ON_LIMIT", "skip"),
            ("REGALL_INTERCEPT", "patch"),
            ("REGALL_FORK", "inherit"),
            ("REGALL_COPY", "auto"),
            ("REGALL_PTRACER", "off"),
            ("REGALL_SHARE", "off"),
            ("REGALL_HUGE", "advise"),
            ("REGALL_LOG", "warn"),
        ];
        for (name, value) in defaults {
            let mut c = Config::new();
            assert_eq!(c.set(name.as_bytes(), value.as_bytes()), Ok(()), "{name}");
            for bad in ["", "no such value!", "POPULATE "] {
                let got = c.set(name.as_bytes(), bad.as_bytes());
                assert!(matches!(got, Err(Problem::Value { .. })), "{name}={bad}");
            }
        }
        assert_eq!(
            Config::new().set(b"REGALL_PINN", b"off"),
            Err(Problem::Name)
        );
        assert_eq!(
            Config::new().set(b"REGALL_EXCLUDE", &[b'x'; 5000]),
            Err(Problem::Long)
        );
    }

    proptest! {
        #[test]
        fn no_environment_panics(name in "REGALL_[A-Z_]{0,12}", value in ".*") {
            let _ = Config::new().set(name.as_bytes(), value.as_bytes());
        }
    }
}
