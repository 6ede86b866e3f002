//! The life of a domain, from a protection domain's first registration on.

use super::adopting::{self, When};
use super::reaching::{self, Reached};
use super::turns::Whose;
use super::waiting::Reach;
use super::{
    begin_work, end, files, filters, lock, progress, registering, revoking, State, USER_END,
};
use crate::base::{counters, settings};
use crate::config;
use crate::glob;
use crate::limits;
use crate::policy;
use crate::registrar::hca::candidates::{Candidate, Charge};
use crate::registrar::hca::files::FileId;
use crate::registrar::hca::sizes::CHUNK;
use crate::registrar::hca::{Device, Domain, DomainId, Owner, State as Stage, ALL_REMOTE};
use crate::sys::{self, Errno, Result};
use crate::text::Lossy;
use crate::uverbs::{device::Device as OwnDevice, fork as copy_on_fork};
use crate::uverbs::{ibdev_of, PdHandle};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use regall_directory::addr::PageRange;
use regall_directory::layout::Counter;
use regall_directory::planted;
use regall_directory::vocab::Access;

/// Classes of access in one protection domain, for each ordering: all memory is
/// registered, and counted, once for each.
const CLASSES: usize = 2;

/// The class of a new domain for a request of `wanted`: what was asked for, and what
/// REGALL_ACCESS adds to it. `None`: there are `most`.
fn class_for(state: &State, owner: Owner, wanted: Access, most: usize) -> Option<Access> {
    let relaxed = wanted.has(Access::RELAXED_ORDERING);
    let same = |a: Access| a.has(Access::RELAXED_ORDERING) == relaxed;
    let there = state.hca.find(|d| d.owner == owner && same(d.access));
    (there.count() < most).then(|| {
        with_local_write(class_of(wanted).with(policy::remote_access(settings::config().access)))
    })
}

/// What of `wanted` a domain is to have: with `REGALL_KEYS=exact` nothing is lent, so peers need
/// no rights there.
pub fn class_of(wanted: Access) -> Access {
    if settings::config().keys_exact {
        wanted.without(ALL_REMOTE)
    } else {
        wanted
    }
}

/// Remote writes need local ones (ibv_reg_mr(3)), and so does memory that is to be
/// received into.
pub const fn with_local_write(access: Access) -> Access {
    access.with(Access::LOCAL_WRITE)
}

/// Adopts the protection domain for a registration of `bytes` with the access `wanted`, if it has paid
/// for that: see [`candidates`](crate::registrar::hca::candidates). Everything that is mapped is
/// registered there, and kept so. Errors: as [`adopt_as`]'s; ENODEV if the user leaves the device out;
/// EAGAIN, and what is to be said if the registration has been made, if it has not paid.
pub fn adopt_when_due(
    owner: Owner,
    (fd, pd): (i32, PdHandle),
    wanted: Access,
    bytes: u64,
) -> core::result::Result<(), (Errno, Option<Charge>)> {
    let nothing = |errno| (errno, None);
    if is_left_out(owner.context, fd) {
        counters::count(Counter::PdLeftOut);
        return Err(nothing(Errno::NODEV));
    }
    let candidate = {
        let guard = lock().ok_or(nothing(Errno::BUSY))?;
        let there = guard.hca.refuses(owner.context);
        let class = class_for(&guard, owner, wanted, CLASSES).filter(|_| !there);
        class.map(|class| Candidate {
            pd: owner.pd,
            context: owner.context,
            class,
        })
    };
    let waits = candidate.filter(|_| !adopting::is_at_once());
    if let Some(to) = waits.filter(|to| !adopting::is_due(*to)) {
        counters::count(Counter::PdWaits);
        let charge = Charge { to, bytes };
        return Err((Errno::AGAIN, Some(charge)));
    }
    let adopted = adopt_as(owner, fd, pd, wanted, (CLASSES, When::Meanwhile));
    if let (Some(candidate), Some(mut guard)) = (waits, lock()) {
        guard.hca.candidates.begin_anew(candidate);
    }
    if adopted == Err(Errno::MFILE) {
        counters::count(Counter::DomainsFull);
    }
    adopted.map_err(nothing)
}

