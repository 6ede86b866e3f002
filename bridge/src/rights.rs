//! Who may reach a process's memory by its helper: whom the kernel's ptrace_may_access(9) would
//! let at it, as far as that goes by credentials. The one place where that is decided; the text
//! is in SECURITY.md.

use regall_directory::planted;
use regall_sys::credentials::{Credentials, Namespace};

/// The process that is reached.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The process's credentials.
    pub credentials: Credentials,
    /// The process's user namespace. `None`: it can't be told.
    pub namespace: Option<Namespace>,
    /// Whether its capabilities are worth nothing outside its user namespace, and there nothing
    /// that its user does not have anyway: the namespace is its user's own.
    pub confined: bool,
}

/// Who wants to reach it.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Effective user and group at the time at which it connected (SO_PEERCRED).
    pub connected: (u32, u32),
    /// The peer's credentials since. `None`: they can't be had (it is in another pid namespace).
    pub credentials: Option<Credentials>,
    /// The peer's user namespace. `None`: it is not proven which one.
    pub namespace: Option<Namespace>,
}

/// Whether a process with these credentials lends its memory to others of its user at all: all
/// its users are one, and all its groups, and it can do nothing that others of its user can't.
/// (That root has capabilities is of its user; see [`may_reach`] for who has fewer.)
pub fn lends(own: &Credentials) -> bool {
    own.agree() && own.ambient == 0 && (own.uid() == 0 || own.permitted == 0)
}

/// Whether `caller` may reach `owner`: its real and effective users and groups are all six of
/// the owner's; and it has the owner's capabilities, in the same user namespace, unless those
/// are worth nothing to it.
pub fn may_reach(owner: &Owner, caller: &Caller) -> bool {
    let own = &owner.credentials;
    let ids = |uid: u32, gid: u32| {
        let group = own.gids.iter().take(3).all(|id| *id == gid);
        let user = own.uids.iter().take(3).all(|id| *id == uid);
        user && planted!("any-group", true, group)
    };
    let (uid, gid) = caller.connected;
    let same = |c: &Credentials| ids(c.uids[0], c.gids[0]) && ids(c.uids[1], c.gids[1]);
    // Who has an effective id can make it the real one: where the latter can't be had, the
    // former does.
    if !ids(uid, gid) || !caller.credentials.as_ref().is_none_or(same) {
        return false;
    }
    let together = owner.namespace.is_some() && owner.namespace == caller.namespace;
    let no_fewer = |c: &Credentials| own.permitted & !c.permitted == 0;
    match (own.permitted, together) {
        (0, _) => true,
        (_, true) => caller.credentials.as_ref().is_some_and(no_fewer),
        (_, false) => owner.confined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Option<Namespace> = Some((4, 1));
    const ELSEWHERE: Option<Namespace> = Some((4, 2));

    fn of(uid: u32, gid: u32, permitted: u64) -> Credentials {
        Credentials {
            uids: [uid; 4],
            gids: [gid; 4],
            permitted,
            ..Credentials::default()
        }
    }

    fn owner(credentials: Credentials) -> Owner {
        Owner {
            credentials,
            namespace: HERE,
            confined: false,
        }
    }

    fn caller(credentials: Credentials) -> Caller {
        Caller {
            connected: (credentials.uid(), credentials.gid()),
            credentials: Some(credentials),
            namespace: HERE,
        }
    }

    #[test]
    fn all_six_ids_are_the_callers() {
        let user = of(1000, 100, 0);
        assert!(may_reach(&owner(user), &caller(user)));
        assert!(!may_reach(&owner(user), &caller(of(1001, 100, 0))));
        assert!(!may_reach(&owner(user), &caller(of(1000, 101, 0))));
        for n in 0..3 {
            let (mut other, mut group) = (user, user);
            (other.uids[n], group.gids[n]) = (0, 0);
            assert!(!may_reach(&owner(other), &caller(user)), "user {n}");
            assert!(!may_reach(&owner(group), &caller(user)), "group {n}");
        }
        // Of the caller's, the saved ones say nothing.
        for (n, reaches) in [(0, false), (1, false), (2, true)] {
            let (mut other, mut group) = (user, user);
            (other.uids[n], group.gids[n]) = (0, 0);
            let connected = (1000, 100);
            for credentials in [other, group] {
                let it = Caller {
                    connected,
                    ..caller(credentials)
                };
                assert_eq!(may_reach(&owner(user), &it), reaches, "{n}");
            }
        }
        // It has become somebody else since it connected, or was before.
        let changed = Caller {
            connected: (1001, 100),
            ..caller(user)
        };
        assert!(!may_reach(&owner(user), &changed));
    }

    #[test]
    fn capabilities_are_no_fewer_and_count_in_one_namespace() {
        let (none, some, more) = (of(0, 0, 0), of(0, 0, 3), of(0, 0, 7));
        assert!(may_reach(&owner(some), &caller(some)));
        assert!(may_reach(&owner(some), &caller(more)));
        assert!(may_reach(&owner(none), &caller(none)));
        assert!(!may_reach(&owner(some), &caller(none)));
        assert!(!may_reach(&owner(more), &caller(some)));
        for namespace in [ELSEWHERE, None] {
            let more = Caller {
                namespace,
                ..caller(more)
            };
            assert!(!may_reach(&owner(some), &more));
            assert!(may_reach(&owner(none), &more));
        }
        let unknown = Owner {
            namespace: None,
            ..owner(some)
        };
        let nobody_knows = Caller {
            namespace: None,
            ..caller(more)
        };
        assert!(!may_reach(&unknown, &nobody_knows));
    }

    #[test]
    fn who_can_not_be_looked_at_reaches_who_has_no_capabilities() {
        let unseen = |uid| Caller {
            connected: (uid, uid),
            credentials: None,
            namespace: None,
        };
        assert!(may_reach(&owner(of(7, 7, 0)), &unseen(7)));
        assert!(!may_reach(&owner(of(7, 7, 0)), &unseen(8)));
        assert!(!may_reach(&owner(of(0, 0, 1)), &unseen(0)));
    }

    #[test]
    fn capabilities_of_ones_own_namespace_bar_nobody_outside_it() {
        let apart = Owner {
            confined: true,
            ..owner(of(0, 0, 3))
        };
        let outside = |namespace| Caller {
            namespace,
            ..caller(of(0, 0, 0))
        };
        assert!(may_reach(&apart, &outside(ELSEWHERE)) && may_reach(&apart, &outside(None)));
        assert!(!may_reach(&apart, &outside(HERE)));
    }

    #[test]
    fn who_has_more_than_its_user_lends_nothing() {
        assert!(lends(&of(1000, 100, 0)) && lends(&of(0, 0, u64::MAX)));
        assert!(!lends(&of(1000, 100, 2)));
        let ambient = Credentials {
            ambient: 2,
            ..of(0, 0, 2)
        };
        assert!(!lends(&ambient));
        for n in 0..4 {
            let (mut user, mut group) = (of(1000, 100, 0), of(1000, 100, 0));
            (user.uids[n], group.gids[n]) = (0, 0);
            assert!(!lends(&user) && !lends(&group), "{n}");
        }
    }
}
