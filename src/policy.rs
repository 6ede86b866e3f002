//! What is to be done with a range, from what it is. Pure.

use crate::config::{self, Pin};
use crate::sys::Errno;
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
    let reason = match attr.kind {
        Kind::Shim => Reason::Shim,
        Kind::Kernel => Reason::Kernel,
        Kind::Device => Reason::Device,
        Kind::Managed => Reason::Managed,
        // mlock says yes to VM_DONTEXPAND and VM_MIXEDMAP mappings and does
        // nothing (mlock_fixup, VM_SPECIAL): that is a refusal.
        Kind::Special => return Some(Column::refused(Errno::INVAL.byte())),
        _ if attr.prot.is_none() => Reason::NoAccess,
        _ if attr.flags.has(Flags::OPTED_OUT) || attr.flags.has(Flags::EXCLUDED) => {
            Reason::OptedOut
        }
        _ if attr.flags.has(Flags::TAIL) => return Some(Column::refused(Errno::NOMEM.byte())),
        _ if attr.flags.has(Flags::INHERITED) => Reason::Inherited,
        _ => return None,
    };
    Some(Column::no(reason))
}

/// What the pin set, set to `pin`, is to do. `memlock_binds`: RLIMIT_MEMLOCK
/// counts for this process.
pub fn wanted(attr: Attr, pin: Pin, memlock_binds: bool) -> Want {
    if let Some(column) = excluded(attr) {
        return Want::Leave(column);
    }
    if attr.flags.has(Flags::GROWSDOWN) && memlock_binds {
        // A locked stack that grows past the limit is a SIGSEGV.
        return Want::Leave(Column::no(if pin == Pin::Off {
            Reason::Off
        } else {
            Reason::Limit
        }));
    }
    let lazy = matches!(attr.kind, Kind::ThreadStack | Kind::Stack)
        || [Flags::NORESERVE, Flags::GROWSDOWN, Flags::KEEP_LAZY]
            .iter()
            .any(|f| attr.flags.has(*f))
        // Populated, frozen memory would be copied, all of it.
        || attr.flags.has(Flags::BACKED) && !attr.prot.shared();
    // A lock of the application's own stays what it is: mremap populates what grows under it.
    let theirs = attr.flags.has(Flags::APP_LOCKED) && !attr.flags.has(Flags::APP_ONFAULT);
    match pin {
        Pin::Off => Want::Leave(Column::no(Reason::Off)),
        _ if theirs => Want::Populate,
        Pin::Auto | Pin::OnFault => Want::OnFault,
        Pin::Populate if lazy => Want::OnFault,
        Pin::Populate => Want::Populate,
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

/// Whether `attr` is that of memory whose lock may stay when nobody can access it: private
/// memory that is nothing but bytes, and that the pin set may have.
pub fn is_reserve(attr: Attr) -> bool {
    const NOT: Flags = Flags::OPTED_OUT
        .with(Flags::INHERITED)
        .with(Flags::EXCLUDED)
        .with(Flags::GROWSDOWN)
        .with(Flags::BACKED);
    attr.kind == Kind::Anon && !attr.prot.shared() && attr.flags.bits() & NOT.bits() == 0
}

/// Whether the pin set is to lock memory that says `attr`, and has not yet.
#[inline]
pub fn is_pending(attr: Attr) -> bool {
    attr.pin.reason == Reason::Off || attr.pin == Column::TO_LOCK_NO_ACCESS
}

/// Whether memory that says `attr` is pinned, or nobody can access it and it is locked all the
/// same.
#[inline]
pub fn is_locked(attr: Attr) -> bool {
    attr.pin.held() || attr.pin == Column::LOCKED_NO_ACCESS
}

/// Whether the kernel has memory locked for the pin set's sake, and for nobody else's: it is
/// pinned, or nobody can access it and it is locked all the same.
#[inline]
pub fn has_our_lock(attr: Attr) -> bool {
    is_locked(attr) && !attr.flags.has(Flags::APP_LOCKED)
}

/// `attr` of memory that was locked on fault: it is pinned, or nobody can access it.
pub fn locked(attr: Attr) -> Attr {
    Attr {
        pin: match attr.prot.is_none() {
            true => Column::LOCKED_NO_ACCESS,
            false => Column::YES,
        },
        flags: attr.flags.with(Flags::ONFAULT),
        ..attr
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
        false => unlocked(attr),
    }
}

/// `attr` where memory without access has lost its lock, which is to come back.
pub fn unlocked(attr: Attr) -> Attr {
    match attr.pin {
        Column::LOCKED_NO_ACCESS => Attr {
            pin: Column::TO_LOCK_NO_ACCESS,
            flags: attr.flags.without(Flags::ONFAULT),
            ..attr
        },
        _ => attr,
    }
}

/// Whether `attr` is that of memory without access that could be locked all the same.
fn is_closed(attr: Attr) -> bool {
    attr.prot.is_none() && is_reserve(attr) && attr.pin.reason == Reason::NoAccess
}

/// `attr` of what the kernel has not unlocked.
pub fn still_locked(attr: Attr) -> Attr {
    match is_closed(attr) {
        true => Attr {
            pin: Column::LOCKED_NO_ACCESS,
            ..attr
        },
        false => attr,
    }
}

/// `attr` where memory without access, which may be locked, is to be looked at again.
pub fn doubted(attr: Attr) -> Attr {
    match is_closed(attr) {
        true => Attr {
            pin: Column::TO_LOCK_NO_ACCESS,
            flags: attr.flags.without(Flags::ONFAULT),
            ..attr
        },
        false => attr,
    }
}

/// `attr` of memory that has been unlocked and is to stay so: nobody can access it.
pub fn left_alone(attr: Attr) -> Attr {
    match attr.pin.reason == Reason::NoAccess && attr.pin != Column::no(Reason::NoAccess) {
        true => Attr {
            pin: Column::no(Reason::NoAccess),
            flags: attr.flags.without(Flags::ONFAULT),
            ..attr
        },
        false => attr,
    }
}

/// `attr` as if the pin set had said nothing of it yet.
pub fn unsettled(attr: Attr) -> Attr {
    let mut attr = unlocked(attr);
    if excluded(attr).is_none() {
        attr.pin.reason = Reason::Off;
        attr.pin.errno = 0;
        attr.flags = attr.flags.without(Flags::ONFAULT);
        if !attr.hca.held() {
            attr.hca = Column::no(Reason::Off);
        }
    }
    attr
}

/// Whether the pin set, set to `pin`, may have locked it: it says so, or is yet to say what becomes
/// of it, as behind a call that others did not wait for any longer.
pub fn may_be_locked(attr: Attr, pin: Pin) -> bool {
    let unsettled = attr.pin.reason == Reason::Off && excluded(attr).is_none();
    let doubtful = attr.pin == Column::TO_LOCK_NO_ACCESS;
    is_locked(attr) || pin != Pin::Off && (unsettled || doubtful)
}

/// `attr` of memory that has come to another address, or back: no domain holds it there.
pub fn unregistered(attr: Attr) -> Attr {
    Attr {
        hca: excluded(attr).unwrap_or(Column::no(Reason::Off)),
        ..attr
    }
}

/// `attr` with its columns as they are before any registrar has acted: what is
/// excluded says so, the rest says `off`, what is held stays held.
pub fn described(attr: Attr, pin: Pin) -> Attr {
    let mut attr = attr;
    let out = excluded(attr);
    let kept = [Reason::None, Reason::Limit, Reason::Refused, Reason::Scope];
    match out {
        Some(column) => {
            attr.pin = match attr.pin {
                _ if column.reason != Reason::NoAccess || !is_reserve(attr) => column,
                // Memory keeps its lock when it can't be accessed any longer.
                Column::YES => Column::LOCKED_NO_ACCESS,
                told if told.reason == Reason::NoAccess => told,
                _ => column,
            };
            // On demand, what can't be accessed may be registered.
            if !attr.hca.held() {
                attr.hca = column;
            }
        }
        None => {
            if pin == Pin::Off {
                attr.pin = Column::no(Reason::Off);
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
                wanted(attr(3, kind, flags), Pin::Populate, false),
                Want::OnFault
            );
        }
        assert_eq!(
            wanted(attr(3, Kind::Anon, Flags::EMPTY), Pin::Populate, true),
            Want::Populate
        );
    }

    #[test]
    fn a_lock_of_the_applications_is_never_on_fault() {
        let of = |flags| wanted(attr(3, Kind::Anon, flags), Pin::Auto, false);
        assert_eq!(of(Flags::EMPTY), Want::OnFault);
        assert_eq!(of(Flags::APP_LOCKED), Want::Populate);
        assert_eq!(of(Flags::APP_LOCKS), Want::OnFault);
    }

    #[test]
    fn a_lock_outlasts_access_until_it_is_let_go() {
        let mut open = attr(3, Kind::Anon, Flags::ONFAULT);
        open.pin = Column::YES;
        let closed = |a: Attr| {
            let prot = Prot::from_bits(0);
            described(Attr { prot, ..a }, Pin::Auto)
        };
        assert_eq!(closed(open).pin, Column::LOCKED_NO_ACCESS);
        assert_eq!(described(closed(open), Pin::Auto), closed(open));
        assert!(has_our_lock(closed(open)) && !closed(open).pin.held());
        let none = Column::no(Reason::NoAccess);
        assert_eq!(closed(released(open)).pin, none);
        for gone in [released(closed(open)), unsettled(closed(open))] {
            let to_come = (Column::TO_LOCK_NO_ACCESS, Flags::EMPTY);
            assert_eq!((gone.pin, gone.flags), to_come);
            // It may be locked until it has been unlocked.
            assert!(may_be_locked(gone, Pin::Auto) && is_pending(gone));
            assert_eq!(released(gone), gone);
            assert_eq!(still_locked(gone).pin, Column::LOCKED_NO_ACCESS);
            assert_eq!(left_alone(gone).pin, none);
        }
        let theirs = Attr {
            flags: Flags::APP_LOCKED.with(Flags::ONFAULT),
            ..open
        };
        assert!(!has_our_lock(closed(theirs)));
        assert_eq!(left_alone(closed(open)).pin, none);
        assert_eq!(doubted(left_alone(closed(open))), released(closed(open)));
        assert_eq!((doubted(open), still_locked(open)), (open, open));
        let stack = Attr {
            kind: Kind::ThreadStack,
            ..open
        };
        assert_eq!(closed(stack).pin, none);
        assert_eq!(closed(attr(0, Kind::Anon, Flags::EMPTY)).pin, none);
    }

    #[test]
    fn a_growing_stack_is_not_locked_under_a_limit() {
        let stack = attr(3, Kind::Stack, Flags::GROWSDOWN);
        assert_eq!(
            wanted(stack, Pin::Populate, true),
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
            described(attr(3, Kind::Anon, Flags::EMPTY), Pin::Off).reason(),
            Column::no(Reason::Off)
        );
    }
}
