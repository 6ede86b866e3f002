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
    let with = |context| WATCHED.iter().find(|d| d.context.load(Relaxed) == context);
    if let Some(device) = with(at) {
        for ((place, post), own) in PLACES.iter().zip(&device.own) {
            // What is there instead leads to us in the end, if somebody has put it over us: to
            // lead to it as well would be a circle.
            let own = own.load(Relaxed);
            if !own.is_null() && word(*place).load(Relaxed) == own {
                word(*place).store(*post as *mut c_void, Release);
            }
        }
    } else if let Some(device) = with(0) {
        for ((place, post), own) in PLACES.iter().zip(&device.own) {
            let theirs = word(*place).load(Relaxed);
            let theirs = Some(theirs).filter(|theirs| *theirs != *post as *mut c_void);
            own.store(theirs.unwrap_or(core::ptr::null_mut()), Release);
        }
        device.context.store(at, Release);
        for ((place, post), own) in PLACES.iter().zip(&device.own) {
            if !own.load(Relaxed).is_null() {
                word(*place).store(*post as *mut c_void, Release);
            }
        }
    }
    CHANGING.store(false, Release);
}

/// The application has closed this device: another one may come to its address.
pub fn closed(context: *const Context) {
    let at = context as u64;
    for device in WATCHED
        .iter()
        .filter(|d| at != 0 && d.context.load(Relaxed) == at)
    {
        device.context.store(0, Release);
    }
}

/// A child of fork: who was changing it is in the parent.
pub fn child() {
    CHANGING.store(false, Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;

    static TOOLS: AtomicU32 = AtomicU32::new(0);
    static PROVIDERS: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn tool(q: *mut c_void, list: *const Request, bad: *mut c_void) -> c_int {
        assert!(TOOLS.fetch_add(1, Relaxed) < 10, "it goes round in circles");
        // SAFETY: as it was called.
        unsafe { post_send(q, list, bad) }
    }

    unsafe extern "C" fn provider(_: *mut c_void, _: *const Request, _: *mut c_void) -> c_int {
        PROVIDERS.fetch_add(1, Relaxed);
        7
    }

    fn context() -> *mut Context {
        // SAFETY: zeroes are a value of each of its fields.
        Box::into_raw(Box::new(unsafe { core::mem::zeroed::<Context>() }))
    }

    /// What is called for `context` by who posts a request to send.
    fn send(context: *mut Context) -> c_int {
        // SAFETY: a context of ours, with a function of that kind in that place.
        let post = unsafe { core::mem::transmute::<*mut c_void, Post>((*context).ops[POST_SEND]) };
        let mut queue = [context as u64];
        // SAFETY: the functions look at the queue's context alone.
        unsafe {
            post(
                (&raw mut queue).cast(),
                core::ptr::null(),
                core::ptr::null_mut(),
            )
        }
    }

    fn look_at(device: *mut Context) {
        // SAFETY: the tests' own.
        unsafe { watch(device) };
    }

    #[test]
    fn who_is_put_over_us_is_not_taken_for_the_provider() {
        let device = context();
        let put = |f: Post| {
            // SAFETY: a context of ours.
            unsafe { (*device).ops[POST_SEND] = f as *mut c_void }
        };
        put(provider);
        look_at(device);
        assert_eq!((send(device), PROVIDERS.load(Relaxed)), (7, 1));
        put(tool);
        look_at(device);
        assert_eq!((send(device), PROVIDERS.load(Relaxed)), (7, 2));
        assert_eq!(TOOLS.load(Relaxed), 1);
        // The provider's own comes back, past us and the tool: it is looked at again.
        put(provider);
        look_at(device);
        let ours = post_send as Post as *mut c_void;
        // SAFETY: a context of ours.
        assert_eq!(unsafe { (*device).ops[POST_SEND] }, ours);
        // Another device at the same address.
        closed(device);
        assert!(!is_known(device));
        put(tool);
        look_at(device);
        assert!(is_known(device));
        closed(device);
    }

    #[test]
    fn a_child_does_not_wait_for_who_is_in_its_parent() {
        let device = context();
        // SAFETY: a context of ours.
        unsafe { (*device).ops[POST_SEND] = provider as Post as *mut c_void };
        CHANGING.store(true, Relaxed);
        look_at(device);
        assert!(!is_known(device));
        child();
        look_at(device);
        assert!(is_known(device));
        closed(device);
    }
}
