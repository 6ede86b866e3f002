//! The files of a job. Nothing that stands in them is trusted: they may be half written, and lie
//! where others write. One is read at a time, and what it says is taken apart at once.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail, Context};
use regall_documents as documents;
use rustix::process::geteuid;
use serde_json::error::Category;

use super::job::Job;
use super::others::TOO_MANY;
use super::shown::{self, Shown};
use crate::files::{self, Whose};

/// What makes a file's name of each process of a job.
pub const PATTERN: &str = "%h.%p.json";

/// The second name in what `--merge` writes, and in a job's report.
const MERGED: &str = "merged";
const COUNTED: &str = "counted";

/// A process's statistics have some 3 KiB; merged ones have some 150 bytes for each process.
const LONGEST: u64 = 1 << 20;
/// So many problems are told; the others are counted.
const MOST_TOLD: usize = 20;

/// Why a job's report is left out.
const ALONE: &str = "a report of a job, which is shown if it is named alone";

/// Names that are read in a folder of another user's.
const MOST_NAMES: usize = 1 << 16;

/// A folder's owner, if that is not this user.
fn other(owner: u32) -> Option<u32> {
    (owner != geteuid().as_raw()).then_some(owner)
}

/// What was gathered, and what was left out.
#[derive(Default)]
pub struct Gathered {
    pub job: Job,
    /// Why files were left out.
    problems: Vec<String>,
    /// How many were.
    pub left_out: u64,
    /// The files that were taken in, if they are to be remembered.
    pub taken: Option<Vec<PathBuf>>,
    /// A job's report that somebody named, and its name.
    report: Option<(PathBuf, Shown)>,
}

/// Reads files, and all files in folders.
pub fn read(places: &[PathBuf]) -> Gathered {
    let mut gathered = Gathered::default();
    places.iter().for_each(|place| gathered.place(place));
    gathered.job.settle();
    gathered
}

impl Gathered {
    /// A file that somebody named, or all files in a folder.
    pub fn place(&mut self, place: &Path) {
        match place.is_dir() {
            true => self.folder(place, |_| true),
            false => self.file(place, Whose::Named),
        }
    }

    /// The files in a folder whose names are wanted, but for hidden ones: those are being
    /// written.
    pub fn folder(&mut self, folder: &Path, wanted: impl Fn(&[u8]) -> bool) {
        match self.names(folder, wanted) {
            Ok((owner, names)) => names
                .iter()
                .for_each(|name| self.file(&folder.join(name), Whose::In(owner))),
            Err(e) => self.left_out(folder, &e.into()),
        }
    }

