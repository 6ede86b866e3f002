//! How calls are intercepted, in force: not always what REGALL_INTERCEPT asks for.

use super::counters;
use crate::config::Intercept;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use regall_directory::settings::Setting;

static MODE: AtomicU8 = AtomicU8::new(0);

/// How calls are intercepted, in force (a refusal to patch ends in symbols).
#[inline]
pub fn mode() -> Intercept {
    match MODE.load(Relaxed) {
        0 => Intercept::Symbols,
        1 => Intercept::Patch,
        _ => Intercept::Strict,
    }
}

/// The hooks are in: calls are intercepted as `mode` says.
pub fn set(mode: Intercept) {
    MODE.store(mode as u8, Relaxed);
}

/// Strict mode can't be: patch is in force in its place, and the directory says so.
pub fn not_strict() {
    let before = MODE.swap(Intercept::Patch as u8, Relaxed);
    if before != Intercept::Strict as u8 {
        return;
    }
    if let Some(h) = counters::header() {
        let word = |mode| Setting::INTERCEPT.bits(mode as u64);
        let change = word(Intercept::Strict) ^ word(Intercept::Patch);
        h.settings.fetch_xor(change, Relaxed);
    }
}
