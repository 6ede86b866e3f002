//! The helper: serves peers that may not get at the owner's memory themselves. It runs in
//! the owner, on a thread with descriptors of its own, and copies between the owner's
//! memory and a peer's bounce buffer by system calls: memory that is unmapped meanwhile is
//! EFAULT, not a signal. What a peer gets is staged ([`crate::staging`]).
//!
//! Peers may send what they like. A message that is not as it must be ends the connection.

use crate::staging::{make_file, Staging};
use crate::wire::{Answer, Request, ANSWER, BOUNCE, CHUNK};
use crate::wire::{
    ATTACH_GET, ATTACH_PUT, BOX_EVENT, BOX_FILE, DESCRIPTOR, GET, HELLO, MAGIC, PUT, REQUEST,
};
use places::{Guest, PLACES};
use regall_sys::arch::ticks;
use regall_sys::file::{self, Fd, Poll};
use regall_sys::socket::{self, Credentials, Room};
use regall_sys::time::nanos;
use regall_sys::{Access, Errno, Result};

mod behind;
mod places;

/// What is waited for beside peers.
const BEFORE: usize = 2;
/// Requests of one peer that are answered before the others are looked at.
const TURN: usize = 8;
/// How long to wait when there are no descriptors left, in nanoseconds.
const PAUSE: u64 = 10_000_000;
/// How long to wait for peers before a look is taken whether the process lives, at first
/// and at the most, in nanoseconds.
const SOONEST: u64 = 5_000_000;
const LATEST: u64 = 1_000_000_000;
/// Connections that may wait to be accepted, and that are accepted at a time.
pub const BACKLOG: u32 = 512;

/// The process that is served from, as the helper needs it.
pub trait Owner {
    /// [`regall_directory::layout::Header::image`].
    fn image(&self) -> u64;
    /// Where the entry `id` ends, which holds `addr`; `open`: it need not be registered. ESTALE: it
    /// is another one by now; EFAULT: it is not registered; EACCES: its protection says no.
    fn entry(&self, addr: u64, id: u64, write: bool, open: bool) -> Result<u64>;
    /// Whether the process that has connected, as the kernel says, may reach this one's memory:
    /// [`crate::rights`]. Asked before it is served anything, and at a time at which it was
    /// alive, for it has spoken since.
    fn admits(&self, who: &Credentials) -> bool;
    /// Whether a process that was admitted would be now, but for its real ids. Asked before
    /// each thing that it is served.
    fn still_admits(&self, who: &Credentials) -> bool;
    /// A request is about to be carried out: whether it may be. If so, [`Owner::leave`] is told
    /// when it was.
    fn enter(&self) -> bool;
    /// See [`Owner::enter`].
    fn leave(&self);
    /// Whether what was entered may still have its effect: the owner may have stopped waiting
    /// for it.
    fn goes_on(&self) -> bool;
    /// The file of the owner's box, or the pipe by which it is woken. ENOTCONN: there is none.
    fn of_box(&self, event: bool) -> Result<Fd>;
    /// Whether the helper is to go on.
    fn wanted(&self) -> bool;
    /// Whether there is a process to serve from still, but for the helper. Asked now and then.
    fn lives(&self) -> bool;
    /// Maps a bounce buffer, shared and writable, in the place of the one that was mapped before; its
    /// address. EAGAIN: the program has all its memory locked, and may lock no more.
    fn map_bounce(&self, bounce: &Fd) -> Result<u64>;
    /// The peer of the bounce buffer that is mapped, if any is, may have gone.
    fn unmap_bounce(&self);
    /// What can be read when the owner wants to be asked all this at once; -1: nothing.
    fn wakeup(&self) -> i32;
    /// Empties that descriptor.
    fn heard(&self);
}

/// A peer that has connected.
struct Client {
    socket: Fd,
    /// Who has connected. It alone is served: what another process sends, which was given the
    /// connection or has the number of one that ended, ends it.
    who: Credentials,
    /// The peer's real user and group at its HELLO.
    said_hello_as: Option<(u32, u32)>,
    /// After its HELLO.
    bounce: Option<Fd>,
    /// After its first request behind that.
    introduced: bool,
    /// When it last asked for something, in ticks; when it connected, until its HELLO.
    asked: u64,
}