    /// The folder's owner, and the names in order. Those of files that don't count are not kept:
    /// others can make many of them.
    fn names(
        &mut self,
        folder: &Path,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> std::io::Result<(u32, Vec<OsString>)> {
        let owner = fs::metadata(folder)?.uid();
        self.job.others.come_from(other(owner));
        let mut names = Vec::new();
        for (n, entry) in fs::read_dir(folder)?.enumerate() {
            let entry = entry?;
            if other(owner).is_some() && n >= MOST_NAMES {
                self.left_out(folder, &anyhow!(TOO_MANY));
                break;
            }
            let name = entry.file_name();
            if name.as_bytes().starts_with(b".") || !wanted(name.as_bytes()) {
                continue;
            }
            match entry.metadata() {
                Ok(is) if is.is_dir() => (),
                Ok(is) if !files::counts(&is, owner) => {
                    self.left_out(&entry.path(), &anyhow!(files::OTHERS));
                }
                Ok(_) if !self.job.others.file() => {
                    self.left_out(&entry.path(), &anyhow!(TOO_MANY));
                }
                _ => names.push(name),
            }
        }
        names.sort();
        Ok((owner, names))
    }

    fn file(&mut self, file: &Path, whose: Whose) {
        match self.take(file, whose) {
            Ok(()) => {
                if let Some(taken) = &mut self.taken {
                    taken.push(file.into());
                }
            }
            Err(e) => self.left_out(file, &e),
        }
    }

    /// Opens a file. Of another user's, which lie in a folder, only so many bytes are read.
    fn open(&mut self, path: &Path, whose: Whose) -> anyhow::Result<(File, u64)> {
        let file = files::open(path, whose, files::LONGEST);
        let file = file.map_err(|why| {
            match why.is::<std::io::Error>() || why.to_string() == files::OTHERS {
                true => why,
                false => why.context("no statistics of a process"),
            }
        })?;
        let is = file.metadata()?;
        let owner = match whose {
            Whose::In(owner) => other(owner),
            _ => None,
        };
        let others = &mut self.job.others;
        others.come_from(owner);
        others.bytes(is.len())?;
        Ok((file, owner.map_or(files::LONGEST, |_| is.len())))
    }

    fn take(&mut self, file: &Path, whose: Whose) -> anyhow::Result<()> {
        let (opened, most) = self.open(file, whose)?;
        let text = contents(opened, most)?;
        let read = |e: serde_json::Error| unreadable(e.classify(), &text);
        if is_second(COUNTED, &text) {
            if !matches!(whose, Whose::Named) || self.report.is_some() {
                bail!(ALONE);
            }
            let shown = shown::parse(&text).context("no report of a job")?;
            self.report = Some((file.into(), shown));
            return Ok(());
        }
        if is_second(MERGED, &text) {
            let told = serde_json::from_slice(&text).map_err(read)?;
            drop(text);
            return self.job.add_merged(told);
        }
        if text.len() as u64 > LONGEST {
            bail!("no statistics of a process: too long");
        }
        let told: documents::Process = serde_json::from_slice(&text).map_err(read)?;
        self.job.add(told)
    }

    /// Takes the report that was named. If anything else was, it is left out.
    pub fn report(&mut self) -> Option<Shown> {
        let (file, shown) = self.report.take()?;
        if self.job.is_empty() && self.left_out == 0 {
            return Some(shown);
        }
        self.left_out(&file, &anyhow!(ALONE));
        None
    }

    fn left_out(&mut self, file: &Path, why: &anyhow::Error) {
        self.left_out += 1;
        if self.problems.len() < MOST_TOLD {
            self.problems.push(format!("{}: {why:#}", file.display()));
        }
    }

    /// Why files were left out, in some lines.
    pub fn problems(&self) -> Vec<String> {
        let mut all = self.problems.clone();
        let more = self.left_out.saturating_sub(all.len() as u64);
        if more > 0 {
            all.push(format!("{more} more files were left out"));
        }
        all
    }
}

/// What is in a file, up to one byte more than statistics can have.
fn contents(file: File, most: u64) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut file = file.take(most.min(LONGEST + 1));
    file.read_to_end(&mut text)?;
    if text.len() as u64 > LONGEST && [MERGED, COUNTED].iter().any(|name| is_second(name, &text)) {
        file.set_limit(most.saturating_sub(LONGEST));
        file.read_to_end(&mut text)?;
        if text.len() as u64 > files::LONGEST {
            bail!("no merged statistics: too long");
        }
    }
    Ok(text)
}

/// Returns whether it is a document of ours whose second name is this one; the first is `version`.
fn is_second(name: &str, text: &[u8]) -> bool {
    let begin = text.get(..128).unwrap_or(text).iter();
    let begin: Vec<u8> = begin
        .copied()
        .filter(|b| !b.is_ascii_whitespace())
        .collect();
    let rest = begin.strip_prefix(b"{\"version\":").unwrap_or_default();
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    let second = format!(",\"{name}\":");
    rest.get(digits..)
        .is_some_and(|r| r.starts_with(second.as_bytes()))
}

/// What is wrong with a file that is no JSON, in words of ours.
fn unreadable(kind: Category, text: &[u8]) -> anyhow::Error {
    let begun = text.trim_ascii_start().starts_with(b"{");
    let why = match (kind, begun) {
        _ if text.is_empty() => "empty: it ended while it wrote them, or the disk was full",
        (Category::Eof, true) => "cut off: it ended while it wrote them, or the disk was full",
        _ => "not the JSON object that REGALL_STATS_FILE has written",
    };
    anyhow!("no statistics of a process: {why}")
}