/// The application has made a registration itself that could have been served.
pub fn is_paid(charge: Charge) {
    if let Some(mut guard) = lock() {
        guard.hca.candidates.pays(charge);
    }
}

/// Whether REGALL_HCA_DEVICES names other devices than the one behind `context`, which is open as
/// `fd`. What can't be told is not left out.
fn is_left_out(context: u64, fd: i32) -> bool {
    let devices = settings::config().hca_devices.as_bytes();
    if devices.is_empty() {
        return false;
    }
    if lock().is_some_and(|guard| guard.hca.candidates.is_left_out(context)) {
        return true;
    }
    let mut name = [0; 64];
    let Ok(name) = ibdev_of(fd, &mut name) else {
        return false;
    };
    let out = !glob::matches_any(devices, name);
    if let (true, Some(mut guard)) = (out, lock()) {
        guard.hca.candidates.leave_out(context);
        drop(guard);
        log::info!(
            "REGALL_HCA_DEVICES does not name {}: its protection domains are left alone",
            Lossy(name)
        );
    }
    out
}

/// As [`adopt_as`], with the access of REGALL_ACCESS, for a program that looks keys up: they stay for
/// as long as the memory is mapped.
pub fn adopt_for_look_ups(owner: Owner, fd: i32, pd: PdHandle) -> Result<()> {
    let wanted = with_local_write(policy::remote_access(settings::config().access));
    adopt_as(owner, fd, pd, wanted, (CLASSES + 1, When::AtOnce))
}

/// Everything that is mapped is registered in the protection domain, and kept so. Errors: the
/// kernel's; EOPNOTSUPP for a device that can't be served so; EMFILE for too many domains.
fn adopt_as(
    owner: Owner,
    fd: i32,
    pd: PdHandle,
    wanted: Access,
    (most, when): (usize, When),
) -> Result<()> {
    files::bind(owner, fd, pd);
    let refused = |state: &State| state.hca.refuses(owner.context);
    let class = {
        let guard = lock().ok_or(Errno::BUSY)?;
        if refused(&guard) {
            return Err(Errno::OPNOTSUPP);
        }
        class_for(&guard, owner, wanted, most).ok_or(Errno::MFILE)?
    };
    let file = match files::known(fd) {
        Err(Errno::XDEV) => return Err(say_others()),
        known => known.map_err(|_| Errno::OPNOTSUPP)?,
    };
    let reached = match reach(fd, file, pd, class) {
        Ok(reached) => reached,
        // A number that is no protection domain's: nobody has looked before.
        Err(Errno::NOENT) if owner.is_of_file() => return Err(Errno::NOENT),
        // There is no descriptor or no memory left at the moment: the next request asks again.
        Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => return Err(Errno::OPNOTSUPP),
        Err(errno) => {
            log::warn!("memory can't be registered with this adapter from here ({errno}): its protection domains are left alone");
            refuse(owner.context);
            return Err(Errno::OPNOTSUPP);
        }
    };
    let device = Device {
        hint: reached.channel().by(fd),
        pd,
        file,
        ours: false,
    };
    let opened = open(owner, device, reached, class, when);
    if opened == Err(Errno::OPNOTSUPP) {
        refuse(owner.context);
    }
    opened
}

/// Protection domains of `context` are not adopted as long as it is open.
pub fn refuse(context: u64) {
    if let Some(mut guard) = lock() {
        guard.hca.refuse(context);
    }
}

/// Says once that another process has the adapter open, too. (It may close it, or end.)
#[cold]
fn say_others() -> Errno {
    static SAID: AtomicU32 = AtomicU32::new(0);
    let us = sys::getpid();
    if SAID.swap(us, Relaxed) != us {
        log::info!("another process than {us} has the same adapter open: its protection domains are left alone in {us}");
    }
    Errno::OPNOTSUPP
}

