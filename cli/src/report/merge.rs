//! `regall report --merge`: many files of statistics become one. What this node's processes have
//! left in its memory goes when it is merged.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, Context};
use regall_directory::settings::JOBS;
use regall_settings::names::{self, Names, STATISTICS};
use regall_sys::folder::{self, Folder, ROOT};
use regall_sys::text::Text;
use regall_sys::time;
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::gather::Gathered;
use crate::files;
use crate::launched::{self, host, Launched};
use crate::output::{complain, FAILED};

/// So long another merge into the same file is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The hidden name beside a file's that its lock has.
fn lock_of(file: &Path) -> anyhow::Result<PathBuf> {
    let name = file.file_name().context("it needs a file's name")?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".lock");
    Ok(file.with_file_name(hidden))
}

/// Keeps other merges into the same file away, as long as it is there.
struct Lock {
    path: PathBuf,
    /// None: the file system has no locks.
    file: Option<File>,
}

impl Lock {
    fn take(into: &Path) -> anyhow::Result<Self> {
        let path = lock_of(into)?;
        let began = Instant::now();
        loop {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            let file = options
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
                .open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Who had it before may have removed its name.
                Ok(()) if files::is_named(&file, &path) => {
                    return Ok(Self {
                        path,
                        file: Some(file),
                    })
                }
                Ok(()) => continue,
                Err(Errno::WOULDBLOCK | Errno::INTR) => (),
                Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    return Ok(Self { path, file: None })
                }
                Err(error) => bail!("{}: {error}", path.display()),
            }
            if began.elapsed() > PATIENCE {
                bail!("another merge has been at work for a minute; try again");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is held: nobody else has a lock of this name then. Without locks the name
        // tells nobody anything.
        let _ = fs::remove_file(&self.path);
        drop(self.file.take());
    }
}

/// Where in which job this process is.
pub struct Place {
    uid: u32,
    launched: Launched,
    job: names::Job,
    /// Under which name the statistics stay; empty: the job's.
    kept: String,
}

impl Place {
    /// Merges `places`, or what was left on this node, into the file that `pattern` names; what is
    /// in that file already stays in it. `may_be_none`: it is no failure if nothing was left.
    pub fn merge(
        &self,
        pattern: &Path,
        places: &[PathBuf],
        may_be_none: bool,
    ) -> anyhow::Result<u8> {
        let into = self.expand(pattern)?;
        let described = || into.display().to_string();
        let _lock = Lock::take(&into).with_context(described)?;
        let mut gathered = Gathered::default();
        gathered.taken = Some(Vec::new());
        match places {
            [] => self.gather(&mut gathered),
            places => places.iter().for_each(|place| gathered.place(place)),
        }
        let taken = gathered.taken.take().unwrap_or_default();
        let problems = gathered.problems();
        problems.iter().for_each(|problem| complain(problem));
        let failed = match problems.is_empty() {
            true => 0,
            false => FAILED,
        };
        let before = fs::symlink_metadata(&into).is_ok();
        if taken.is_empty() {
            if !before && failed == 0 && !may_be_none {
                complain("no file of a process's to merge");
                return Ok(FAILED);
            }
            // Another merge has taken all of it.
            return Ok(failed);
        }
        if before {
            let left_out = gathered.left_out;
            gathered.place(&into);
            if gathered.left_out > left_out {
                bail!(
                    "{}: is there, and no merged statistics: nothing is written",
                    described()
                );
            }
        }
        gathered.job.settle();
        let merged = gathered.job.merged();
        let written = files::replace(&into, |out| {
            serde_json::to_writer(&mut *out, &merged)?;
            out.write_all(b"\n")
        });
        written.with_context(described)?;
        if places.is_empty() {
            for file in taken {
                fs::remove_file(&file).with_context(|| file.display().to_string())?;
            }
            // With what is in it a folder goes whose name is found by no other way.
            self.each_folder(|path, folder| {
                if folder.is_random() && fs::remove_dir(path).is_ok() {
                    folder.leave(ROOT);
                }
            });
        }
        Ok(failed)
    }
}

impl Place {
    /// Of `name`, or else of what this process's own REGALL_STATS_FILE says.
    pub fn of_this_process(name: Option<&str>) -> Self {
        let said = JOBS.iter().find_map(|name| {
            let value = std::env::var_os(OsString::from_vec(name.to_vec()))?;
            let job = names::job(value.as_bytes());
            (!job.as_bytes().is_empty()).then_some(job)
        });
        let launched = Launched::of(std::process::id());
        Self {
            uid: geteuid().as_raw(),
            kept: match name {
                Some(name) => launched::kept(&format!("node:{name}")),
                None => launched.kept.clone(),
            },
            launched,
            job: said.unwrap_or_default(),
        }
    }

    fn expand(&self, pattern: &Path) -> anyhow::Result<PathBuf> {
        let host = host();
        let all = Names {
            pid: std::process::id(),
            uid: self.uid,
            host: host.as_bytes(),
            job: self.job.as_bytes(),
            rank: self.launched.rank,
            day: time::day(),
        };
        let text: Text<4096> = all.expand(pattern.as_os_str().as_bytes());
        if text.was_cut() {
            bail!("{}: too long", pattern.display());
        }
        Ok(OsString::from_vec(text.as_bytes().to_vec()).into())
    }

    /// What is left in the memory of this node, under the name or by this job's processes. In a
    /// user namespace the folder may be another one.
    fn gather(&self, gathered: &mut Gathered) {
        let mut wanted = match (self.kept.as_bytes(), self.job.as_bytes()) {
            ([], []) => names::UNKNOWN.to_vec(),
            ([], job) => job.to_vec(),
            (kept, _) => kept.to_vec(),
        };
        wanted.push(b',');
        self.each_folder(|path, _| {
            if fs::symlink_metadata(path).is_ok_and(|m| m.is_dir()) {
                gathered.folder(path, |name| name.starts_with(&wanted));
            }
        });
    }

    /// Calls `tell` with each folder of statistics that there may be, and the one that it is in.
    fn each_folder(&self, mut tell: impl FnMut(&Path, Folder)) {
        folder::each(ROOT, self.uid, |_, folder| {
            let path = folder.path().as_bytes().to_vec();
            let path = PathBuf::from(OsString::from_vec(path));
            tell(&path.join(OsStr::from_bytes(STATISTICS)), folder);
        });
    }

    /// Whether processes of this user's job, and with this name, still run on this node with the
    /// shim on. (Any other user's may say that they are the job's.)
    pub fn others_run(&self) -> bool {
        let all = regall_reader::search(Some(self.uid), None).unwrap_or_default();
        let mut jobs = all
            .seen
            .iter()
            .filter(|seen| regall_reader::open(seen.pid).is_ok())
            .map(|seen| Launched::of(seen.pid));
        jobs.any(|l| {
            let job = names::job(l.job.unwrap_or_default().as_bytes());
            job.as_bytes() == self.job.as_bytes() && l.kept == self.kept
        })
    }
}
