//! Whose process this is, by the identity that its directory was made for.

use crate::sys::{self, process::Identity};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// When this process began and its pid namespace, as they are in its directory; 0: not known.
static KNOWN: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// The random number that tells this image from all others, as it is in its directory.
static IMAGE: AtomicU64 = AtomicU64::new(0);

/// Another number for [`image`]: of a new directory.
pub fn new_image() -> u64 {
    let image = sys::random();
    IMAGE.store(image, Relaxed);
    image
}

/// What tells this image from all others; 0 before there is a directory.
pub fn image() -> u64 {
    IMAGE.load(Relaxed)
}

/// The directory is made for the process `us`.
pub fn known_as(us: &Identity) {
    let [start, namespace] = &KNOWN;
    start.store(us.start, Relaxed);
    namespace.store(us.namespace, Relaxed);
}

/// Whether this is the process that the directory was made for. Its number does not tell: 1 is
/// that of the first process of a pid namespace, and of its child that is the first of another
/// and shares its memory, or has a copy.
pub fn is_known() -> bool {
    let [start, namespace] = &KNOWN;
    let known = (start.load(Relaxed), namespace.load(Relaxed));
    Identity::own().map_or(true, |us| {
        known == (0, 0) || known == (us.start, us.namespace)
    })
}