/// As [`adopt_as`], for a program that asks for it, with the access of REGALL_ACCESS: nothing
/// waits until it is touched. Where there is such a domain, what waits there does not any more.
pub fn register_all(owner: Owner, fd: i32, pd: PdHandle) -> Result<()> {
    let wanted = with_local_write(policy::remote_access(settings::config().access));
    let there = |state: &State| {
        let mut found = state.hca.find(|d| {
            let enough = !d.rotates && d.access.has(wanted);
            enough && d.owner == owner && d.state == Stage::Alive
        });
        found.next()
    };
    if there(&*lock().ok_or(Errno::BUSY)?).is_none() {
        adopt_for_look_ups(owner, fd, pd)?;
    }
    let waited = {
        let mut guard = lock().ok_or(Errno::BUSY)?;
        let d = there(&guard);
        let domain = d.and_then(|d| guard.hca.domain_mut(d));
        domain.is_some_and(|domain| core::mem::take(&mut domain.waits))
    };
    if let (true, Some(all)) = (waited, PageRange::new(0, USER_END)) {
        let flight = begin_work();
        registering::settle(all, Whose::Foreign, Reach::Resident);
        end(flight);
    }
    Ok(())
}

/// Registers everything with the device that REGALL_HCA names, if it names one.
pub fn own_device() {
    if settings::config().hca != config::Hca::Device {
        return;
    }
    let name = settings::config().hca_device.as_bytes();
    if let Err(errno) = own(name) {
        log::warn!(
            "REGALL_HCA={}: the device can't be used ({errno}): memory is not registered with it",
            Lossy(name)
        );
    }
}

/// As [`adopt_as`], for a protection domain of our own on the device `name`.
pub fn own(name: &[u8]) -> Result<()> {
    let opened = OwnDevice::open(name)?;
    let channel = opened.channel();
    let begun = channel.alloc_pd().and_then(|pd| {
        let file = files::known(channel.fd())?;
        Ok((pd, file, reaching::reach_new(channel.fd(), file)?))
    });
    let (pd, file, reached) = match begun {
        Ok(begun) => begun,
        Err(errno) => {
            opened.close();
            return Err(errno);
        }
    };
    let class = with_local_write(policy::remote_access(settings::config().access));
    let nobody = Owner { pd: 0, context: 0 };
    let device = Device {
        hint: channel,
        pd,
        file,
        ours: true,
    };
    open(nobody, device, reached, class, When::AtOnce)
}

/// Whether fork may take registered pages away from this process. Says so once.
fn endangered_by_fork() -> bool {
    static SAID: AtomicBool = AtomicBool::new(false);
    if settings::config().hca_fork_unsafe || copy_on_fork::copies() {
        return false;
    }
    if !SAID.swap(true, Relaxed) {
        log::warn!("this kernel's fork does not copy registered memory (Linux 5.12 does): nothing is registered with adapters; REGALL_HCA_FORK=unsafe for programs that never fork");
    }
    true
}

/// Opens a domain, and registers in it what is mapped. Errors: EOPNOTSUPP if fork would take
/// registered pages away; EMFILE for too many domains.
fn open(owner: Owner, device: Device, reached: Reached, class: Access, when: When) -> Result<()> {
    limits::memlock(); // for [`limits::bound`]
    let limits = reached.channel().query_device();
    drop(reached);
    let mut class = class;
    if settings::config().hca_odp {
        if limits.is_ok_and(|l| l.odp()) {
            class = class.with(Access::ON_DEMAND);
        } else {
            log::warn!(
                "the adapter has no on-demand paging: REGALL_HCA_MODE=odp acts as pinned there"
            );
        }
    }
    if !class.has(Access::ON_DEMAND) && endangered_by_fork() {
        reaching::close_own(&device);
        return Err(Errno::OPNOTSUPP);
    }
    // At most half of what the device has is the shim's: the application and its
    // neighbours have registrations of their own.
    let most = limits.map_or(most_regions(), |l| (l.max_mr as usize / 2).max(1));
    let implicit = class.has(Access::ON_DEMAND) && limits.is_ok_and(|l| l.implicit_odp());
    filters::expected();
    let most = most.min(most_regions());
    // A driver that does not say how much it registers at once is believed to register all.
    let bytes = limits.map_or(0, |l| l.max_mr_size);
    let bytes = match bytes & !(regall_directory::addr::PAGE - 1) {
        ..CHUNK => u64::MAX,
        bytes => bytes,
    };
    let d = match enter(owner, device, class, (most, bytes), when) {
        Ok(Some(d)) => d,
        other => {
            reaching::close_own(&device);
            return other.map(drop);
        }
    };
    counters::count(Counter::Domains);
    log::info!(
        "domain {}: protection domain {} with access {:#x}",
        d.named(),
        device.pd.0,
        class.bits()
    );
    say_sizes(d);
    adopting::fill(d, class, implicit, when);
    Ok(())
}

