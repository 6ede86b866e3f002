//! Work requests, where programs post them through the device's table of functions
//! (`ibv_post_send` and its kin): each goes on to the provider's own function. Who rings an
//! adapter's doorbell itself is not seen.

use super::area::{anything_lost, area};
use super::writer::{head, write, Stacks};
use crate::uverbs::abi::{Context, POST_RECV, POST_SEND, POST_SRQ_RECV};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use regall_checking::record::{Head, Kind};

/// Devices that can be looked at.
const DEVICES: usize = 64;
/// Requests of one list, and pieces of one request, that are looked at.
const LOOKS: usize = 256;
/// IBV_SEND_INLINE: the processor copies the data, from what is there now.
const INLINE: u32 = 1 << 3;

/// `struct ibv_send_wr` and `struct ibv_recv_wr`, as far as they are alike.
#[repr(C)]
struct Request {
    id: u64,
    next: *const Request,
    pieces: *const Piece,
    count: c_int,
}

/// `struct ibv_send_wr`, as far as it is looked at.
#[repr(C)]
struct Sending {
    request: Request,
    opcode: u32,
    flags: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Piece {
    addr: u64,
    length: u32,
    lkey: u32,
}

type Post = unsafe extern "C" fn(*mut c_void, *const Request, *mut c_void) -> c_int;

/// A device and the provider's own functions.
struct Device {
    context: AtomicU64,
    own: [AtomicPtr<c_void>; 3],
}

static WATCHED: [Device; DEVICES] = [const {
    Device {
        context: AtomicU64::new(0),
        own: [const { AtomicPtr::new(core::ptr::null_mut()) }; 3],
    }
}; DEVICES];
static CHANGING: AtomicBool = AtomicBool::new(false);

/// Where in the table they stand, and what stands in for them.
const PLACES: [(usize, Post); 3] = [
    (POST_SEND, post_send),
    (POST_RECV, post_recv),
    (POST_SRQ_RECV, post_srq_recv),
];

/// Devices that are looked at.
pub fn watched() -> u64 {
    let used = |d: &&Device| d.context.load(Relaxed) != 0;
    WATCHED.iter().filter(used).count() as u64
}

/// Whether it is a device that was seen.
pub fn is_known(context: *const Context) -> bool {
    let at = context as u64;
    at != 0 && WATCHED.iter().any(|d| d.context.load(Relaxed) == at)
}

/// What is posted to this device is looked at from now on.
///
/// # Safety
/// `context` is an open device.
pub unsafe fn watch(context: *mut Context) {
    if context.is_null() {
        return;
    }
    // SAFETY: by the contract above; the words are only looked at and replaced as a whole.
    let ops = unsafe { &raw mut (*context).ops }.cast::<AtomicPtr<c_void>>();
    let word = |place: usize| {
        // SAFETY: within the table, and aligned.
        unsafe { &*ops.add(place) }
    };
    if PLACES
        .iter()
        .all(|(place, post)| word(*place).load(Relaxed) == *post as *mut c_void)
    {
        return;
    }
    // Whoever is in here now does the same; a signal handler on top of it does not wait.
    if CHANGING.swap(true, Acquire) {
        return;
    }
    let at = context as u64;
    let device = WATCHED.iter().find(|d| d.context.load(Relaxed) == at);
    let device = device.or_else(|| WATCHED.iter().find(|d| d.context.load(Relaxed) == 0));
    if let Some(device) = device {
        for ((place, post), own) in PLACES.iter().zip(&device.own) {
            let theirs = word(*place).load(Relaxed);
            if !theirs.is_null() && theirs != *post as *mut c_void {
                own.store(theirs, Release);
            }
        }
        device.context.store(at, Release);
        for ((place, post), own) in PLACES.iter().zip(&device.own) {
            if !own.load(Relaxed).is_null() && !word(*place).load(Relaxed).is_null() {
                word(*place).store(*post as *mut c_void, Release);
            }
        }
    }
    CHANGING.store(false, Release);
}

/// Looks at a request, and makes the provider's call.
unsafe fn post(n: usize, queue: *mut c_void, list: *const Request, bad: *mut c_void) -> c_int {
    // SAFETY: a queue pair or shared receive queue, whose first word is its device.
    let context = unsafe { *queue.cast::<u64>() };
    // SAFETY: the program's own list, as the provider is about to read it.
    unsafe { look(list, n == 0) };
    let device = WATCHED.iter().find(|d| d.context.load(Acquire) == context);
    let own = device.and_then(|d| d.own.get(n));
    let own = own.map_or(core::ptr::null_mut(), |own| own.load(Acquire));
    if own.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: what stood in the table before.
    let own = unsafe { core::mem::transmute::<*mut c_void, Post>(own) };
    // SAFETY: the program's own call.
    unsafe { own(queue, list, bad) }
}

unsafe extern "C" fn post_send(q: *mut c_void, list: *const Request, bad: *mut c_void) -> c_int {
    // SAFETY: the program's own call.
    unsafe { post(0, q, list, bad) }
}

unsafe extern "C" fn post_recv(q: *mut c_void, list: *const Request, bad: *mut c_void) -> c_int {
    // SAFETY: the program's own call.
    unsafe { post(1, q, list, bad) }
}

unsafe extern "C" fn post_srq_recv(
    q: *mut c_void,
    list: *const Request,
    bad: *mut c_void,
) -> c_int {
    // SAFETY: the program's own call.
    unsafe { post(2, q, list, bad) }
}

/// # Safety
/// A list of requests that may be posted.
unsafe fn look(list: *const Request, sends: bool) {
    if !anything_lost() {
        return;
    }
    let mut at = list;
    for _ in 0..LOOKS {
        // SAFETY: by the contract above.
        let Some(request) = (unsafe { at.as_ref() }) else {
            return;
        };
        // SAFETY: one that sends has flags behind.
        let inline = sends && unsafe { (*at.cast::<Sending>()).flags } & INLINE != 0;
        let count = usize::try_from(request.count).unwrap_or(0).min(LOOKS);
        if !inline && !request.pieces.is_null() {
            for n in 0..count {
                // SAFETY: likewise; it has so many.
                named(unsafe { *request.pieces.add(n) });
            }
        }
        at = request.next;
    }
}

/// A piece of a request names memory by its key.
fn named(piece: Piece) {
    let Some(area) = area() else { return };
    area.table().each(|n, slot, found| {
        if found.keys as u32 != piece.lkey {
            return;
        }
        let start = piece.addr.wrapping_sub(found.shift);
        let end = start.saturating_add(piece.length.into());
        if let Some(lost) = slot.used(start, end) {
            let head = Head {
                start: lost.start.max(start),
                end: lost.end.min(end),
                how: lost.how as u64,
                of: lost.id,
                ..head(Kind::Used, found)
            };
            let stacks = Stacks {
                saved: area.saved(n),
                here: true,
            };
            write(head, stacks, &|| area.table().holds(n, found.serial));
        }
    });
}
