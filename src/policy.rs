//! What is to be done with a range, from what it is. Pure.

use crate::config::{self, Pin};
use crate::sys::Errno;
use regall_directory::addr::PageRange;
use regall_directory::planted;
use regall_directory::vocab::{Access, Attr, Column, Flags, Kind, Prot, Reason};

/// What the pin set is to do with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Leaves it alone, for the reason that stands in the column.
    Leave(Column),
    /// Lock what is touched.
    OnFault,
    /// Lock and populate.
    Populate,
}

/// A mapping of which no registrar has said anything yet.
pub const fn fresh(prot: Prot, kind: Kind, flags: Flags) -> Attr {
    let off = Column::no(Reason::Off);
    Attr {
        prot,
        kind,
        flags,
        pin: off,
        hca: off,
    }
}

/// Why no registrar may have a range of this description, if so.
pub fn excluded(attr: Attr) -> Option<Column> {
    let has = |flag| attr.flags.has(flag);
    let reason = match attr.kind {
        Kind::Shim => Reason::Shim,
        Kind::Kernel => Reason::Kernel,
        Kind::Device => Reason::Device,
        Kind::Managed => Reason::Managed,
        // mlock says yes to VM_DONTEXPAND and VM_MIXEDMAP mappings and does
        // nothing (mlock_fixup, VM_SPECIAL): that is a refusal.
        Kind::Special if planted!("special-is-pinned", true, false) => return None,
        Kind::Special => return Some(Column::refused(Errno::INVAL.byte())),
        _ if attr.prot.is_none() => Reason::NoAccess,
        _ if planted!("opted-out-is-pinned", false, has(Flags::OPTED_OUT)) => Reason::OptedOut,
        _ if planted!("excluded-is-pinned", false, has(Flags::EXCLUDED)) => Reason::OptedOut,
        _ if attr.flags.has(Flags::TAIL) => return Some(Column::refused(Errno::NOMEM.byte())),
        _ if attr.flags.has(Flags::INHERITED) => Reason::Inherited,
        _ => return None,
    };
    Some(Column::no(reason))
}

/// How memory is held: what REGALL_PIN comes to on this machine at this time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Holding {
    /// Not at all.
    Off,
    /// `auto` without swap space: by nobody, since nothing is taken away but page cache.
    Kept,
    /// `auto` where private memory alone is not written to swap space: the rest by locks.
    KeptPrivate,
    /// `auto` with swap space: by locks on fault, but for page cache.
    Touched,
    /// By locks on fault.
    OnFault,
    /// By locks that make it resident.
    Populate,
}

impl Holding {
    /// Returns how memory is held with REGALL_PIN set to `pin` where there is swap space.
    pub const fn with_swap(pin: Pin) -> Self {
        match pin {
            Pin::Off => Self::Off,
            Pin::Auto => Self::Touched,
            Pin::OnFault => Self::OnFault,
            Pin::Populate => Self::Populate,
        }
    }

    /// Returns whether any memory is locked.
    #[inline]
    pub const fn locks(self) -> bool {
        !matches!(self, Self::Off | Self::Kept)
    }
}

/// Returns what is said of memory that the pin set may have and does not lock.
pub fn unlocked(attr: Attr, holding: Holding) -> Option<Column> {
    // Page cache that the application has locked is held by that.
    let theirs = attr.flags.has(Flags::APP_LOCKED);
    match holding {
        Holding::Off => Some(Column::no(Reason::Off)),
        Holding::OnFault | Holding::Populate => None,
        _ if is_cache(attr) && theirs => Some(Column::YES),
        _ if is_cache(attr) => Some(Column::no(Reason::Cache)),
        Holding::Kept => Some(Column::no(Reason::Kept)),
        // (Shared memory is charged to whoever touched it first.)
        Holding::KeptPrivate if !attr.is_shmem() => Some(Column::no(Reason::Kept)),
        Holding::KeptPrivate | Holding::Touched => None,
    }
}

/// Returns whether `attr` is that of page cache. What is written to private memory is not.
fn is_cache(attr: Attr) -> bool {
    attr.flags.has(Flags::CACHE) && (attr.prot.shared() || !attr.prot.writable())
}