/// Says what regions of a domain are to be, and why.
fn say_sizes(d: DomainId) {
    if !progress::wanted() {
        return;
    }
    let Some(guard) = lock() else {
        return;
    };
    let Some(domain) = guard.hca.alive(d) else {
        return;
    };
    let large = domain.most_of(u64::MAX, false, guard.total);
    let (asked, most) = (domain.most_asked(), domain.most_regions);
    let why = match (domain.on_demand(), domain.waits) {
        _ if asked == domain.most_bytes => "the adapter takes no more at once",
        (true, _) => "nothing is pinned",
        (_, true) => "1/64 of the budget",
        (_, false) => "all of a region is registered again around a hole",
    };
    drop(guard);
    log::info!(
        "domain {}: regions of up to {} MiB ({why}), {} MiB on request, {most} regions at most",
        d.named(),
        large >> 20,
        asked >> 20
    );
}

/// Gives the domain a place among the others; its number. None: another thread was faster.
fn enter(
    owner: Owner,
    device: Device,
    class: Access,
    most: (usize, u64),
    when: When,
) -> Result<Option<DomainId>> {
    let mut guard = lock().ok_or(Errno::BUSY)?;
    let state = &mut *guard;
    let same = |d: &Domain| d.owner == owner || d.is_of(owner.file(), device.pd);
    let mut twins = state.hca.find(|d| same(d) && d.access == class);
    if twins.next().is_some() {
        return Ok(None);
    }
    let how = (class, revoking::rotates(class));
    let d = state.hca.open(&mut state.arena, owner, device, how, most);
    state.adopt_own_memory();
    if let Some(domain) = d.and_then(|d| state.hca.domain_mut(d)) {
        let adopted = owner.pd != 0;
        let auto = settings::config().pin == config::Pin::Auto;
        domain.waits = auto && adopted && !domain.on_demand();
    }
    // What lends nothing saves nothing.
    let pays = !adopting::is_at_once() && !settings::config().keys_exact;
    if let (Some(d), When::Meanwhile, true) = (d, when, pays) {
        state.hca.is_bought(d);
    }
    state.show_regions();
    d.map(Some).ok_or(Errno::MFILE)
}

/// Regions in one domain at the most.
fn most_regions() -> usize {
    planted!("few-regions", 48, 1 << 18)
}

/// A page of ours, registered once to see whether that works at all.
#[repr(C, align(4096))]
struct Page(core::cell::UnsafeCell<[u8; 4096]>);

// SAFETY: nobody looks at it; the adapter may.
unsafe impl Sync for Page {}
static PAGE: Page = Page(core::cell::UnsafeCell::new([0; 4096]));

/// The way to the device behind `fd`, if memory can be registered there. Errors: the kernel's.
fn reach(fd: i32, file: FileId, pd: PdHandle, class: Access) -> Result<Reached> {
    let reached = reaching::reach_new(fd, file)?;
    match reached
        .channel()
        .try_reg(pd, PAGE.0.get() as u64, 4096, class)
    {
        // The limit is reached, or will be: that is said range by range.
        Ok(()) | Err(Errno::NOMEM | Errno::PERM) => Ok(reached),
        Err(errno) => Err(errno),
    }
}
