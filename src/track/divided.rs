//! Memory that the application has divided into several of the kernel's mappings by what it said of
//! a part: advice that stays with a mapping, a NUMA policy, a userfaultfd. The ledger does not know
//! of it. Whether a range is one mapping to the application the kernel tells, at a price; it is asked
//! only where something was said at all.

use crate::base::maps::each_with_flags;
use crate::share::marks::{Marks, Policy};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use regall_directory::addr::PageRange;

/// Where something was said: from the lowest such address to the highest.
static WHERE: [AtomicU64; 2] = [AtomicU64::new(u64::MAX), AtomicU64::new(0)];
/// Whether something was said of huge pages. If not, it is the shim that has (`crate::huge`).
static OF_HUGE: AtomicBool = AtomicBool::new(false);
/// Whether a NUMA policy was given.
static OF_NODES: AtomicBool = AtomicBool::new(false);

/// The application gives `advice` about `range`, wherever that is if it is not known.
#[inline]
pub fn advised(range: Option<PageRange>, advice: i32) {
    const OF_CHILDREN: [i32; 4] = [
        libc::MADV_DONTFORK,
        libc::MADV_DOFORK,
        libc::MADV_WIPEONFORK,
        libc::MADV_KEEPONFORK,
    ];
    if Marks::know(advice) || OF_CHILDREN.contains(&advice) {
        let of_huge = matches!(advice, libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE);
        if of_huge {
            OF_HUGE.store(true, Relaxed);
        }
        said(range);
    }
}

/// The application gives `range` a NUMA policy.
#[cold]
pub fn bound(range: Option<PageRange>) {
    OF_NODES.store(true, Relaxed);
    said(range);
}

/// The application says something of `range`, wherever that is if it is not known.
#[cold]
pub fn said(range: Option<PageRange>) {
    let [low, high] = &WHERE;
    low.fetch_min(range.map_or(0, PageRange::start), Relaxed);
    high.fetch_max(range.map_or(u64::MAX, PageRange::end), Relaxed);
}

/// What was at `from` is at `to`.
#[inline]
pub fn moved(from: PageRange, to: PageRange) {
    if is_near(from) {
        said(Some(to));
    }
}

/// Whether something may have been said of `range`.
#[inline]
fn is_near(range: PageRange) -> bool {
    let [low, high] = &WHERE;
    low.load(Relaxed) < range.end() && range.start() < high.load(Relaxed)
}

/// Whether parts of `range` are mappings of their own for what the application has said of them.
#[cold]
#[inline(never)]
pub fn is_divided(range: PageRange) -> bool {
    if !is_near(range) {
        return false;
    }
    let mut first = None;
    let mut differs = false;
    each_with_flags(range, |part, flags| {
        let nodes = OF_NODES.load(Relaxed).then(|| Policy::at(part.start()));
        let this = (number(flags), nodes);
        differs = *first.get_or_insert(this) != this;
        !differs
    });
    differs
}

/// A number of the flags that are the application's doing, which others seldom have.
fn number(flags: &[u8]) -> u64 {
    let words = flags.split(|b| *b == b' ').filter(|word| !is_ours(word));
    let bytes = words.flat_map(|word| word.iter().chain(b" "));
    bytes.fold(0, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// What parts differ by that the kernel would have merged without the shim: locks, on fault too,
/// which has no name on some kernels; what is tracked for checkpoints, which the kernel does not
/// look at; its own advice.
fn is_ours(word: &[u8]) -> bool {
    let huge = matches!(word, b"hg" | b"nh") && !OF_HUGE.load(Relaxed);
    huge || matches!(word, b"" | b"lo" | b"lf" | b"??" | b"sd")
}
