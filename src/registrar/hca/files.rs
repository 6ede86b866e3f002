//! Domains of protection domains that are known by an open file and the kernel's handle, since no
//! `struct ibv_pd` has been seen: requests that come by ioctl.

use super::{Domain, DomainId, Hca, Owner, State, NO_PD, PDS};
use crate::uverbs::{Driver, PdHandle};
use core::sync::atomic::Ordering::Release;

/// Set in what stands for an address in an [`Owner`] that has none: no address of a program has it.
const BY_FILE: u64 = 1 << 63;

/// The number of an open file of a device, from 1. Files are told apart by `track::tags`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct FileId(u32);

impl FileId {
    /// No file is known.
    pub const NONE: Self = Self(0);

    /// What [`FileId::get`] has given, or a new number.
    pub const fn from_raw(n: u32) -> Self {
        Self(n)
    }

    /// The number, to be kept.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Owner {
    /// Of the protection domain with this handle in an open file.
    pub const fn of_file(FileId(file): FileId, PdHandle(pd): PdHandle) -> Self {
        Self {
            pd: BY_FILE | (file as u64) << 32 | pd as u64,
            context: BY_FILE | file as u64,
        }
    }

    /// Whether it is one of those.
    pub const fn is_of_file(&self) -> bool {
        self.pd & BY_FILE != 0 && self.pd != NO_PD
    }

    /// The file, of those.
    pub const fn file(&self) -> FileId {
        match self.is_of_file() {
            true => FileId(self.context as u32),
            false => FileId::NONE,
        }
    }
}

impl Domain {
    /// Whether it is of the protection domain with this handle in an open file.
    pub fn is_of(&self, file: FileId, pd: PdHandle) -> bool {
        self.is_in(file) && self.device.is_some_and(|x| x.pd == pd)
    }

    /// Whether its protection domain is in that file.
    pub fn is_in(&self, file: FileId) -> bool {
        file != FileId::NONE && self.device.is_some_and(|x| x.file == file)
    }
}

impl Hca {
    /// Whose the domains of a protection domain in an open file are, and by which driver.
    pub fn owner_of(&self, file: FileId, pd: PdHandle) -> Option<(Owner, Driver)> {
        let mut all = self.used().iter();
        let found = all.find(|x| x.state == State::Alive && x.is_of(file, pd))?;
        Some((found.owner, found.device?.hint.driver()))
    }

    /// Domain `d` is `owner`'s from now on, which stands for the same protection domain.
    pub fn rename(&mut self, d: DomainId, owner: Owner) {
        let Some(domain) = self.domain_mut(d) else {
            return;
        };
        domain.owner = owner;
        let shown = if domain.rotates { NO_PD } else { owner.pd };
        if let Some(pd) = PDS.get(d.index()) {
            pd.store(shown, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_by_file_is_no_address() {
        let owner = Owner::of_file(FileId(7), PdHandle(u32::MAX));
        assert!(owner.is_of_file());
        assert_eq!(owner.file(), FileId(7));
        let other = Owner::of_file(FileId(8), PdHandle(u32::MAX));
        assert!(owner.pd != other.pd && owner.context != other.context);
        let plain = Owner {
            pd: 0x7fff_ffff_f000,
            context: 0x7fff_ffff_0000,
        };
        assert!(!plain.is_of_file());
        assert_eq!(plain.file(), FileId::NONE);
    }
}
