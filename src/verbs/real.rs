//! libibverbs' own functions, found in its symbol table where it is mapped: dlsym
//! takes ld.so's lock, and finds nothing from here if MPI has loaded libibverbs for
//! itself alone (RTLD_LOCAL).

use crate::base::unseen;
use crate::memory;
use crate::patch::find_in_library;
use crate::sys::{self, Errno};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

macro_rules! functions {
    ($($name:ident),* $(,)?) => {
        #[allow(non_upper_case_globals)]
        mod places {
            $(pub static $name: $crate::verbs::real::Place = $crate::verbs::real::Place::new();)*
        }

        $(
            /// The library's function of this name, its default version.
            pub fn $name() -> Option<*const ()> {
                find(&places::$name)
            }
        )*

        /// All of them, and their names.
        static ALL: [(&Place, &str); [$(stringify!($name)),*].len()] =
            [$((&places::$name, stringify!($name))),*];
    };
}

/// Finds all that the library has, if what was found has moved: under a seccomp filter the kernel's
/// list may not be there to be read. (The first that was wanted has had all of them found.)
pub fn find_again() {
    let mut wanted = ALL.iter().filter(|(place, _)| place.was_found());
    if wanted.any(|(place, _)| place.known().is_none()) {
        look(LIBRARY, ALL);
    }
}

const LIBRARY: &[u8] = b"libibverbs";

functions! {
    ibv_reg_mr,
    ibv_reg_mr_iova,
    ibv_reg_mr_iova2,
    ibv_dereg_mr,
    ibv_rereg_mr,
    ibv_alloc_pd,
    ibv_dealloc_pd,
    ibv_import_device,
    ibv_import_pd,
    ibv_unimport_pd,
    ibv_close_device,
}

/// Looks this often, a millisecond apart: another thread may be at the patcher's memory
/// for as long as it reads the kernel's list, and the library is there, or nobody would
/// have called.
const TRIES: u32 = 500;

fn find(place: &Place) -> Option<*const ()> {
    let at = place.known().or_else(|| find_slowly(place))?;
    Some(at as *const ())
}

/// Whether the library is there, by one look at most: a program may have it linked statically.
pub fn is_loaded() -> bool {
    let place = &places::ibv_reg_mr;
    if place.known().is_none() {
        look(LIBRARY, ALL);
    }
    place.known().is_some()
}

/// With it come all others: who deallocates may have no descriptor left to read the kernel's list by.
#[cold]
#[inline(never)]
fn find_slowly(place: &Place) -> Option<usize> {
    (0..TRIES).find_map(|n| {
        if n != 0 {
            sys::nap(1_000_000);
        }
        look(LIBRARY, ALL);
        place.known()
    })
}

/// Where a function was found. The library may be unloaded and come back elsewhere
/// (a plug-in that is closed and opened again): its first bytes are looked at when memory may have gone.
struct Place {
    at: AtomicUsize,
    begins: [AtomicU64; 2],
    /// [`unseen::memory_there`] when they were looked at last.
    looked: AtomicU32,
}

impl Place {
    const fn new() -> Self {
        Self {
            at: AtomicUsize::new(0),
            begins: [const { AtomicU64::new(0) }; 2],
            looked: AtomicU32::new(u32::MAX),
        }
    }

    fn known(&self) -> Option<usize> {
        let at = Some(self.at.load(Acquire)).filter(|at| *at != 0)?;
        let there = unseen::memory_there();
        // (Another thread may have found it elsewhere, and looked there.)
        if there == Some(self.looked.load(Acquire)) && self.at.load(Relaxed) == at {
            return Some(at);
        }
        let now = first_bytes(at)?;
        let then = [&self.begins[0], &self.begins[1]].map(|w| w.load(Relaxed));
        if now != then {
            return None;
        }
        if let Some(there) = there {
            self.looked.store(there, Release);
        }
        Some(at)
    }

    /// Whether it ever was; it may be there no more.
    fn was_found(&self) -> bool {
        self.at.load(Relaxed) != 0
    }

    fn remember(&self, at: usize) {
        self.at.store(0, Relaxed);
        let now = first_bytes(at).unwrap_or_default();
        for (word, now) in self.begins.iter().zip(now) {
            word.store(now, Relaxed);
        }
        self.at.store(at, Release);
    }
}

fn first_bytes(at: usize) -> Option<[u64; 2]> {
    let mut words = [0u64; 2];
    // SAFETY: room for 16 bytes.
    let copied = unsafe { sys::copy_checked(at as u64, words.as_mut_ptr().cast(), 16) };
    match copied {
        Ok(16) => Some(words),
        Ok(_) | Err(Errno::FAULT) => None,
        // SAFETY: code that the ledger knows to be there; nobody shortens a library that is in use.
        Err(_) => memory::touchable(at as u64, 16, false, |_| true)
            .then(|| unsafe { (at as *const [u64; 2]).read_unaligned() }),
    }
}

/// Looks for functions in a library, and remembers those that are found.
fn look<const N: usize>(library: &[u8], functions: [(&Place, &str); N]) {
    let found = find_in_library(library, functions.map(|(_, name)| name));
    for ((place, _), at) in functions.into_iter().zip(found.into_iter().flatten()) {
        match at {
            Some(at) if place.known().is_none() => place.remember(at as usize),
            _ => (),
        }
    }
}
