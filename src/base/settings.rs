//! The settings in force, which the constructor reads from the environment.

use crate::config::{Config, Hca};
use core::cell::UnsafeCell;

struct Settings(UnsafeCell<Config>);
// SAFETY: written by the constructor alone, before anything is tracked.
unsafe impl Sync for Settings {}
static CONFIG: Settings = Settings(UnsafeCell::new(Config::new()));

/// The settings.
#[inline]
pub fn config() -> &'static Config {
    // SAFETY: not written any more once anybody calls this.
    unsafe { &*CONFIG.0.get() }
}

/// The settings, to be read from the environment.
///
/// # Safety
/// The constructor calls this, while it is the only thread and before anybody calls [`config`].
pub unsafe fn to_be_read() -> &'static mut Config {
    // SAFETY: by the contract above nobody else has a reference.
    unsafe { &mut *CONFIG.0.get() }
}

/// The device that REGALL_HCA names; empty: none.
pub fn device() -> &'static str {
    let c = config();
    let name = match c.hca {
        Hca::Device => c.hca_device.as_bytes(),
        _ => &[],
    };
    core::str::from_utf8(name).unwrap_or("")
}
