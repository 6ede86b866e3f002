//! Regions for all of other users' processes: their helper copies, since nothing of theirs can
//! be seen from here, not even where their regions are.

use super::Cookie;
use crate::connection;
use crate::find;
use crate::host::Host;
use crate::kind::Kind;
use crate::link::{Comes, Lost, Open, LOOK};
use crate::staging::Staging;
use crate::transfer::{Outcome, Way};
use crate::vector::{Cursor, Few, Segment};
use crate::wire::{open_name, Request, CHUNK, COOKIE_GET, COOKIE_PUT, HOLD};
use regall_sys::process::{own_namespace, Identity};
use regall_sys::socket;
use regall_sys::{Access, Errno, Result};

/// As [`super::circle::Circle::transfer`], of a region whose owner is another user's. A
/// connection is made each time.
///
/// # Safety
/// The local segments are valid to be written (get) or read (put).
pub unsafe fn transfer(
    host: &dyn Host,
    way: Way,
    cookie: Cookie,
    offset: u64,
    local: &[Segment],
) -> Outcome {
    let mut done = Outcome::NOTHING;
    let (mut open, length) = match connect(way, cookie) {
        Ok(connected) => connected,
        Err(e) => return Outcome::failed(e),
    };
    let mut chunks = Chunks {
        open: &mut open,
        host,
        way,
        cookie,
        staging: Staging::new(),
        mapped: None,
    };
    let mut here = Cursor::new(local);
    let mut left = length.saturating_sub(offset);
    let mut was_short = false;
    while left > 0 && here.here().is_some() {
        let len = here.left(CHUNK.min(left));
        // SAFETY: by the contract above.
        match unsafe { chunks.copy(offset + done.bytes, &mut here, len) } {
            // Why an answer was short is told by the next one. An owner that goes on like that
            // is not asked for ever.
            Ok((bytes, asked)) if bytes == 0 || bytes < asked && was_short => {
                done.bytes += bytes;
                done.result = Err(Errno::FAULT);
                break;
            }
            Ok((bytes, asked)) => {
                was_short = bytes < asked;
                done.bytes += bytes;
                left -= bytes;
                done.mechanism = Some(Kind::Helper);
            }
            Err(e) => {
                done.result = Err(e);
                break;
            }
        }
    }
    chunks.end();
    open.end();
    done
}

/// Asks the owner for the region; its bytes.
fn connect(way: Way, cookie: Cookie) -> Result<(Open, u64)> {
    let pid = cookie.pid();
    let owner = Identity {
        pid,
        start: find::started(pid).map_err(|e| match e {
            Errno::SRCH => Errno::INVAL,
            e => e,
        })?,
        namespace: own_namespace()?,
    };
    // It has no regions for all, or REGALL_COPY leaves the helper out.
    let none = |e| match find::is_shortage(e) {
        true => e,
        false => Errno::PERM,
    };
    connection::may_ask(pid)?;
    let socket = socket::connect_abstract(open_name(&owner).as_bytes(), LOOK).map_err(none)?;
    let mut open = Open::on(socket, connection::Met::ByName)?;
    if open.peer()?.pid != pid {
        return Err(Errno::PERM);
    }
    open.greet(0, || gone(cookie))
        .map_err(|lost| why(lost, cookie))??;
    let hold = Request {
        id: cookie.0,
        addr: u64::from(way == Way::Put),
        ..Request::new(HOLD)
    };
    let bytes = ask(&mut open, cookie, hold)?;
    Ok((open, bytes))
}

/// Bytes that the owner says it has copied, or what else it says.
fn ask(open: &mut Open, cookie: Cookie, request: Request) -> Result<u64> {
    let answered = open
        .send(request)
        .and_then(|()| open.receive(|| gone(cookie), Comes::Alone))
        .map_err(|lost| why(lost, cookie));
    match answered?.0 {
        answer if answer.errno != 0 => Err(Errno(answer.errno as i32)),
        answer => Ok(answer.bytes),
    }
}

/// What became of the owner. ESTALE: it is there.
fn gone(cookie: Cookie) -> Errno {
    match find::started(cookie.pid()) {
        Ok(_) => Errno::STALE,
        Err(e) => e,
    }
}

/// What is to be said where there is no answer.
fn why(lost: Lost, cookie: Cookie) -> Errno {
    match (lost, gone(cookie)) {
        (Lost::NoRoom, _) => Errno::MFILE,
        // It has closed the connection: too many want something of it.
        (Lost::Closed, Errno::STALE) => Errno::PERM,
        (_, e) => e,
    }
}

/// A transfer, chunk by chunk.
struct Chunks<'a> {
    open: &'a mut Open,
    host: &'a dyn Host,
    way: Way,
    cookie: Cookie,
    staging: Staging,
    /// Where the bounce buffer is mapped, for a put.
    mapped: Option<u64>,
}

impl Chunks<'_> {
    /// Copies up to `len` bytes, which fit into the bounce buffer: how many, and how many the
    /// owner was asked for, which is less where the local memory is in many pieces.
    ///
    /// # Safety
    /// The local bytes are valid to be written (get) or read (put).
    unsafe fn copy(&mut self, at: u64, here: &mut Cursor, len: u64) -> Result<(u64, u64)> {
        let mut few = Few::new();
        few.fill(*here, len);
        let mut len = few.bytes();
        if self.way == Way::Put {
            let bounce = self.mapped()?;
            // SAFETY: memory to be read, by the caller's contract.
            let taken = unsafe { self.staging.take_all(few.as_slice()) }?;
            // SAFETY: the bounce buffer is mapped there, and its owner is to have these.
            len = unsafe { self.staging.give(bounce, taken) }?;
        }
        let request = Request {
            addr: at,
            len,
            ..Request::new(match self.way {
                Way::Get => COOKIE_GET,
                Way::Put => COOKIE_PUT,
            })
        };
        let mut bytes = ask(self.open, self.cookie, request)?.min(len);
        if self.way == Way::Get {
            few.cut(bytes);
            let bounce = self.open.bounce();
            // SAFETY: memory to be written, by the caller's contract.
            bytes = unsafe { bounce.copy_all_at(Access::Read, few.as_slice(), 0) }?;
        }
        here.advance(bytes);
        Ok((bytes, len))
    }

    fn mapped(&mut self) -> Result<u64> {
        if let Some(at) = self.mapped {
            return Ok(at);
        }
        let at = self.host.attach(&self.open.bounce(), 0, CHUNK, true)?;
        self.mapped = Some(at);
        Ok(at)
    }

    fn end(&mut self) {
        if let Some(at) = self.mapped.take() {
            // SAFETY: it is ours, and its last user is done.
            unsafe { self.host.unmap(at, CHUNK) };
        }
    }
}
