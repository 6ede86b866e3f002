//! Who is served where more want to be than there are places: whoever has said nothing that
//! gets it served makes room, then who asks for nothing, and then who has more than its share.

/// Places that there are.
pub const PLACES: usize = 256;
/// Places that a process keeps, if it asks for something now and then, though another has fewer.
const SHARE: usize = PLACES / 4;

/// How long a place is kept for who has not asked for anything yet, in nanoseconds.
const QUIET: u64 = 1_000_000_000;
/// How long a place is kept for who asks for nothing more, in nanoseconds. Its peer connects anew.
const IDLE: u64 = 20_000_000;

/// Who has a place.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    /// The process.
    pub pid: u32,
    /// Whether it has asked for something behind its greeting.
    pub introduced: bool,
    /// For how long it has asked for nothing, in nanoseconds; since it connected, if it has not
    /// greeted.
    pub quiet: u64,
}

/// Which of `guests`, each with its place, makes room for one more of the process `pid`. `None` of
/// `pid`: for whoever comes. `None`: nobody does.
pub fn who_goes(
    guests: impl Iterator<Item = (usize, Guest)> + Clone,
    pid: Option<u32>,
) -> Option<usize> {
    let places_of = |pid| guests.clone().filter(|(_, g)| g.pid == pid).count();
    let wanted = pid.map_or(0, places_of);
    let rated = guests.clone().filter_map(|(place, guest)| {
        let has = || places_of(guest.pid);
        let (rank, has) = match guest.introduced {
            false if guest.quiet >= QUIET => (2, has()),
            true if guest.quiet >= IDLE && has() >= wanted => (1, has()),
            _ if pid.is_some() && has() > SHARE.max(wanted + 1) => (0, has()),
            _ => return None,
        };
        Some(((rank, has, guest.quiet), place))
    });
    rated.max().map(|(_, place)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(pid: u32, introduced: bool, quiet: u64) -> Guest {
        Guest {
            pid,
            introduced,
            quiet,
        }
    }

    fn goes(guests: &[Guest], pid: u32) -> Option<usize> {
        who_goes(guests.iter().copied().enumerate(), Some(pid))
    }

    #[test]
    fn one_process_does_not_keep_another_out() {
        // Whatever it does with its connections.
        for introduced in [false, true] {
            let mut all = [guest(1, introduced, 5); PLACES];
            all[7].quiet = 6;
            assert_eq!(goes(&all, 2), Some(7));
            // It gets no more by coming again.
            assert_eq!(goes(&all, 1), None);
        }
        // The other one gets as many as leave the first its share.
        let mut all = [guest(1, true, 5); PLACES];
        for _ in 0..2 * PLACES {
            if let Some(place) = goes(&all, 2) {
                all[place] = guest(2, true, 0);
            }
        }
        let second = all.iter().filter(|g| g.pid == 2).count();
        assert_eq!(second, PLACES / 2);
    }

    #[test]
    fn who_is_silent_goes_first() {
        let mut all: Vec<Guest> = (0..PLACES as u32).map(|pid| guest(pid, true, 10)).collect();
        // All of them are at work.
        assert_eq!(goes(&all, 999), None);
        all[3] = guest(3, true, IDLE);
        assert_eq!(goes(&all, 999), Some(3));
        // Not for one that has more already.
        all[0] = guest(1, true, 0);
        assert_eq!(goes(&all, 1), None);
        all[4] = guest(4, false, QUIET + 1);
        all[5] = guest(5, false, QUIET - 1);
        for pid in [999, 1] {
            assert_eq!(goes(&all, pid), Some(4));
        }
    }

    #[test]
    fn processes_keep_a_share() {
        let mut all: Vec<Guest> = (0..PLACES as u32).map(|n| guest(n / 2, true, 10)).collect();
        assert_eq!(goes(&all, 999), None);
        for guest in all.iter_mut().take(SHARE + 1) {
            guest.pid = 7;
        }
        all[9].quiet = 11;
        assert_eq!(goes(&all, 999), Some(9));
    }

    #[test]
    fn whoever_comes_has_the_place_of_who_is_quiet() {
        let any = |all: &[Guest]| who_goes(all.iter().copied().enumerate(), None);
        let mut all = [guest(1, true, 5); 8];
        assert_eq!(any(&all), None);
        all[2].quiet = IDLE;
        assert_eq!(any(&all), Some(2));
        all[6] = guest(2, false, QUIET);
        assert_eq!(any(&all), Some(6));
    }
}