/// What is sent with an answer.
enum Handed {
    Nothing,
    /// The peer's bounce buffer.
    Bounce,
    /// Another file, which is not needed here any more.
    File(Fd),
}

/// Serves whoever connects to `listener`, until that can't be listened to any more or the
/// owner does not want it.
pub fn serve(owner: &dyn Owner, listener: &Fd) {
    let mut clients = [const { None::<Client> }; PLACES];
    let mut polls = [Poll::readable(-1); PLACES + BEFORE];
    let mut staging = Staging::new();
    // A young process may be one that ends soon.
    let mut pause = SOONEST;
    while owner.wanted() {
        let all = [listener.raw(), owner.wakeup()].into_iter().chain(
            clients
                .iter()
                .map(|c| c.as_ref().map_or(-1, |c| c.socket.raw())),
        );
        for (poll, fd) in polls.iter_mut().zip(all) {
            *poll = Poll::readable(fd);
        }
        // Not more than there are: RLIMIT_NOFILE bounds them.
        let last = clients.iter().rposition(Option::is_some);
        let used = last.map_or(BEFORE, |n| n + BEFORE + 1).min(polls.len());
        let these = polls.get_mut(..used).unwrap_or(&mut []);
        match file::poll(these, pause) {
            Ok(0) if owner.lives() => pause = (pause * 2).min(LATEST),
            Ok(1..) | Err(Errno::INTR) => (),
            Ok(0) | Err(_) => return,
        }
        let mut found = polls.iter();
        let new = found.next().map_or(0, |p| p.found);
        if found.next().is_some_and(|p| p.found != 0) {
            owner.heard();
        }
        for (client, poll) in clients.iter_mut().zip(found) {
            if poll.found == 0 {
                continue;
            }
            let attended = client.as_mut().map(|c| c.attend(owner, &mut staging));
            if attended.is_some_and(|attended| attended.is_err()) {
                end(owner, client);
            }
        }
        if new & libc::POLLIN != 0 {
            let mut full = false;
            let mut next = || welcome(owner, socket::accept(listener), &mut clients, &mut full);
            (0..BACKLOG).take_while(|_| next()).for_each(drop);
        } else if new != 0 {
            return;
        }
    }
}

/// Takes the next one in, if there is a place or somebody makes room: [`places`]. Whom nobody makes
/// room for is sent away, and comes again: all are, once nobody would make room for anybody
/// (`full`). Whether there may be more.
fn welcome(
    owner: &dyn Owner,
    next: Result<Fd>,
    clients: &mut [Option<Client>],
    full: &mut bool,
) -> bool {
    let socket = match next {
        Ok(socket) => socket,
        Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
            if make_room(owner, clients, None).is_none() {
                regall_sys::nap(PAUSE);
            }
            return false;
        }
        Err(_) => return false,
    };
    let Ok(who) = socket::peer(&socket) else {
        return true;
    };
    let place = match clients.iter().position(Option::is_none) {
        None if *full => None,
        None => make_room(owner, clients, Some(who.pid)),
        free => free,
    };
    *full = place.is_none() && clients.iter().flatten().all(|c| c.who.pid != who.pid) || *full;
    if let Some(place) = place.and_then(|place| clients.get_mut(place)) {
        *place = Some(Client {
            socket,
            who,
            said_hello_as: None,
            bounce: None,
            introduced: false,
            asked: ticks(),
        });
    }
    true
}

/// Ends the connection of who makes room for the process `pid` ([`places::who_goes`]); its place.
#[cold]
fn make_room(owner: &dyn Owner, clients: &mut [Option<Client>], pid: Option<u32>) -> Option<usize> {
    let now = ticks();
    loop {
        let guests = clients.iter().enumerate();
        let guests = guests.filter_map(|(n, c)| c.as_ref().map(|c| (n, c.as_guest(now))));
        let place = places::who_goes(guests, pid)?;
        let client = clients.get_mut(place)?;
        match client {
            // It has asked for something since, and will be heard.
            Some(c) if c.asked != now && socket::has_more(&c.socket) => c.asked = now,
            _ => {
                end(owner, client);
                return Some(place);
            }
        }
    }
}

/// Ends a client's connection.
fn end(owner: &dyn Owner, client: &mut Option<Client>) {
    *client = None;
    owner.unmap_bounce();
}

