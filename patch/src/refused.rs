//! Sites that were refused. Code that is made writable and executable again, as UCX does with libc's
//! functions, is searched again, and its sites are no more than they were.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use regall_directory::addr::PageRange;

/// Each site has one place.
static REFUSED: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Takes note of a site that is refused; whether it was not the last one at its place.
pub fn is_new(site: u64) -> bool {
    let place = REFUSED.get((site / 16) as usize % REFUSED.len());
    place.is_none_or(|at| at.swap(site, Relaxed) != site)
}

/// The code in `range` is gone.
pub fn forget(range: PageRange) {
    let gone = |at: &&AtomicU64| range.contains(at.load(Relaxed));
    REFUSED
        .iter()
        .filter(gone)
        .for_each(|at| at.store(0, Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_that_is_refused_again_is_not_new() {
        let (site, page) = (0x5e_0123_4560, 0x5e_0123_4000);
        assert_eq!(
            [is_new(site), is_new(site), is_new(site)],
            [true, false, false]
        );
        forget(PageRange::new(page + 0x1000, page + 0x2000).unwrap());
        assert!(!is_new(site));
        forget(PageRange::new(page, page + 0x1000).unwrap());
        assert_eq!([is_new(site), is_new(site)], [true, false]);
    }
}