/// Returns what the pin set is to do. `memlock_binds`: RLIMIT_MEMLOCK counts for this process.
pub fn wanted(attr: Attr, holding: Holding, memlock_binds: bool) -> Want {
    if let Some(column) = excluded(attr).or_else(|| unlocked(attr, holding)) {
        return Want::Leave(column);
    }
    if attr.flags.has(Flags::GROWSDOWN) && memlock_binds {
        // A locked stack that grows past the limit is a SIGSEGV.
        return Want::Leave(Column::no(Reason::Limit));
    }
    let stack = matches!(attr.kind, Kind::ThreadStack | Kind::Stack);
    let lazy = planted!("stacks-are-populated", false, stack)
        || [Flags::NORESERVE, Flags::GROWSDOWN, Flags::KEEP_LAZY]
            .iter()
            .any(|f| attr.flags.has(*f))
        // Populated, frozen memory would be copied, all of it.
        || attr.flags.has(Flags::BACKED) && !attr.prot.shared();
    // A lock of the application's own stays what it is: mremap populates what grows under it.
    let theirs = attr.flags.has(Flags::APP_LOCKED) && !attr.flags.has(Flags::APP_ONFAULT);
    match holding {
        _ if theirs => Want::Populate,
        Holding::Populate if !lazy => Want::Populate,
        _ => Want::OnFault,
    }
}

/// What a domain of an adapter is to do with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Registering {
    /// Leaves it alone, for the reason that stands in the column.
    Leave(Column),
    /// Register it; true: with the rights that memory has that can be written.
    With(bool),
}

/// Memory that is reserved without being paid for (MAP_NORESERVE) and larger than a
/// malloc arena: registering would populate it.
const RESERVE: u64 = 64 << 20;

/// Returns whether others may change what memory that says `attr` holds, and nobody is told: they
/// write to its file, cut it, or punch holes in it.
pub const fn is_of_others(attr: Attr) -> bool {
    let backed = attr.flags.has(Flags::BACKED);
    !backed && (matches!(attr.kind, Kind::File | Kind::Shm) || attr.prot.shared())
}

/// Returns whether REGALL_PIN=auto registers memory that says `attr` exactly as it is asked for,
/// when it is: programs seldom send from it. What can't be written is never lent.
pub const fn is_on_request(attr: Attr) -> bool {
    is_of_others(attr) || matches!(attr.kind, Kind::ThreadStack) || !attr.prot.writable()
}

/// What a domain is to do with `len` bytes. `on_demand`: it pins nothing, and faults pages
/// in when they are accessed. `data_only`: REGALL_SCOPE=data.
pub fn registering(attr: Attr, len: u64, on_demand: bool, data_only: bool) -> Registering {
    let column = excluded(attr);
    match column {
        Some(c) if !(on_demand && c.reason == Reason::NoAccess) => Registering::Leave(c),
        // A missing page there is the application's business, and waits for it.
        _ if !on_demand && attr.flags.has(Flags::KEEP_LAZY) => {
            Registering::Leave(Column::refused(Errno::FAULT.byte()))
        }
        _ if !on_demand && attr.flags.has(Flags::NORESERVE) && len > RESERVE => {
            Registering::Leave(Column::no(Reason::Limit))
        }
        _ if data_only && attr.flags.has(Flags::TEXT) => {
            Registering::Leave(Column::no(Reason::Scope))
        }
        _ => Registering::With(attr.prot.writable()),
    }
}

/// The access that REGALL_ACCESS adds to what an application asks for.
pub const fn remote_access(access: config::Access) -> Access {
    match access {
        config::Access::Local => Access::NONE,
        config::Access::RemoteRead => Access::REMOTE_READ,
        config::Access::RemoteWrite => Access::REMOTE_READ.with(Access::REMOTE_WRITE),
        config::Access::RemoteAtomic => Access::REMOTE_READ
            .with(Access::REMOTE_WRITE)
            .with(Access::REMOTE_ATOMIC),
    }
}

/// Whether `rights` allow peers more than REGALL_ACCESS, which is `access`, does.
pub const fn beyond(rights: Access, access: config::Access) -> bool {
    let remote = remote_access(config::Access::RemoteAtomic);
    rights.has_any(remote.without(remote_access(access)))
}

/// Whether the pin set is to lock memory that says `attr`, and has not yet.
#[inline]
pub fn is_pending(attr: Attr) -> bool {
    attr.pin.reason == Reason::Off
}

/// Whether the kernel has memory locked for the pin set's sake, and for nobody else's.
#[inline]
pub fn has_our_lock(attr: Attr) -> bool {
    attr.pin.held() && !attr.flags.has(Flags::APP_LOCKED)
}

