//! `regall stage`, `regall run --stage`: the library in the memory of the node, so that programs
//! on a thousand nodes do not open it on a shared file system.
//!
//! The copy is in a folder that nobody else can enter, below /dev/shm, which everybody can write
//! to: the folder is refused if it is another user's, a link, or open to others. Its name is made
//! of its content, so jobs share it, and two versions do not meet.

mod folder;
mod nodes;
mod users;

use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;

use crate::library;
pub use folder::clear;
pub use nodes::Nodes;

pub const EXIT_CODES: &str = after_help!(
    "The copy is in /dev/shm/regall-UID, or below /tmp if nothing can be executed in /dev/shm. \
     regall run --stage makes it by itself.\n\nExit code: 0; 1 if --remove left a copy because a process \
     uses it, or a job has staged it within ten minutes; 2 if it can't be copied.",
    "srun --ntasks-per-node=1 regall stage",
    "regall-stage"
);

#[derive(clap::Args)]
pub struct Args {
    /// Remove all copies on this node that no process of this user uses
    #[arg(long)]
    remove: bool,
    /// The path that the copy must have
    #[arg(long, hide = true)]
    expect: Option<PathBuf>,
    /// The job that is about to use it, or does no longer
    #[arg(long, hide = true)]
    lease: Option<String>,
}

pub fn stage(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    let lease = args.lease.as_deref();
    if args.remove {
        let left = folder::clear(lease)?;
        // To a launcher any other code than 0 is a rank that failed.
        return Ok(u8::from(left && lease.is_none()));
    }
    let copy = here(lease)?;
    match &args.expect {
        Some(expected) if *expected != copy.path => {
            bail!(
                "{} here, and not {}",
                copy.path.display(),
                expected.display()
            )
        }
        Some(_) => (),
        None => writeln!(out, "{}", copy.path.display())?,
    }
    Ok(0)
}

/// A copy that nobody removes while this is there.
pub struct Copy {
    pub path: PathBuf,
    _held: std::fs::File,
}

/// The library's copy on this node, made if need be.
pub fn here(lease: Option<&str>) -> anyhow::Result<Copy> {
    let Ok(library) = library::find() else {
        bail!("{} not found", library::NAME);
    };
    let (path, _held) = folder::staged(&library, lease)?;
    Ok(Copy { path, _held })
}
