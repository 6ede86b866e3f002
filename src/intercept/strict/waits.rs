//! libc's waits with a mask where libc makes them by a site that must not be patched (glibc 2.41
//! and later, `patch::discover`): the slots of modules point here, and SIGSYS is not in the mask
//! that libc gets.

use super::signals;
use crate::patch::find_function;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A cancellation unwinds out of it, by its frame alone: nothing is dropped then.
type Wait = extern "C" fn(u64, u64, u64, u64, u64, u64) -> i32;

/// Names, what stands in for them, and which argument is the mask's address.
const WAITS: [(&str, Wait, usize); 7] = [
    ("sigsuspend", wait::<0>, 0),
    ("ppoll", wait::<1>, 3),
    ("__ppoll_chk", wait::<2>, 3),
    ("pselect", wait::<3>, 5),
    ("epoll_pwait", wait::<4>, 4),
    ("epoll_pwait2", wait::<5>, 4),
    ("__sigsuspend", wait::<6>, 0),
];

/// libc's own functions of these names.
static REAL: [AtomicU64; WAITS.len()] = [const { AtomicU64::new(0) }; WAITS.len()];

/// Looks for libc's own functions: without this nothing stands in for them.
pub fn find_real() {
    for ((name, ..), place) in WAITS.iter().zip(&REAL) {
        place.store(find_function(name).unwrap_or(0), Relaxed);
    }
}

/// Whether `address` is libc's own function `name`. Another one stays in a slot: a library that stands
/// in for it calls libc's itself, through a slot of its own.
pub fn is_real(name: &[u8], address: u64) -> bool {
    let n = WAITS.iter().position(|(n, ..)| n.as_bytes() == name);
    let real = n.and_then(|n| REAL.get(n));
    real.is_none_or(|real| real.load(Relaxed) == address)
}

/// Our function for libc's `name`, if there is one and libc's own is known.
pub fn replacement(name: &[u8]) -> Option<u64> {
    let n = WAITS.iter().position(|(n, ..)| n.as_bytes() == name)?;
    let known = REAL.get(n)?.load(Relaxed) != 0;
    let ours = WAITS.get(n)?.1;
    known.then_some(ours as *const () as u64)
}

extern "C" fn wait<const N: usize>(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> i32 {
    let mut args = [a, b, c, d, e, f];
    // As large as libc's type.
    let mut mask = [0u64; 16];
    let place = WAITS.get(N).and_then(|(.., n)| args.get_mut(*n));
    if let Some(at) = place.filter(|at| **at != 0 && super::is_on()) {
        let pass = super::pass();
        if let Some(set) = signals::without_sigsys(*at) {
            mask[0] = set;
            *at = mask.as_ptr() as u64;
        }
        drop(pass);
    }
    let real = REAL.get(N).map_or(0, |r| r.load(Relaxed));
    // SAFETY: the address of libc's function of number `N`, saved before any slot pointed here;
    // none has more than six arguments, which are words whatever their types, and each reads only
    // those that it has. The mask outlives the call.
    let real: Wait = unsafe { core::mem::transmute(real as *const ()) };
    let [a, b, c, d, e, f] = args;
    real(a, b, c, d, e, f)
}