impl Client {
    fn as_guest(&self, now: u64) -> Guest {
        Guest {
            pid: self.who.pid,
            introduced: self.introduced,
            quiet: nanos(now.wrapping_sub(self.asked)),
        }
    }
}

impl Client {
    /// Answers what it has asked. An error: no more of this one.
    fn attend(&mut self, owner: &dyn Owner, staging: &mut Staging) -> Result<()> {
        for _ in 0..TURN {
            let mut bytes = [0; REQUEST];
            let message = match socket::receive(&self.socket, &mut bytes, Room::Sender) {
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                other => other?,
            };
            let sender = message.sender.filter(|s| s.pid == self.who.pid);
            let (Some(sender), REQUEST, false) =
                (sender, message.bytes, message.cut || message.has_files)
            else {
                return Err(Errno::PROTO);
            };
            let request = Request::from_bytes(bytes)?;
            // A peer that has hung up has told its caller that this failed.
            if socket::has_ended(&self.socket) || !owner.enter() {
                return Err(Errno::PERM);
            }
            let done = match self.is_who_it_was(owner, &sender) {
                true => self.carry_out(owner, &request, staging),
                false => Err(Errno::PERM),
            };
            owner.leave();
            let (done, handed) = done?;
            if self.bounce.is_some() {
                self.introduced = request.what != HELLO;
                self.asked = ticks();
            }
            if !owner.goes_on() {
                return Err(Errno::PERM);
            }
            let answer = Answer {
                magic: MAGIC,
                errno: done.map_or_else(|e| e.0 as u32, |_| 0),
                number: request.number,
                bytes: done.unwrap_or(0),
                reserved: 0,
            };
            let bytes: [u8; ANSWER] = answer.to_bytes();
            // Never waits: who does not take its answers is not served.
            let fd = match &handed {
                Handed::Nothing => None,
                Handed::Bounce => self.bounce.as_ref().map(Fd::raw),
                Handed::File(fd) => Some(fd.raw()),
            };
            socket::send(&self.socket, &bytes, fd)?;
        }
        Ok(())
    }

    /// Whether the process may still have what it was let in for: it may have given rights up
    /// since, for good.
    fn is_who_it_was(&mut self, owner: &dyn Owner, sender: &Credentials) -> bool {
        let now = (sender.uid, sender.gid);
        let as_then = *self.said_hello_as.get_or_insert(now) == now;
        self.bounce.is_none() || as_then && owner.still_admits(&self.who)
    }

    /// What came of a request, and what is to be sent with it. An error: it is none.
    fn carry_out(
        &mut self,
        owner: &dyn Owner,
        request: &Request,
        staging: &mut Staging,
    ) -> Result<(Result<u64>, Handed)> {
        let bounce = match (request.what, &self.bounce) {
            (HELLO, None) => {
                let made = self.hello(owner, request);
                let handed = made.map_or(Handed::Nothing, |()| Handed::Bounce);
                return Ok((made.map(|()| 0), handed));
            }
            (
                GET | PUT | ATTACH_GET | ATTACH_PUT | DESCRIPTOR | BOX_FILE | BOX_EVENT,
                Some(bounce),
            ) => bounce,
            _ => return Err(Errno::PROTO),
        };
        let fits = (1..=CHUNK).contains(&request.len)
            && request
                .offset
                .checked_add(request.len)
                .is_some_and(|end| end <= BOUNCE);
        let mut job = Job {
            owner,
            bounce,
            staging,
            has_hung_up: &|| socket::has_ended(&self.socket),
        };
        match request.what {
            DESCRIPTOR => {
                let known = owner.entry(request.addr, request.id, false, true);
                Ok(match known.and_then(|_| behind::descriptor(request.addr)) {
                    Ok((fd, at)) => (Ok(at), Handed::File(fd)),
                    Err(e) => (Err(e), Handed::Nothing),
                })
            }
            BOX_FILE | BOX_EVENT => Ok(match owner.of_box(request.what == BOX_EVENT) {
                Ok(fd) => (Ok(0), Handed::File(fd)),
                Err(e) => (Err(e), Handed::Nothing),
            }),
            _ if !fits => Err(Errno::PROTO),
            _ => Ok((job.copy(request), Handed::Nothing)),
        }
    }

