//! Ways to copy between two processes. Each is one file: it declares its [`Features`], keeps what
//! it has of a peer in its [`Mechanism::Endpoint`], and copies. A new one is a file here and a row
//! of `each_mechanism` in directory/src/settings.rs, from which [`crate::kind`], [`features`] and
//! [`run`] are made; one with an endpoint is a field of [`Endpoints`], too. Who chooses between
//! mechanisms asks for features. By name they are asked for only where a caller speaks to one of
//! them: `process_vm` to the mapped memory, the kernel and the helper, `peer` to the mapped memory,
//! `word`, `cookie` and the shim to the helper, `cookie` and the shim to KNEM.

pub mod cma;
pub mod helper;
pub mod knem;
pub mod map;
pub mod xpmem;

use crate::host::Host;
pub use crate::kind::{Kind, No, Order, States};
use crate::link::Link;
use crate::lock::Lock;
use crate::process::Process;
use crate::vector::{Segment, Way};
use crate::window::{By, Windows};
use regall_directory::each_mechanism;
use regall_sys::{Errno, Result};

/// What a mechanism can do, for those who choose between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Copies whatever memory the owner has registered, mapped here or not.
    pub any_memory: bool,
    /// One system call of ours does it, without anything made beforehand.
    pub by_kernel: bool,
    /// It knows memory by a cookie of its own: what that has may be older than what is at the
    /// addresses.
    pub by_cookie: bool,
    /// Passes descriptors of the peer's files.
    pub passes_files: bool,
}

impl Features {
    /// No feature.
    pub const NONE: Self = Self {
        any_memory: false,
        by_kernel: false,
        by_cookie: false,
        passes_files: false,
    };
}

/// What is to be copied.
pub struct Job<'a> {
    /// Whose memory the remote segments are.
    pub peer: &'a Process,
    /// What mechanisms keep for this peer.
    pub endpoints: &'a Endpoints,
    /// The order of mechanisms, as REGALL_COPY says.
    pub order: &'a Order,
    /// Whether it is a get or a put.
    pub way: Way,
    /// The segments of this process.
    pub local: &'a [Segment],
    /// The peer's segments.
    pub remote: &'a [Segment],
    /// The cookie (0: none) that the KNEM module has for the memory by which the remote segments
    /// are got at, and their offset in it.
    pub knem: Option<(u64, u64)>,
}

/// What was copied.
pub struct Copied {
    /// Bytes from the beginning, at least 1.
    pub bytes: u64,
    /// Whether it is proven that they are of this peer's memory, whoever has its pid.
    pub proven: bool,
}

impl Copied {
    fn unproven(bytes: u64) -> Self {
        let proven = false;
        Self { bytes, proven }
    }
}

/// A way to copy.
pub trait Mechanism {
    /// What the mechanism can do.
    const FEATURES: Features;
    /// What it keeps of one peer.
    type Endpoint;
    /// The mechanism's own endpoint among all.
    fn endpoint(all: &Endpoints) -> &Self::Endpoint;
    /// Copies from the beginning of one side to the end of the shorter one.
    ///
    /// # Safety
    /// The local segments are valid to be written (get) or read (put).
    unsafe fn copy(job: &Job, own: &Self::Endpoint) -> core::result::Result<Copied, No>;
}

/// What mechanisms keep of one peer.
pub struct Endpoints {
    map: Windows,
    xpmem: xpmem::Endpoint,
    helper: Lock<Link>,
    states: States,
}

impl Default for Endpoints {
    fn default() -> Self {
        Self::new()
    }
}

impl Endpoints {
    /// Nothing is mapped or connected, and nothing was tried.
    pub const fn new() -> Self {
        Self {
            map: Windows::new(),
            xpmem: xpmem::Endpoint::new(),
            helper: Lock::new(Link::none()),
            states: States::new(),
        }
    }

    /// What of the peer's memory is mapped from files.
    #[inline]
    pub fn windows(&self) -> &Windows {
        &self.map
    }

    /// How memory is mapped from files: with the helper's help, if the order has one.
    pub fn by_file(&self, order: &Order) -> By<'_> {
        let helps = order.kinds().any(|kind| features(kind).passes_files);
        By::File(helps.then_some(&self.helper))
    }

    /// The connection to the peer's helper, for one thread at a time.
    pub fn link(&self) -> &Lock<Link> {
        &self.helper
    }

    /// Whether the kernel is not known to refuse to copy by itself.
    fn kernel_copies(&self) -> bool {
        let by_kernel = |kind: &Kind| features(*kind).by_kernel;
        let mut those = Kind::ALL.into_iter().filter(by_kernel);
        those.all(|kind| self.states.hopeful(kind))
    }

    /// Lets go of what is of entries that have changed since.
    pub fn tidy(&self, host: &dyn Host) {
        self.map.tidy(host);
        self.xpmem.windows.tidy(host);
    }

    /// The peer is gone: lets go of everything that is not in use.
    pub fn clear(&self, host: &dyn Host) {
        self.map.clear(host);
        self.xpmem.windows.clear(host);
    }

    /// Gives everything back; nobody uses it any more. What is inherited and not `ours` is only
    /// forgotten.
    pub fn release(&self, host: &dyn Host, ours: bool) {
        self.helper.lock().close();
        if ours {
            self.map.release(host);
            self.xpmem.windows.release(host);
            self.xpmem.access.release();
        }
    }
}

macro_rules! by_kind {
    ($($(#[$doc:meta])* $name:ident = $n:literal => $word:literal, $file:ident::$type:ident,
        $transfers:ident, $bytes:ident;)*) => {
        /// What a mechanism can do.
        pub const fn features(kind: Kind) -> Features {
            match kind {
                $(Kind::$name => $file::$type::FEATURES),*
            }
        }

        /// # Safety
        /// As [`copy`].
        #[inline]
        unsafe fn run(kind: Kind, job: &Job) -> core::result::Result<Copied, No> {
            match kind {
                $(Kind::$name => {
                    let own = $file::$type::endpoint(job.endpoints);
                    // SAFETY: by the contract above.
                    unsafe { $file::$type::copy(job, own) }
                })*
            }
        }
    };
}

each_mechanism! { by_kind }

/// Whether one of the order copies whatever memory is registered.
fn any_memory(order: &Order) -> bool {
    order.kinds().any(|kind| features(kind).any_memory)
}

/// Copies from the beginning of one side to the end of the shorter one, by the first
/// mechanism that will: what was copied, and which one it was; errors as
/// [`crate::transfer`]'s.
///
/// # Safety
/// The local segments are valid to be written (get) or read (put).
#[inline]
pub unsafe fn copy(job: &Job) -> Result<(Copied, Kind)> {
    let mut fewer = false;
    for kind in job.order.kinds() {
        if !job.endpoints.states.hopeful(kind) {
            continue;
        }
        // SAFETY: by the contract above.
        match unsafe { run(kind, job) } {
            Ok(copied) => return Ok((copied, kind)),
            Err(No::Never) => {
                job.endpoints.states.refuse(kind);
                fewer = true;
            }
            Err(No::NotThis) => (),
            Err(No::Failed(e)) => return Err(e),
        }
    }
    match fewer {
        // What did not pay may be all that is left.
        // SAFETY: by the contract above.
        true => unsafe { again(job) },
        false => Err(Errno::PERM),
    }
}

#[cold]
unsafe fn again(job: &Job) -> Result<(Copied, Kind)> {
    // SAFETY: by the caller's contract. Ends: each time there is a mechanism less.
    unsafe { copy(job) }
}
