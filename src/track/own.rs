//! Whether a domain's descriptor is ours still. The program may have closed it, as who closes all
//! numbers that there may be does, and have a file of its own there now, even one of the same device.
//! That must be neither closed nor asked for anything.
//!
//! All of ours are closed by exec(2), which what dup2 and open put under a number is not by itself:
//! that is asked before each use. Beyond that a region of ours proves it: its handle and its keys are
//! found in its own context alone. A domain without a region goes by the program's own descriptor.
//! Where ours is lost, one of the program's that has the region gives us another.

use super::{lock, remembered, State};
use crate::registrar::hca::files::FileId;
use crate::registrar::hca::records::Record;
use crate::registrar::hca::{Deregistration, Device, Domain, DomainId, Owner, State as Stage};
use crate::sys::{self, file, Errno, Result};
use crate::uverbs::{Channel, Mr};

/// Regions that are looked for: some may go meanwhile.
const REGIONS: usize = 4;
/// How often others are taken, if all of those have gone meanwhile.
const TRIES: usize = 8;

/// A duplicate of `fd` under a number that no other domain has for its own: the program may have
/// closed that one, or have it in another thread's table, and by the number two files would be one.
pub fn own_number(fd: i32) -> Result<i32> {
    let mut own = file::duplicate_high(fd)?;
    loop {
        let taken = {
            let guard = lock();
            let of = |x: &Domain| x.device.is_some_and(|x| x.channel.fd() == own);
            guard.is_some_and(|guard| guard.hca.find(of).next().is_some())
        };
        if !taken {
            return Ok(own);
        }
        let next = file::duplicate_above(fd, own);
        file::close(own);
        own = next?;
    }
}

/// The numbers by which the program has come to the file of domain `d`.
pub fn numbers_of(d: DomainId) -> impl Iterator<Item = i32> {
    let file = lock().and_then(|guard| Some(guard.hca.domain(d)?.file));
    let file = file.unwrap_or(FileId::NONE);
    remembered::numbers_of(file).filter(move |_| file != FileId::NONE)
}

/// What is known of a domain, to be asked about without the lock.
struct Known {
    owner: Owner,
    device: Device,
    regions: [Option<Mr>; REGIONS],
}

impl Known {
    fn of(d: DomainId) -> Option<Self> {
        let guard = lock()?;
        let domain = guard.hca.domain(d).filter(|x| x.state != Stage::Free)?;
        let mut known = Self {
            owner: domain.owner,
            device: domain.device?,
            regions: [None; REGIONS],
        };
        // What was refused has a record, too.
        let there = |r: &Record| r.domain == d && r.has_region();
        let all = guard.hca.records.each().filter(|(_, r)| there(r));
        for (place, (_, r)) in known.regions.iter_mut().zip(all) {
            *place = Some(Mr {
                handle: r.handle,
                lkey: r.lkey,
                rkey: r.rkey,
            });
        }
        Some(known)
    }

    /// Whether it is that domain still.
    fn is(&self, domain: &Domain) -> bool {
        let fd = |x: Device| x.channel.fd();
        domain.state != Stage::Free
            && domain.owner == self.owner
            && domain.device.map(fd) == Some(fd(self.device))
    }

    /// Whether the domain's regions are behind `fd`. `None`: there are none, or the kernel does not
    /// say.
    fn has(&self, fd: i32) -> Option<bool> {
        let channel = self.device.channel.by(fd);
        if fd < 0 || !channel.may_be(fd) {
            return Some(false);
        }
        let said = |mr: &Mr| channel.has(mr);
        let mut all = self.regions.iter().flatten().map(said);
        all.try_fold(None, |_, said| match said {
            Some(false) => Ok(said),
            said => Err(said),
        })
        .unwrap_or_else(|said| said)
    }

    /// Whether a region of `earlier` is there still.
    fn has_one_of(&self, earlier: &Self) -> bool {
        let mut all = self.regions.iter().flatten();
        all.any(|mr| earlier.regions.contains(&Some(*mr)))
    }

    /// Whether its own descriptor is ours where no region says so: by another of the program's. No
    /// where that is another file of the device. Where nobody can say it is: the program has closed
    /// its own, or has another file there, or the kernel does not say (Linux before 6.10 without
    /// kcmp(2)).
    fn by_the_programs(&self) -> bool {
        let (channel, from) = (self.device.channel, self.device.from);
        let differs = || file::is_same(channel.fd(), from) == Ok(false) && channel.may_be(from);
        self.device.may_be_own() && !differs()
    }
}

