//! What the checker of registrations is told of libibverbs' calls (REGALL_CHECK).

use crate::check::registrations;
use crate::intercept::strict;
use crate::track;
use crate::uverbs::abi::{Context, Mr};

/// Whether registrations are checked.
#[inline]
pub fn on() -> bool {
    registrations::on()
}

/// The application has registered bytes: the first, and how many.
#[cold]
#[inline(never)]
pub fn registered(mr: *const Mr, (start, len): (u64, u64), iova: u64, access: u32) {
    let _pass = strict::pass();
    track::fork::check();
    // SAFETY: libibverbs has just returned it.
    unsafe { registrations::registered(mr, start, len, iova, access.into()) };
}

/// A registration that is about to be deregistered, if the checker knows it.
pub struct Leaving(Option<registrations::Leaving>);

impl Leaving {
    /// None.
    pub const NONE: Self = Self(None);

    /// That of `mr`.
    #[cold]
    #[inline(never)]
    pub fn of(mr: *const Mr) -> Self {
        let _pass = strict::pass();
        Self(registrations::deregistering(mr))
    }

    /// The access that was asked for.
    pub fn access(&self) -> Option<u32> {
        self.0.as_ref().map(|l| l.access())
    }

    /// The real call has failed.
    pub fn stays(self) {
        if let Some(leaving) = self.0 {
            let _pass = strict::pass();
            registrations::stays(leaving);
        }
    }
}

/// The application has closed a device.
pub fn closed(context: *const Context) {
    if on() {
        let _pass = strict::pass();
        registrations::closed(context);
    }
}