    fn hello(&mut self, owner: &dyn Owner, request: &Request) -> Result<()> {
        if request.image != owner.image() {
            return Err(Errno::STALE);
        }
        // What it sends from now on it sends after it was looked at, and then it lives: so it is
        // the process that was looked at, and not one that has its number since.
        if !owner.admits(&self.who) || socket::has_more(&self.socket) {
            return Err(Errno::PERM);
        }
        if request.len != BOUNCE {
            return Err(Errno::INVAL);
        }
        self.bounce = Some(make_bounce()?);
        Ok(())
    }
}

/// A bounce buffer. Its peer can make it shorter, which read and write say, and does so when it has
/// no answer: what is not there can't be put any more.
fn make_bounce() -> Result<Fd> {
    make_file(BOUNCE)
}

/// A copy between the owner's memory and a peer's bounce buffer.
struct Job<'a> {
    owner: &'a dyn Owner,
    bounce: &'a Fd,
    staging: &'a mut Staging,
    /// Whether the peer waits for the answer no more. It has told its caller that this failed.
    has_hung_up: &'a dyn Fn() -> bool,
}

impl Job<'_> {
    /// Whether the copy may still have its effect. EPERM: it may not.
    fn may_go_on(&self) -> Result<()> {
        match self.owner.goes_on() && !(self.has_hung_up)() {
            true => Ok(()),
            false => Err(Errno::PERM),
        }
    }

    /// Copies one chunk. The peer looks after it whether the entry still is what it was.
    fn copy(&mut self, request: &Request) -> Result<u64> {
        let Request {
            addr, len, offset, ..
        } = *request;
        let owner = self.owner;
        let write = matches!(request.what, PUT | ATTACH_PUT);
        let open = matches!(request.what, ATTACH_GET | ATTACH_PUT);
        let is_good = || {
            let end = owner.entry(addr, request.id, write, open)?;
            match addr.checked_add(len).is_some_and(|last| last <= end) {
                true => Ok(()),
                false => Err(Errno::FAULT),
            }
        };
        is_good()?;
        wait_for(addr, len, write);
        // The wait may have been long, and the memory be unmapped and mapped anew since. (What
        // comes between this look and a put is a moment, as with any mechanism.)
        is_good()?;
        self.may_go_on()?;
        // (To read from a file takes no lock of the file's.)
        let copied = match write {
            // SAFETY: the owner lets peers do that; the kernel says EFAULT, not a signal, if it is
            // there no more.
            true => unsafe { self.bounce.copy_at(Access::Read, addr, len, offset) },
            // SAFETY: likewise.
            false => unsafe { self.staging.take(addr, len) },
        };
        match copied {
            Err(Errno::INTR) => Ok(0),
            Ok(bytes @ 1..) if !write => {
                // The peer may have what was read only if it still may.
                is_good()?;
                self.pass_on(offset, bytes)
            }
            other => other,
        }
    }

    /// Hands the peer what is staged, at `offset` of its bounce buffer; how many bytes.
    fn pass_on(&mut self, offset: u64, bytes: u64) -> Result<u64> {
        let at = match self.owner.map_bounce(self.bounce) {
            Ok(at) => at,
            // Who has the same user could stop this process, too.
            Err(Errno::AGAIN) => {
                self.may_go_on()?;
                return self.staging.write_to(self.bounce, offset, bytes);
            }
            Err(e) => return Err(e),
        };
        self.may_go_on()?;
        // SAFETY: the bounce buffer is mapped there for nothing else, and `offset` and what follows
        // is in it (`Client::carry_out`). The bytes are for who has it.
        unsafe { self.staging.give(at + offset, bytes) }
    }
}

/// Has pages that are not there yet come before the copy begins: one that waits for them itself
/// takes what they hold when they come, however late. Whether that is possible does not matter.
fn wait_for(addr: u64, len: u64, write: bool) {
    /// MADV_POPULATE_READ and MADV_POPULATE_WRITE: since Linux 5.14.
    const POPULATE: [i32; 2] = [22, 23];
    const PAGE: u64 = 4096;
    let from = addr & !(PAGE - 1);
    let [read, change] = POPULATE;
    let advice = if write { change } else { read };
    let _ = regall_sys::advise(from, addr + len - from, advice);
}

#[cfg(test)]
mod tests;
