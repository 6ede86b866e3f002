//! Whose turn it is: what is to be looked at belongs to users, each of whom may have made it take
//! long. Next is who will have had the least time behind it, so nobody takes another's, and what is
//! quickly done does not wait for what is not.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// What waits of a user's.
type Queue<T> = VecDeque<Waiting<T>>;
/// The time that a user will have had behind the next look, the time that it has had, and which one.
type User = (Duration, Duration, u32);

/// What waits.
struct Waiting<T> {
    /// From when on it can be looked at.
    due: Instant,
    /// How long that may take.
    cost: Duration,
    one: T,
}

/// What is not clear, and is to be looked at again.
pub struct Again<T> {
    /// So long later at the earliest.
    pub pause: Duration,
    /// How long that may take.
    pub cost: Duration,
    /// What it is.
    pub one: T,
}

/// What is to be looked at, by users. Of two who have had the same time, the lower number is first.
pub struct Turns<T> {
    /// When time is over; none: never.
    until: Option<Instant>,
    users: BTreeMap<User, Queue<T>>,
}

impl<T> Turns<T> {
    /// Takes in what is to be looked at, with its user and how long that may take.
    pub fn new(all: impl IntoIterator<Item = (u32, Duration, T)>, until: Option<Instant>) -> Self {
        let (due, mut users) = (Instant::now(), BTreeMap::new());
        for (user, cost, one) in all {
            let waiting: &mut Queue<T> = users.entry(user).or_default();
            waiting.push_back(Waiting { due, cost, one });
        }
        let mut turns = Self {
            until,
            users: BTreeMap::new(),
        };
        for (user, mut waiting) in users {
            waiting.make_contiguous().sort_by_key(|w| w.cost);
            turns.wait(Duration::ZERO, user, waiting);
        }
        turns
    }

    fn wait(&mut self, spent: Duration, user: u32, waiting: Queue<T>) {
        if let Some(first) = waiting.front() {
            let after = spent + first.cost;
            self.users.insert((after, spent, user), waiting);
        }
    }

    /// Sets when time is over, unless that is known.
    pub fn end_by(&mut self, until: Instant) {
        self.until.get_or_insert(until);
    }

    /// Calls `look` for one after another, as long as there is time.
    pub fn each<E>(
        &mut self,
        mut look: impl FnMut(&mut Self, u32, T) -> Result<Option<Again<T>>, E>,
    ) -> Result<(), E> {
        while let Some(((_, spent, user), mut waiting)) = self.next() {
            let began = Instant::now();
            if let Some(Waiting { one, .. }) = waiting.pop_front() {
                if let Some(Again { pause, cost, one }) = look(self, user, one)? {
                    let due = Instant::now() + pause;
                    waiting.push_back(Waiting { due, cost, one });
                }
            }
            self.wait(spent + began.elapsed(), user, waiting);
        }
        Ok(())
    }

    /// Takes out what came last of a user's.
    pub fn take_last(&mut self, user: u32) -> Option<T> {
        let mut all = self.users.keys();
        let key = *all.find(|(.., one)| *one == user)?;
        let mut waiting = self.users.remove(&key)?;
        let last = waiting.pop_back();
        let (_, spent, _) = key;
        self.wait(spent, user, waiting);
        last.map(|last| last.one)
    }

    /// Returns what has had no turn, or is not clear yet.
    pub fn left(self) -> impl Iterator<Item = (u32, T)> {
        let all = self.users.into_iter();
        all.flat_map(|((.., user), all)| all.into_iter().map(move |w| (user, w.one)))
    }

    /// Takes out who is next, and waits until it is his turn.
    fn next(&mut self) -> Option<(User, Queue<T>)> {
        loop {
            let now = Instant::now();
            if self.until.is_some_and(|until| now >= until) {
                return None;
            }
            let due = |waiting: &Queue<T>| waiting.front().map(|first| first.due);
            let ready = |due: Option<Instant>| due.is_some_and(|due| due <= now);
            let mut all = self.users.iter();
            let first = all.find(|(_, waiting)| ready(due(waiting)));
            if let Some(first) = first.map(|(first, _)| *first) {
                return self.users.remove_entry(&first);
            }
            let first = self.users.values().filter_map(due).min()?;
            let until = self.until.map_or(first, |until| first.min(until));
            std::thread::sleep(until.saturating_duration_since(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    const SLOW: Duration = Duration::from_millis(4);

    /// Users 1 to 50 have 20 things each that take long, user 99 has as many that do not. Returns
    /// whose there was time for, with time for so many slow ones.
    fn had_time(cost: Duration, slow: u32) -> Vec<u32> {
        let all = (0..1000).map(|n| (n % 50 + 1, cost, true));
        let all = all.chain((0..20).map(|_| (99, Duration::ZERO, false)));
        let mut turns = Turns::new(all, Some(Instant::now() + slow * SLOW));
        let mut seen = Vec::new();
        let done: Result<(), Infallible> = turns.each(|_, user, slow| {
            if slow {
                std::thread::sleep(SLOW);
            }
            seen.push(user);
            Ok(None)
        });
        done.unwrap();
        assert_eq!(turns.left().count() + seen.len(), 1020);
        seen
    }

    fn of_the_quick(seen: &[u32]) -> usize {
        seen.iter().filter(|user| **user == 99).count()
    }

    #[test]
    fn nobody_takes_anothers_time() {
        let seen = had_time(Duration::ZERO, 400);
        // (At their first turns nothing is known of them.)
        assert_eq!(of_the_quick(&seen), 20);
        assert!(seen.len() < 420, "{}", seen.len());
    }

    /// There is no time for one look at each user's.
    #[test]
    fn what_is_quickly_done_waits_for_nobody() {
        let seen = had_time(SLOW, 10);
        assert_eq!(of_the_quick(&seen), 20);
        assert!(seen.len() <= 30, "{}", seen.len());
    }

    #[test]
    fn what_is_not_clear_is_looked_at_again() {
        let all = [(1, Duration::ZERO, 3), (2, Duration::ZERO, 1)];
        let mut turns = Turns::new(all, None);
        let mut looks = Vec::new();
        let done: Result<(), Infallible> = turns.each(|turns, user, n| {
            looks.push((user, n));
            turns.end_by(Instant::now() + Duration::from_secs(60));
            Ok((n > 1).then(|| Again {
                pause: Duration::from_millis(1),
                cost: Duration::ZERO,
                one: n - 1,
            }))
        });
        done.unwrap();
        assert_eq!(looks.len(), 4);
        assert_eq!((looks[0], looks[1], looks[3]), ((1, 3), (2, 1), (1, 1)));
        assert_eq!(turns.left().count(), 0);
    }

    #[test]
    fn without_an_end_all_have_a_turn() {
        let all = (0..30).map(|n| (n % 3, Duration::ZERO, n));
        let mut turns = Turns::new(all, None);
        assert_eq!(turns.take_last(2), Some(29));
        let mut looks = 0;
        let done: Result<(), Infallible> = turns.each(|_, _, _| {
            looks += 1;
            Ok(None)
        });
        done.unwrap();
        assert_eq!(looks, 29);
    }
}
