//! What the helper does when memory changes while it waits for its pages.

use super::*;
use core::cell::Cell;

/// An owner whose memory is good when it is first asked for, and gone after that.
struct Fickle {
    asked: Cell<u32>,
    /// How often it is good.
    good: u32,
    /// Where the bounce buffer is mapped.
    window: Cell<u64>,
    /// No more memory can be mapped.
    locked: bool,
}

impl Fickle {
    /// Whose memory is good so often.
    fn good(good: u32) -> Self {
        Self {
            asked: Cell::new(0),
            good,
            window: Cell::new(0),
            locked: false,
        }
    }

    fn first(&self) -> bool {
        self.asked.replace(self.asked.get() + 1) < self.good
    }
}

impl Owner for Fickle {
    fn image(&self) -> u64 {
        1
    }
    fn entry(&self, addr: u64, _: u64, _: bool, _: bool) -> Result<u64> {
        self.first().then_some(addr + CHUNK).ok_or(Errno::STALE)
    }
    fn admits(&self, _: &Credentials) -> bool {
        true
    }
    fn still_admits(&self, _: &Credentials) -> bool {
        true
    }
    fn enter(&self) -> bool {
        true
    }
    fn leave(&self) {}
    fn goes_on(&self) -> bool {
        true
    }
    fn of_box(&self, _: bool) -> Result<Fd> {
        Err(Errno::NOTCONN)
    }
    fn wanted(&self) -> bool {
        true
    }
    fn lives(&self) -> bool {
        true
    }
    fn map_bounce(&self, bounce: &Fd) -> Result<u64> {
        if self.locked {
            return Err(Errno::AGAIN);
        }
        let (at, fixed) = match self.window.get() {
            0 => (0, 0),
            at => (at, libc::MAP_FIXED),
        };
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | fixed);
        // SAFETY: what is there is the last one.
        let at = unsafe { regall_sys::map(at, BOUNCE, prot, flags, bounce.raw(), 0) }?;
        self.window.set(at);
        Ok(at)
    }
    fn unmap_bounce(&self) {}
    fn wakeup(&self) -> i32 {
        -1
    }
    fn heard(&self) {}
}

/// What is asked for of 100 bytes at their address.
fn request(what: u32, addr: u64) -> Request {
    Request {
        addr,
        len: 100,
        ..Request::new(what)
    }
}

fn job<'a>(owner: &'a Fickle, bounce: &'a Fd, staging: &'a mut Staging) -> Job<'a> {
    Job {
        owner,
        bounce,
        staging,
        has_hung_up: &|| false,
    }
}

#[test]
fn what_its_peer_has_taken_back_is_not_put() {
    let mut memory = vec![7u8; 100];
    let addr = memory.as_mut_ptr() as u64;
    let bounce = make_bounce().unwrap();
    bounce.truncate(0).unwrap();
    let staging = &mut Staging::new();
    let put = job(&Fickle::good(9), &bounce, staging).copy(&request(PUT, addr));
    assert_eq!((put, memory), (Ok(0), vec![7; 100]));
}

#[test]
fn memory_that_changes_during_the_copy_is_not_handed_out() {
    let mut memory = vec![7u8; 100];
    let addr = memory.as_mut_ptr() as u64;
    let bounce = make_bounce().unwrap();
    let staging = &mut Staging::new();
    // It is good before the copy, at both looks, and not after it.
    for (good, said, bytes) in [(2, Err(Errno::STALE), [0; 100]), (3, Ok(100), [7; 100])] {
        let got = job(&Fickle::good(good), &bounce, staging).copy(&request(GET, addr));
        let mut passed = [1u8; 100];
        let read = bounce.read_at(&mut passed, 0);
        assert_eq!((got, read, passed), (said, Ok(100), bytes));
    }
    // What the peer has cut off is an error, and no signal.
    bounce.truncate(0).unwrap();
    let got = job(&Fickle::good(9), &bounce, staging).copy(&request(GET, addr));
    assert_eq!(got, Err(Errno::FAULT));
}

#[test]
fn who_can_map_nothing_more_serves_all_the_same() {
    let mut memory = vec![7u8; 100];
    let addr = memory.as_mut_ptr() as u64;
    let owner = Fickle {
        locked: true,
        ..Fickle::good(99)
    };
    let staging = &mut Staging::new();
    let bounce = make_bounce().unwrap();
    let got = job(&owner, &bounce, staging).copy(&request(GET, addr));
    let mut passed = [1u8; 100];
    let read = bounce.read_at(&mut passed, 0);
    assert_eq!((got, read, passed), (Ok(100), Ok(100), [7; 100]));
}

#[test]
fn who_has_hung_up_is_not_served() {
    let mut memory = vec![7u8; 100];
    let addr = memory.as_mut_ptr() as u64;
    let bounce = make_bounce().unwrap();
    let owner = Fickle::good(99);
    let staging = &mut Staging::new();
    for what in [PUT, GET] {
        let mut late = Job {
            has_hung_up: &|| true,
            ..job(&owner, &bounce, staging)
        };
        assert_eq!(late.copy(&request(what, addr)), Err(Errno::PERM));
    }
    let mut passed = [1u8; 100];
    assert_eq!(bounce.read(&mut passed), Ok(100));
    assert_eq!((passed, memory), ([0; 100], vec![7; 100]));
}

#[test]
fn memory_that_changes_during_the_wait_is_not_touched() {
    let mut memory = vec![7u8; 100];
    let bounce = make_bounce().unwrap();
    let addr = memory.as_mut_ptr() as u64;
    let staging = &mut Staging::new();
    let request = |what| request(what, addr);
    // A get would leave these in the bounce buffer, a put its zeros in the memory.
    for what in [PUT, GET] {
        let copied = job(&Fickle::good(1), &bounce, staging).copy(&request(what));
        assert_eq!(copied, Err(Errno::STALE));
    }
    let mut passed = [1u8; 100];
    assert_eq!(bounce.read(&mut passed), Ok(100));
    assert_eq!((passed, memory), ([0; 100], vec![7; 100]));
}
