//! Whether fork leaves registered memory to its parent.
//!
//! From Linux 5.12 on, fork copies pages that an adapter has pinned, so that the parent keeps
//! the ones that the adapter reaches. Before that both share them, and whoever writes first gets
//! a copy: if that is the parent, the adapter goes on with pages that it does not have any more.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use regall_sys::{netlink, Errno};

/// The first release whose fork copies (major, minor).
const COPIES: (u32, u32) = (5, 12);

/// `NETLINK_RDMA`.
const PROTOCOL: i32 = 20;
/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SYS_GET)`.
const SYS_GET: u16 = 5 << 10 | 6;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK`: one byte.
const COPY_ON_FORK: u16 = 93;
/// Bytes of a `struct nlmsghdr`, and of a `struct nlattr` without what it holds.
const HEAD: usize = 16;
const ATTRIBUTE: usize = 4;

/// Whether this kernel's fork copies what is registered: by its release, or, where an older one
/// has it backported, by what its RDMA subsystem says. False where nobody says.
pub fn copies() -> bool {
    /// 0: not asked yet; 1: no; 2: yes.
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    match KNOWN.load(Relaxed) {
        0 => {
            let said = match regall_sys::is_since(regall_sys::release().as_bytes(), COPIES) {
                true => Some(true),
                false => says_so(),
            };
            if let Some(copies) = said {
                KNOWN.store(1 + u8::from(copies), Relaxed);
            }
            said.unwrap_or(false)
        }
        known => known == 2,
    }
}

/// Asks the kernel's RDMA subsystem. `None`: it could not be asked this time.
fn says_so() -> Option<bool> {
    let mut question = [0u8; HEAD];
    let (len, rest) = question.split_at_mut(4);
    len.copy_from_slice(&(HEAD as u32).to_ne_bytes());
    let (kind, rest) = rest.split_at_mut(2);
    kind.copy_from_slice(&SYS_GET.to_ne_bytes());
    if let Some(flags) = rest.first_chunk_mut::<2>() {
        *flags = REQUEST.to_ne_bytes();
    }
    let mut answer = [0u8; 512];
    match netlink::ask(PROTOCOL, &question, &mut answer) {
        Ok(bytes) => answer.get(..bytes).map(is_yes),
        Err(Errno::PROTONOSUPPORT | Errno::PERM | Errno::ACCES) => Some(false),
        Err(_) => None,
    }
}

/// Whether a message of the kernel's says that fork copies.
fn is_yes(message: &[u8]) -> bool {
    let kind = message.get(4..6).and_then(|b| b.first_chunk());
    if kind.map(|k| u16::from_ne_bytes(*k)) != Some(SYS_GET) {
        return false;
    }
    let mut rest = message.get(HEAD..).unwrap_or(&[]);
    while let [len_low, len_high, kind_low, kind_high, value, ..] = *rest {
        let len = usize::from(u16::from_ne_bytes([len_low, len_high]));
        if u16::from_ne_bytes([kind_low, kind_high]) == COPY_ON_FORK {
            return len > ATTRIBUTE && value != 0;
        }
        let next = len.max(ATTRIBUTE).next_multiple_of(4);
        rest = rest.get(next..).unwrap_or(&[]);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        for recent in ["5.12.0", "5.19.0-rc1", "6.1.0-28-amd64", "10.0"] {
            assert!(regall_sys::is_since(recent.as_bytes(), COPIES), "{recent}");
        }
        for old in ["5.11.22", "4.18.0-553.el8", "2.6.61", "", "linux", "6"] {
            assert!(!regall_sys::is_since(old.as_bytes(), COPIES), "{old}");
        }
    }

    /// A message of `kind` with these attributes: type, value.
    fn message(kind: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut all = vec![0; HEAD];
        all[4..6].copy_from_slice(&kind.to_ne_bytes());
        for (kind, value) in attributes {
            all.extend((ATTRIBUTE as u16 + value.len() as u16).to_ne_bytes());
            all.extend(kind.to_ne_bytes());
            all.extend(*value);
            all.resize(all.len().next_multiple_of(4), 0);
        }
        all
    }

    #[test]
    fn answers() {
        let mode: (u16, &[u8]) = (79, &[1]);
        assert!(is_yes(&message(SYS_GET, &[mode, (COPY_ON_FORK, &[1])])));
        assert!(!is_yes(&message(SYS_GET, &[mode, (COPY_ON_FORK, &[0])])));
        assert!(!is_yes(&message(SYS_GET, &[mode])));
        assert!(!is_yes(&message(SYS_GET, &[mode, (COPY_ON_FORK, &[])])));
        // An error, and what is cut.
        assert!(!is_yes(&message(2, &[(COPY_ON_FORK, &[1])])));
        let whole = message(SYS_GET, &[mode, (COPY_ON_FORK, &[1])]);
        for cut in 0..whole.len() - 4 {
            assert!(!is_yes(&whole[..cut]), "{cut}");
        }
        // A length that leads nowhere.
        assert!(!is_yes(&[&whole[..HEAD], &[0; 64]].concat()));
    }
}
