//! `regall verify --all`: a look at all processes, once or again and again.

use std::io::Write;

use regall_reader::Seen;

use crate::answer::{not_seen, vanished, Answers, Question, Users};
use crate::complain;
use crate::examine::examine_all;

/// One look at all processes.
pub struct Round {
    /// What became clear of each user's.
    pub users: Users,
    /// Those that were there, and the exit code of each.
    pub found: Vec<(Seen, u8)>,
    /// Of these users, how many more can't be seen from here.
    pub unseen: Vec<(u32, usize)>,
}

impl Round {
    /// Looks at `all`.
    pub fn of(
        asked: &Question,
        all: &[Seen],
        answers: &mut Answers,
        out: &mut impl Write,
    ) -> anyhow::Result<Self> {
        let (mut users, mut found) = (Users::default(), Vec::new());
        examine_all(all, asked.strict, |seen, verdict| {
            if !vanished(verdict) {
                let code = answers.report(seen.pid, Some(seen.uid), verdict, out)?;
                users.add(seen.uid, code);
                found.push((*seen, code));
            }
            Ok(())
        })?;
        let unseen = asked.unseen()?;
        users.add_unseen(&unseen);
        Ok(Self {
            users,
            found,
            unseen,
        })
    }

    /// Says whose processes can't be seen.
    pub fn complain_of_unseen(&self) {
        let all = self.unseen.iter();
        all.for_each(|(uid, n)| complain(&not_seen(*uid, *n)));
    }
}
