//! The peer's memory, attached here by the XPMEM driver ([`crate::xpmem`]) for each copy.

use super::map::through;
use super::{Copied, Endpoints, Features, Job, Mechanism};
use crate::kind::No;
use crate::window::{By, Windows};
use crate::xpmem::{device, Access};
use regall_sys::arch::ticks;

/// The mechanism by the XPMEM module.
pub struct Xpmem;

/// What it keeps of one peer.
#[derive(Default)]
pub struct Endpoint {
    /// Leave to attach the peer's memory.
    pub(super) access: Access,
    /// What is attached.
    pub(super) windows: Windows,
}

impl Endpoint {
    /// An endpoint with nothing attached.
    pub const fn new() -> Self {
        Self {
            access: Access::new(),
            windows: Windows::new(),
        }
    }
}

impl Mechanism for Xpmem {
    const FEATURES: Features = Features::NONE;

    type Endpoint = Endpoint;

    fn endpoint(all: &Endpoints) -> &Self::Endpoint {
        &all.xpmem
    }

    unsafe fn copy(job: &Job, own: &Self::Endpoint) -> core::result::Result<Copied, No> {
        if job.order.is_auto() {
            return Err(No::NotThis);
        }
        if job.peer.offers_xpmem().is_none() || device().is_err() {
            return Err(No::Never);
        }
        // Of an owner that is gone every touch would be SIGBUS.
        job.peer.check(ticks()).map_err(No::Failed)?;
        // SAFETY: by the contract above.
        let copied = unsafe { through(By::Xpmem(&own.access), &own.windows, job) };
        own.windows.clear(job.peer.host());
        copied.map(Copied::unproven)
    }
}
