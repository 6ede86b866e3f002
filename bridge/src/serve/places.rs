//! Who is served where more want to be than there are places: whoever has said nothing that
//! gets it served makes room, then who asks for nothing, and then who has more than its share.

/// Places of processes of the owner's user.
pub const OWN: usize = 256;
/// Places of other users' processes.
pub const OTHERS: usize = 32;
/// All of them.
pub const PLACES: usize = OWN + OTHERS;

/// How long a place is kept for who asks for nothing, in nanoseconds.
pub const QUIET: u64 = 1_000_000_000;

/// Whose a place is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Party {
    /// A process of the owner's user: its pid.
    Process(u32),
    /// Another user, with all its processes.
    User(u32),
}

impl Party {
    /// Places that there are for parties like this one.
    pub fn places(self) -> usize {
        match self {
            Self::Process(_) => OWN,
            Self::User(_) => OTHERS,
        }
    }

    /// Places that it keeps, if it asks for something now and then, though another has fewer. An
    /// own process keeps its connection; another user's has one as long as it copies.
    fn share(self) -> usize {
        match self {
            Self::Process(_) => OWN / 4,
            Self::User(_) => 1,
        }
    }

    /// Whether they share places.
    pub fn is_like(self, other: Self) -> bool {
        self.places() == other.places()
    }
}

/// Who has a place.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    /// Whose it is.
    pub party: Party,
    /// Whether it has said what it must before it can ask for bytes.
    pub introduced: bool,
    /// For how long it has asked for nothing, in nanoseconds; since it connected, if it is not
    /// introduced.
    pub quiet: u64,
}

/// Which of `guests`, each with its place, makes room for one more of `party`. `None` of `party`:
/// whoever comes. `None`: nobody does.
pub fn who_goes(
    guests: impl Iterator<Item = (usize, Guest)> + Clone,
    party: Option<Party>,
) -> Option<usize> {
    let places_of = |party| guests.clone().filter(|(_, g)| g.party == party).count();
    let wanted = party.map_or(0, places_of);
    let rated = guests.clone().filter_map(|(place, guest)| {
        let (has, quiet) = (places_of(guest.party), guest.quiet >= QUIET);
        let rank = match guest.introduced {
            false if quiet => 2,
            true if quiet && has >= wanted => 1,
            _ if party.is_some() && has > guest.party.share() && has >= wanted + 2 => 0,
            _ => return None,
        };
        Some(((rank, has, guest.quiet), place))
    });
    rated.max().map(|(_, place)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = QUIET;

    fn guest(party: Party, introduced: bool, quiet: u64) -> Guest {
        Guest {
            party,
            introduced,
            quiet,
        }
    }

    fn goes(guests: &[Guest], party: Party) -> Option<usize> {
        who_goes(guests.iter().copied().enumerate(), Some(party))
    }

    #[test]
    fn one_user_does_not_keep_another_out() {
        // Whatever it does with its connections.
        for introduced in [false, true] {
            let mut all = [guest(Party::User(1), introduced, 5); OTHERS];
            all[7].quiet = 6;
            assert_eq!(goes(&all, Party::User(2)), Some(7));
            // It gets no more by coming again.
            assert_eq!(goes(&all, Party::User(1)), None);
        }
        // Each gets as many as any other, and not more.
        let mut all: Vec<Guest> = vec![guest(Party::User(1), true, 5); OTHERS];
        for _ in 0..100 {
            if let Some(place) = goes(&all, Party::User(2)) {
                all[place] = guest(Party::User(2), true, 0);
            }
        }
        let second = all.iter().filter(|g| g.party == Party::User(2)).count();
        assert_eq!(second, OTHERS / 2);
    }

    #[test]
    fn who_is_silent_goes_first() {
        let own = |pid, introduced, quiet| guest(Party::Process(pid), introduced, quiet);
        let mut all: Vec<Guest> = (0..OWN as u32).map(|pid| own(pid, true, 10)).collect();
        // All of them are at work.
        assert_eq!(goes(&all, Party::Process(999)), None);
        all[3] = own(3, true, SECOND);
        assert_eq!(goes(&all, Party::Process(999)), Some(3));
        // Not for one that has more already.
        all[0] = own(1, true, 0);
        assert_eq!(goes(&all, Party::Process(1)), None);
        all[4] = own(4, false, SECOND + 1);
        all[5] = own(5, false, SECOND - 1);
        for pid in [999, 1] {
            assert_eq!(goes(&all, Party::Process(pid)), Some(4));
        }
    }

    #[test]
    fn processes_keep_a_share() {
        let pair = |n| guest(Party::Process(n / 2), true, 10);
        let all: Vec<Guest> = (0..OWN as u32).map(pair).collect();
        assert_eq!(goes(&all, Party::Process(999)), None);
        let mut all = all;
        for guest in all.iter_mut().take(OWN / 4 + 1) {
            guest.party = Party::Process(7);
        }
        all[9].quiet = 11;
        assert_eq!(goes(&all, Party::Process(999)), Some(9));
    }

    #[test]
    fn whoever_comes_has_the_place_of_who_is_quiet() {
        let any = |all: &[Guest]| who_goes(all.iter().copied().enumerate(), None);
        let mut all = [guest(Party::User(1), true, 5); 8];
        assert_eq!(any(&all), None);
        all[2].quiet = SECOND;
        assert_eq!(any(&all), Some(2));
        all[6] = guest(Party::Process(1), false, SECOND);
        assert_eq!(any(&all), Some(6));
    }
}
