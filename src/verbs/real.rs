//! libibverbs' own functions, found in its symbol table where it is mapped: dlsym
//! takes ld.so's lock, and finds nothing from here if MPI has loaded libibverbs for
//! itself alone (RTLD_LOCAL).

use crate::intercept::patch::find_in_library;
use crate::sys;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

macro_rules! functions {
    ($($name:ident),* $(,)?) => { $(
        /// The library's function of this name, its default version.
        pub fn $name() -> Option<*const ()> {
            static AT: AtomicUsize = AtomicUsize::new(0);
            find(&AT, stringify!($name))
        }
    )* };
}

functions! {
    ibv_reg_mr,
    ibv_reg_mr_iova,
    ibv_reg_mr_iova2,
    ibv_dereg_mr,
    ibv_rereg_mr,
    ibv_alloc_pd,
    ibv_dealloc_pd,
    ibv_import_pd,
    ibv_unimport_pd,
    ibv_close_device,
}

/// The C library's errno of this thread; `None` where it has none that can be found.
pub fn errno() -> Option<i32> {
    static AT: AtomicUsize = AtomicUsize::new(0);
    let at = find_in(b"libc.so", &AT, "__errno_location")?;
    // SAFETY: glibc's function of that name: it takes nothing, returns the address of
    // an int of the calling thread's, and needs no lock.
    Some(unsafe { *core::mem::transmute::<*const (), extern "C" fn() -> *const i32>(at)() })
}

/// Looks this often, a millisecond apart: another thread may be at the patcher's memory
/// for as long as it reads the kernel's list, and the library is there, or nobody would
/// have called.
const TRIES: u32 = 500;

fn find(place: &AtomicUsize, name: &str) -> Option<*const ()> {
    (0..TRIES).find_map(|n| {
        if n != 0 {
            sys::nap(1_000_000);
        }
        find_in(b"libibverbs.so", place, name)
    })
}

fn find_in(library: &[u8], place: &AtomicUsize, name: &str) -> Option<*const ()> {
    let at = match place.load(Relaxed) {
        0 => {
            let at = find_in_library(library, name)? as usize;
            place.store(at, Relaxed);
            at
        }
        at => at,
    };
    Some(at as *const ())
}