/// Whether the descriptor of domain `d` is ours; and what is known of the domain. One that is, is
/// closed by exec(2) from then on: the program may have changed that for all that it found.
fn ask(d: DomainId) -> Option<(bool, Known)> {
    let mut known = Known::of(d)?;
    let mut said = None;
    for _ in 0..TRIES {
        said = known.has(known.device.channel.fd());
        if said != Some(false) {
            break;
        }
        // A region leaves the records before the kernel forgets it.
        let now = Known::of(d)?;
        if now.has_one_of(&known) {
            return Some((false, now));
        }
        known = now;
    }
    let ours = said == Some(true) || known.by_the_programs();
    let own = known.device.channel.fd();
    if ours && !file::is_closed_by_exec(own) {
        file::set_closed_by_exec(own);
    }
    Some((ours, known))
}

/// Whether what is there may be domain `d`'s descriptor, which had nothing left to prove it by.
pub fn may_be(d: DomainId) -> bool {
    let device = lock().and_then(|guard| guard.hca.domain(d)?.device);
    device.is_some_and(|x| x.may_be_own())
}

/// The way to where `channel` leads: itself, unless the program has put something of its own there, or
/// has closed it. Errors: EBADF: there is none.
pub fn sure(channel: Channel) -> Result<Channel> {
    match file::is_closed_by_exec(channel.fd()) {
        true => Ok(channel),
        false => instead_of(channel).ok_or(Errno::BADF),
    }
}

/// Sees to it that domain `d` has a descriptor that is ours: the one that it had, or another. `by`:
/// one by which somebody has come. False: it has none, and is not to be reached any more.
#[cold]
#[inline(never)]
pub fn see(d: DomainId, by: Option<i32>) -> bool {
    let Some((ours, known)) = ask(d) else {
        return false;
    };
    if ours {
        return true;
    }
    // Another thread's table may have it, and a child has its parent's domains.
    if known.device.from < 0
        || !sys::has_the_process_files()
        || sys::getpid() != sys::memory_owner()
    {
        return false;
    }
    let listed = numbers_of(d);
    let mut all = by.into_iter().chain([known.device.from]).chain(listed);
    let found = all.find(|fd| known.has(*fd) == Some(true));
    // What a `struct ibv_context` is open by is that context's, also where the kernel does not say.
    let by_symbols = !known.owner.is_of_file();
    let from = Some(known.device.from).filter(|fd| by_symbols && known.has(*fd).is_none());
    let found = found.or(from);
    let own = found.and_then(|fd| own_number(fd).ok());
    let done = lock().is_some_and(|mut guard| put(&mut guard, d, &known, own.unwrap_or(-1)));
    if done {
        return own.is_some();
    }
    if let Some(own) = own {
        file::close(own);
    }
    // Another thread may have been faster.
    ask(d).is_some_and(|(ours, _)| ours)
}

/// Whether the regions of domain `d` are behind `fd`.
pub fn is_there(d: DomainId, fd: i32) -> bool {
    Known::of(d).is_some_and(|known| known.has(fd) == Some(true))
}

/// Domain `d` is reached by `own` from now on. Whether it is that domain still.
fn put(state: &mut State, d: DomainId, known: &Known, own: i32) -> bool {
    let old = known.device.channel;
    let Some(domain) = state.hca.domain_mut(d).filter(|x| known.is(x)) else {
        return false;
    };
    let channel = old.by(own);
    domain.device = Some(Device {
        channel,
        ..known.device
    });
    for n in 0..state.hca.bound.room() {
        let is_there = |it: &Deregistration| it.channel == old;
        if let Some(mut it) = state.hca.bound.take(n, is_there) {
            it.channel = channel;
            state.hca.bound.keep(it);
        }
    }
    true
}

/// A way to where `channel` has led: another one if its descriptor is lost.
#[cold]
#[inline(never)]
fn instead_of(channel: Channel) -> Option<Channel> {
    if channel.fd() < 0 {
        return None;
    }
    let fd = |x: &Domain| x.device.map(|x| x.channel.fd());
    let d = lock()?.hca.find(|x| fd(x) == Some(channel.fd())).next()?;
    see(d, None).then(|| Some(lock()?.hca.domain(d)?.device?.channel))?
}

/// Nothing is asked of domain `d`'s descriptor any more: it is not ours.
pub fn give_up(d: DomainId) {
    if let Some(mut guard) = lock() {
        let device = guard.hca.domain_mut(d).and_then(|x| x.device.as_mut());
        if let Some(device) = device {
            device.channel = device.channel.by(-1);
        }
    }
}