/// Returns `attr` with the application's `locks`, and no others. What earlier ones have populated is
/// locked on fault by us, where nothing is populated.
pub fn with_locks(attr: Attr, locks: Flags, holding: Holding) -> Attr {
    let flags = attr.flags.without(Flags::APP_LOCKS).with(locks);
    let attr = Attr { flags, ..attr };
    // Where nothing of ours is locked, the application's lock is all that there is.
    let column = unlocked(attr, holding).filter(|_| excluded(attr).is_none());
    let attr = Attr {
        pin: column.unwrap_or(attr.pin),
        ..attr
    };
    let lazy = locks == Flags::EMPTY && matches!(wanted(attr, holding, false), Want::OnFault);
    match lazy && attr.pin.held() {
        true => locked(attr),
        false => attr,
    }
}

/// `attr` of memory that was locked on fault.
pub fn locked(attr: Attr) -> Attr {
    Attr {
        pin: Column::YES,
        flags: attr.flags.with(Flags::ONFAULT),
        ..attr
    }
}

/// Returns whether the kernel does not merge again what was divided of a mapping that says `attr`: a
/// System V segment or huge pages (vm_ops->close).
pub fn stays_divided(attr: Attr) -> bool {
    matches!(attr.kind, Kind::Shm | Kind::Huge)
}

/// What is locked or unlocked together with `part` of the mapping `whole`, which says `attr`.
pub fn with_rest(attr: Attr, part: PageRange, whole: PageRange) -> PageRange {
    match stays_divided(attr) {
        true => whole,
        false => part,
    }
}

/// `attr` of memory that has lost its lock, which is to come back.
pub fn released(attr: Attr) -> Attr {
    match attr.pin.held() {
        // As what never was locked: with that it may be one mapping, and is to be pinned as one.
        true => Attr {
            pin: Column::no(Reason::Off),
            flags: attr.flags.without(Flags::ONFAULT),
            ..attr
        },
        false => attr,
    }
}

/// `attr` as if the pin set had said nothing of it yet.
pub fn unsettled(attr: Attr, holding: Holding) -> Attr {
    let mut attr = attr;
    if excluded(attr).is_none() {
        attr.pin = untold(attr, holding);
        attr.flags = attr.flags.without(Flags::ONFAULT);
        if !attr.hca.held() {
            attr.hca = Column::no(Reason::Off);
        }
    }
    attr
}

/// Returns what is said of memory of which the pin set has said nothing yet.
pub fn untold(attr: Attr, holding: Holding) -> Column {
    unlocked(attr, holding).unwrap_or(Column::no(Reason::Off))
}

/// Returns whether the pin set may have locked it: it says so, or is yet to say what becomes
/// of it, as behind a call that others did not wait for any longer.
pub fn may_be_locked(attr: Attr, holding: Holding) -> bool {
    let unsettled = is_pending(attr) && excluded(attr).is_none();
    attr.pin.held() || holding.locks() && unsettled
}

/// `attr` of memory that has come to another address, or back: no domain holds it there.
pub fn unregistered(attr: Attr) -> Attr {
    Attr {
        hca: excluded(attr).unwrap_or(Column::no(Reason::Off)),
        ..attr
    }
}

/// `attr` with its columns as they are before any registrar has acted: what is
/// excluded says so, the rest says why it is not locked or `off`, what is held stays held.
pub fn described(attr: Attr, holding: Holding) -> Attr {
    let mut attr = attr;
    let out = excluded(attr);
    let kept = [Reason::None, Reason::Limit, Reason::Refused, Reason::Scope];
    match out {
        Some(column) => {
            attr.pin = column;
            // On demand, what can't be accessed may be registered.
            if !attr.hca.held() {
                attr.hca = column;
            }
        }
        None => {
            let no_word = matches!(attr.pin.reason, Reason::Kept | Reason::Cache);
            match unlocked(attr, holding) {
                // (What is locked stays so, whatever it can be accessed for.)
                Some(column) if !holding.locks() || !attr.pin.held() => attr.pin = column,
                None if no_word => attr.pin = Column::no(Reason::Off),
                _ => (),
            }
            if !kept.contains(&attr.hca.reason) {
                attr.hca = Column::no(Reason::Off);
            }
        }
    }
    attr
}

/// How early a range is pinned when a whole address space is: private writable
/// memory first, shared next, the rest (text) last.
pub const fn rank(attr: Attr) -> u8 {
    if attr.prot.shared() && !attr.flags.has(Flags::BACKED) {
        1
    } else if attr.prot.writable() {
        0
    } else {
        TEXT
    }
}

