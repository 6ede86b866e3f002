//! How much is taken from files of other users that lie in folders. Whoever fills a folder decides
//! what is in it, but not how much memory this command takes for that.

use std::collections::BTreeMap;

use anyhow::bail;
use regall_documents::Kind;

/// Files, at the most ...
const MOST_FILES: usize = 8192;
/// ... bytes of each ...
const LONGEST: u64 = 256 << 10;
/// ... and of all.
const MOST_BYTES: u64 = 64 << 20;
/// Processes that they tell of.
const MOST_PROCESSES: u64 = 8192;
/// Bytes of text that is kept, each once.
const MOST_TEXT: usize = 8 << 20;
/// Bytes that a text takes beside its own.
const A_TEXT: usize = 48;

/// What is said of files beyond that.
pub const TOO_MANY: &str = "left out: more of another user's than 8,192 files, or 64 MiB";
/// What is said of a file with more text.
pub const TOO_MUCH_TEXT: &str = "left out: more names in files of another user's than 8 MiB";

/// What has been taken from the folders of each user.
#[derive(Default)]
pub struct Others {
    /// Whose folder the file is from that comes now; none: from none of others.
    now: Option<u32>,
    all: BTreeMap<u32, Taken>,
}

/// What has been taken from one user's.
#[derive(Default)]
struct Taken {
    files: usize,
    bytes: u64,
    processes: u64,
    text: usize,
}

impl Others {
    /// Says in whose folder the next file lies; none: it does not count.
    pub fn come_from(&mut self, owner: Option<u32>) {
        self.now = owner;
    }

    /// Returns whether what comes now counts.
    pub fn count(&self) -> bool {
        self.now.is_some()
    }

    fn of_now(&mut self) -> Option<&mut Taken> {
        Some(self.all.entry(self.now?).or_default())
    }

    /// Counts one more file; returns whether there is room for it.
    pub fn file(&mut self) -> bool {
        self.of_now().is_none_or(|taken| {
            taken.files += 1;
            taken.files <= MOST_FILES
        })
    }

    /// Counts the bytes of one that is opened.
    pub fn bytes(&mut self, length: u64) -> anyhow::Result<()> {
        let Some(taken) = self.of_now() else {
            return Ok(());
        };
        if length > LONGEST {
            bail!("too long for a file of another user's");
        }
        taken.bytes += length;
        match taken.bytes > MOST_BYTES {
            true => bail!(TOO_MANY),
            false => Ok(()),
        }
    }

    /// Counts one more process.
    pub fn process(&mut self) -> anyhow::Result<()> {
        let Some(taken) = self.of_now() else {
            return Ok(());
        };
        taken.processes += 1;
        if taken.processes > MOST_PROCESSES {
            bail!("left out: more processes in files of another user's than 8,192");
        }
        Ok(())
    }

    /// Counts a text that is kept; returns whether there is room for it.
    pub fn text(&mut self, length: usize) -> bool {
        self.of_now().is_none_or(|taken| {
            let sum = taken.text.saturating_add(length.saturating_add(A_TEXT));
            let fits = sum <= MOST_TEXT;
            if fits {
                taken.text = sum;
            }
            fits
        })
    }

    /// Counts what a kind of process has.
    pub fn kind(&mut self, kind: &Kind) -> bool {
        let settings = kind.settings.iter().flat_map(|(name, value)| [name, value]);
        let all = kind.library.iter().chain([&kind.exe]).chain(settings);
        let all = all.chain(&kind.selftest_missed);
        self.text(all.map(|text| text.len() + A_TEXT).sum())
    }
}
