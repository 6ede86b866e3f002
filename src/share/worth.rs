//! Whether sharing new memory is worth it. The first touch of a file's page costs half as much
//! again as that of private memory. Where memory of a size has come and gone several times and
//! no peer has mapped it, the next is left private; every now and then one is tried again, since
//! a program that computes may begin to communicate.

use super::table::Part;
use core::sync::atomic::{AtomicU8, Ordering::*};
use regall_bridge::window::mark;

/// Sizes are told apart by powers of two, from [`super::LEAST`] on.
const SIZES: usize = 16;
/// Mappings of a size that nobody wanted, after which the next stays private.
const IDLE: u8 = 8;
/// Of so many, the last few are shared all the same: in a row, for a peer that has tried in vain
/// for a while does not try each time.
const TURNS: u8 = 64;
const TRIED: u8 = 4;

/// For each size: mappings that have gone one after the other without a peer's having mapped
/// them, up to [`IDLE`]; and those that have been left private since.
static UNWANTED: [AtomicU8; SIZES] = [const { AtomicU8::new(0) }; SIZES];
static LEFT: [AtomicU8; SIZES] = [const { AtomicU8::new(0) }; SIZES];

fn size_of(bytes: u64) -> usize {
    let least = super::LEAST.ilog2();
    let above = bytes.max(1).ilog2().saturating_sub(least);
    (above as usize).min(SIZES - 1)
}

/// Whether new memory of `bytes` bytes is to be shared.
pub fn sharing(bytes: u64) -> bool {
    let n = size_of(bytes);
    let (Some(unwanted), Some(left)) = (UNWANTED.get(n), LEFT.get(n)) else {
        return true;
    };
    unwanted.load(Relaxed) < IDLE || left.fetch_add(1, Relaxed) % TURNS >= TURNS - TRIED
}

/// `part`, the last of its file, which is still open, has been unmapped.
pub fn learn(part: &Part) {
    if part.frozen || part.file.fd < 0 {
        return; // peers could not be told apart from its time before
    }
    if let Some(unwanted) = UNWANTED.get(size_of(part.file.used)) {
        let n = match mark::is_there(part.file.fd) {
            true => 0,
            false => unwanted.load(Relaxed).saturating_add(1).min(IDLE),
        };
        unwanted.store(n, Relaxed);
    }
}