/// The [`rank`] of text, and of whatever else can't be written.
pub const TEXT: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(prot: u8, kind: Kind, flags: Flags) -> Attr {
        fresh(Prot::from_bits(prot), kind, flags)
    }

    #[test]
    fn what_is_lazy_is_never_populated() {
        for (kind, flags) in [
            (Kind::ThreadStack, Flags::EMPTY),
            (Kind::Anon, Flags::NORESERVE),
            (Kind::Stack, Flags::GROWSDOWN),
        ] {
            assert_eq!(
                wanted(attr(3, kind, flags), Holding::Populate, false),
                Want::OnFault
            );
        }
        assert_eq!(
            wanted(attr(3, Kind::Anon, Flags::EMPTY), Holding::Populate, true),
            Want::Populate
        );
    }

    #[test]
    fn a_lock_of_the_applications_is_never_on_fault() {
        let of = |flags| wanted(attr(3, Kind::Anon, flags), Holding::Touched, false);
        assert_eq!(of(Flags::EMPTY), Want::OnFault);
        assert_eq!(of(Flags::APP_LOCKED), Want::Populate);
        assert_eq!(of(Flags::APP_LOCKS), Want::OnFault);
    }

    #[test]
    fn without_swap_space_nothing_is_locked() {
        let of = |prot, kind, flags, holding| described(attr(prot, kind, flags), holding).pin;
        let no = Column::no;
        let (private, shared) = (3, 3 | 8);
        let tmpfs = Flags::EMPTY;
        let all = [
            (
                private,
                Kind::Anon,
                Flags::EMPTY,
                Reason::Kept,
                Reason::Kept,
            ),
            (shared, Kind::Anon, Flags::EMPTY, Reason::Kept, Reason::Off),
            (shared, Kind::Shm, Flags::EMPTY, Reason::Kept, Reason::Off),
            (1, Kind::File, tmpfs, Reason::Kept, Reason::Off),
            (
                private,
                Kind::File,
                Flags::CACHE,
                Reason::Kept,
                Reason::Kept,
            ),
            (1, Kind::File, Flags::CACHE, Reason::Cache, Reason::Cache),
            (
                shared,
                Kind::File,
                Flags::CACHE,
                Reason::Cache,
                Reason::Cache,
            ),
        ];
        for (prot, kind, flags, none, private_alone) in all {
            assert_eq!(of(prot, kind, flags, Holding::Kept), no(none));
            assert_eq!(
                of(prot, kind, flags, Holding::KeptPrivate),
                no(private_alone)
            );
            let swap = match none {
                Reason::Cache => Reason::Cache,
                _ => Reason::Off,
            };
            assert_eq!(of(prot, kind, flags, Holding::Touched), no(swap));
            assert_eq!(of(prot, kind, flags, Holding::OnFault), no(Reason::Off));
        }
        let locked = Flags::CACHE.with(Flags::APP_LOCKED);
        assert_eq!(of(1, Kind::File, locked, Holding::Kept), Column::YES);
        assert_eq!(
            of(0, Kind::Anon, Flags::EMPTY, Holding::Kept),
            no(Reason::NoAccess)
        );
    }

    #[test]
    fn what_was_kept_is_locked_once_there_is_swap_space() {
        let kept = described(attr(3, Kind::Anon, Flags::EMPTY), Holding::Kept);
        assert!(!is_pending(kept) && !may_be_locked(kept, Holding::Kept));
        let now = described(kept, Holding::Touched);
        assert!(is_pending(now));
        assert_eq!(wanted(now, Holding::Touched, false), Want::OnFault);
        // What can't be written any longer stays locked.
        let read_only = Attr {
            prot: Prot::from_bits(1),
            flags: Flags::CACHE,
            kind: Kind::File,
            ..locked(now)
        };
        assert_eq!(described(read_only, Holding::Touched).pin, Column::YES);
    }

    #[test]
    fn a_growing_stack_is_not_locked_under_a_limit() {
        let stack = attr(3, Kind::Stack, Flags::GROWSDOWN);
        assert_eq!(
            wanted(stack, Holding::Populate, true),
            Want::Leave(Column::no(Reason::Limit))
        );
    }

    #[test]
    fn reasons_have_an_order() {
        assert_eq!(
            excluded(attr(0, Kind::Shim, Flags::EMPTY)),
            Some(Column::no(Reason::Shim))
        );
        assert_eq!(
            excluded(attr(0, Kind::Anon, Flags::OPTED_OUT)),
            Some(Column::no(Reason::NoAccess))
        );
        assert_eq!(
            excluded(attr(1, Kind::File, Flags::TAIL)),
            Some(Column::refused(12))
        );
        assert_eq!(excluded(attr(3, Kind::Anon, Flags::EMPTY)), None);
        assert_eq!(
            described(attr(3, Kind::Anon, Flags::EMPTY), Holding::Off).reason(),
            Column::no(Reason::Off)
        );
    }
}
