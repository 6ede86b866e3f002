//! libibverbs' calls of its own functions, which come by the exports here where ld.so finds these first.
//! Until the library's slots lead back to itself, a call may be one of them, and is passed on.
//!
//! A program that has `ibv_reg_mr` by dlvsym (NCCL) calls the library's own, which jumps on to
//! `ibv_reg_mr_iova2` by its symbol, and so to the export. What that would lend goes to the
//! library's own `ibv_dereg_mr`, which frees it: the program would die.

use super::{real, told};
use crate::base::{phase, settings};
use crate::config::Hca;
use crate::intercept::{strict, symbols};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Where the libibverbs has its ibv_reg_mr whose calls of itself go to itself; 0: none does yet.
static CALLS_ITSELF: AtomicUsize = AtomicUsize::new(0);

/// Whether its calls of itself go to itself.
#[inline]
pub fn is_seen_to() -> bool {
    CALLS_ITSELF.load(Relaxed) != 0
}

/// Sees to it that they do, and not to `ours`: the exports' names and addresses.
pub fn see(ours: &[(&str, u64)]) {
    let lends = settings::config().hca != Hca::Off;
    if !phase::tracking() || !lends && !told::on() {
        return;
    }
    let _pass = strict::pass();
    let Some(inside) = real::ibv_reg_mr() else {
        return;
    };
    // It may have been loaded anew.
    if CALLS_ITSELF.load(Relaxed) == inside as usize {
        return;
    }
    if symbols::let_it_call_itself(inside as u64, ours) {
        CALLS_ITSELF.store(inside as usize, Relaxed);
    }
}
