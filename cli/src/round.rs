//! `regall verify --all`: a look at all processes, once or again and again.

use std::io::Write;
use std::time::{Duration, Instant};

use regall_reader::{self as reader, Search, Seen};

use crate::answer::{vanished, Answers, Blind, Question, Users};
use crate::examine::{examine_all, PATIENCE};
use crate::output::complain;
use crate::wanted::Wanted;

/// So long processes are searched for before those that were found are looked at.
const SEARCH: Duration = Duration::from_secs(2);
/// ... and so long for those that can't be seen.
const UNSEEN: Duration = Duration::from_millis(500);

/// When a look at all processes is to be over. Who asks for one user's has asked for the time that
/// they take, and others take none.
pub struct Time<'a> {
    began: Instant,
    user: Option<u32>,
    wanted: &'a Wanted,
}

impl<'a> Time<'a> {
    /// Of a look that begins now.
    pub fn of(asked: &'a Question) -> anyhow::Result<Self> {
        Ok(Self {
            user: asked.wanted.user()?,
            wanted: &asked.wanted,
            began: Instant::now(),
        })
    }

    /// The processes that `--all` means, as of now.
    pub fn search(&self) -> anyhow::Result<Search> {
        let mut found = reader::search(self.user, self.at(SEARCH))?;
        found.seen.retain(|seen| self.wanted.admits(seen.pid));
        Ok(found)
    }

    /// (Whoever is not root finds his own alone.)
    fn at(&self, later: Duration) -> Option<Instant> {
        let everybodys = self.user.is_none() && rustix::process::geteuid().is_root();
        everybodys.then(|| self.began + later)
    }
}

/// One look at all processes.
pub struct Round {
    /// What became clear of each user's.
    pub users: Users,
    /// Those that were there, and the exit code of each.
    pub found: Vec<(Seen, u8)>,
    /// Those that nothing was looked at of.
    pub blind: Blind,
}

impl Round {
    /// Looks at what was found.
    pub fn of(
        asked: &Question,
        time: &Time,
        search: Search,
        answers: &mut Answers,
        out: &mut impl Write,
    ) -> anyhow::Result<Self> {
        let (mut users, mut found) = (Users::default(), Vec::new());
        let blind = Blind {
            unseen: reader::unseen(time.user, time.at(SEARCH + UNSEEN)),
            left: search.left,
        };
        examine_all(
            &search.seen,
            asked.strict,
            time.at(PATIENCE),
            |seen, verdict| {
                if !vanished(verdict) {
                    let code = answers.report(seen.pid, Some(seen.uid), verdict, out)?;
                    users.add(seen.uid, code);
                    found.push((*seen, code));
                }
                Ok(())
            },
        )?;
        users.add_blind(&blind);
        Ok(Self {
            users,
            found,
            blind,
        })
    }

    /// Says whose processes were not looked at.
    pub fn complain_of_blind(&self) {
        self.blind.lines().iter().for_each(|line| complain(line));
    }
}
