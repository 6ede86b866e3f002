//! Which of all processes a command is about, in the same words for each.

use std::fs;

use crate::launched::Launched;
use crate::users;

/// Leaves out all processes but some.
#[derive(clap::Args, Clone, Default)]
pub struct Wanted {
    /// Only the processes of this user, by name or number
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Only the processes of this batch job
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Only processes whose pid, name, state or rank=N has all of these words
    #[arg(long, value_name = "WORDS", default_value = "")]
    filter: String,
}

impl Wanted {
    /// Returns whose processes are meant; none: everybody's.
    pub fn user(&self) -> anyhow::Result<Option<u32>> {
        self.user.as_deref().map(users::number).transpose()
    }

    /// Returns whether a process is of the job that is meant.
    pub fn is_of_job(&self, launched: &Launched) -> bool {
        self.job.is_none() || self.job == launched.job
    }

    /// The words of the filter.
    pub fn filter(&self) -> &str {
        &self.filter
    }

    /// Returns whether a process is meant, if it is of the user that is.
    pub fn admits(&self, pid: u32) -> bool {
        if self.job.is_none() && self.filter.is_empty() {
            return true;
        }
        let launched = Launched::of(pid);
        let name = || {
            let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let name = exe.file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        };
        self.is_of_job(&launched)
            && fits(
                &self.filter,
                pid,
                &name(),
                launched.activity(),
                launched.rank,
            )
    }
}

/// Returns whether all words are in a process's pid, name, state or rank.
pub fn fits(words: &str, pid: u32, name: &str, state: &str, rank: Option<u64>) -> bool {
    let rank = rank.map_or(String::new(), |r| format!("rank={r}"));
    let text = format!("{pid} {name} {state} {rank}").to_lowercase();
    let words = words.to_lowercase();
    words.split_whitespace().all(|word| text.contains(word))
}
