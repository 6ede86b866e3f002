//! What the helper does when memory changes while it waits for its pages.

use super::*;
use core::cell::Cell;

/// An owner whose memory is good when it is first asked for, and gone after that.
struct Fickle {
    memory: u64,
    asked: Cell<u32>,
    /// How often it is good.
    good: u32,
    stands: bool,
}

impl Fickle {
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
    fn part(&self, _: Cookie, _: u64, _: bool) -> Result<Segment> {
        let (addr, len) = (self.memory, CHUNK);
        let part = Segment { addr, len };
        self.first().then_some(part).ok_or(Errno::FAULT)
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
    fn wants_other_users(&self) -> bool {
        false
    }
    fn expects_other_users(&self, _: bool) {}
    fn hold(&self, _: Cookie, _: bool) -> Result<u64> {
        Ok(CHUNK)
    }
    fn stands(&self, _: Cookie) -> bool {
        self.stands || self.asked.get() < 2
    }
    fn release(&self, _: Cookie) {}
    fn wanted(&self) -> bool {
        true
    }
    fn lives(&self) -> bool {
        true
    }
    fn wakeup(&self) -> i32 {
        -1
    }
    fn heard(&self) {}
}

/// What is asked for of 100 bytes, at their address or at their offset in a region.
fn request(what: u32, addr: u64) -> Request {
    Request {
        addr,
        len: 100,
        ..Request::new(what)
    }
}

#[test]
fn what_its_peer_has_taken_back_is_not_put() {
    let mut memory = vec![7u8; 100];
    let addr = memory.as_mut_ptr() as u64;
    let owner = || Fickle {
        memory: addr,
        asked: Cell::new(0),
        good: 9,
        stands: true,
    };
    let bounce = make_bounce().unwrap();
    bounce.truncate(0).unwrap();
    assert_eq!(copy(&owner(), &request(PUT, addr), &bounce), Ok(0));
    let cookie = Cookie(1);
    let put = copy_by_cookie(&owner(), &request(COOKIE_PUT, 0), cookie, (&bounce, None));
    assert_eq!((put, memory), (Ok(0), vec![7; 100]));
}

#[test]
fn what_may_not_be_of_the_region_is_kept() {
    let mut memory = vec![7u8; 100];
    let addr = memory.as_mut_ptr() as u64;
    let (bounce, private) = (make_bounce().unwrap(), make_bounce().unwrap());
    let both = (&bounce, Some(&private));
    for stands in [false, true] {
        let owner = Fickle {
            memory: addr,
            asked: Cell::new(0),
            good: 9,
            stands,
        };
        let got = copy_by_cookie(&owner, &request(COOKIE_GET, 0), Cookie(1), both);
        let (said, bytes) = match stands {
            true => (Ok(100), [7; 100]),
            false => (Err(Errno::STALE), [0; 100]),
        };
        let mut passed = [1u8; 100];
        let read = bounce.read_at(&mut passed, 0);
        assert_eq!((got, read, passed), (said, Ok(100), bytes));
    }
}

#[test]
fn memory_that_changes_during_the_wait_is_not_touched() {
    let mut memory = vec![7u8; 100];
    let bounce = make_bounce().unwrap();
    let addr = memory.as_mut_ptr() as u64;
    let owner = || Fickle {
        memory: addr,
        asked: Cell::new(0),
        good: 1,
        stands: true,
    };
    let request = |what| request(what, addr);
    // A get would leave these in the bounce buffer, a put its zeros in the memory.
    for what in [PUT, GET] {
        let copied = copy(&owner(), &request(what), &bounce);
        assert_eq!(copied, Err(Errno::STALE));
    }
    for what in [COOKIE_PUT, COOKIE_GET] {
        let by_offset = Request {
            addr: 0,
            ..request(what)
        };
        let copied = copy_by_cookie(&owner(), &by_offset, Cookie(1), (&bounce, None));
        assert_eq!(copied, Err(Errno::STALE));
    }
    let mut passed = [1u8; 100];
    assert_eq!(bounce.read(&mut passed), Ok(100));
    assert_eq!((passed, memory), ([0; 100], vec![7; 100]));
}
