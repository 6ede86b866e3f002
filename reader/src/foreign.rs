//! Files that others have made, or can put in place of what is meant.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A file that was looked at, and that nothing has been done to yet: no device was opened, nobody
/// was waited for.
#[derive(Debug)]
pub struct Foreign {
    file: File,
    /// What it is.
    pub is: Metadata,
}

impl Foreign {
    /// Looks at the file that `path` names, or that a link there leads to.
    pub fn at(path: &Path) -> io::Result<Self> {
        Self::look(path, 0)
    }

    /// Looks at what has this very name, be it a link.
    pub fn named(path: &Path) -> io::Result<Self> {
        Self::look(path, libc::O_NOFOLLOW)
    }

    /// Looks at what has this very name in the folder that this is.
    pub fn inside(&self, name: &str) -> io::Result<Self> {
        Self::named(&self.path().join(name))
    }

    fn look(path: &Path, link: i32) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_PATH | link);
        let file = options.open(path)?;
        let is = file.metadata()?;
        Ok(Self { file, is })
    }

    /// Opens it to read: that very file, whatever has its name by now. A pipe that nobody writes
    /// is not waited for.
    pub fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let how = libc::O_NONBLOCK | libc::O_NOCTTY;
        options.read(true).custom_flags(how).open(self.path())
    }

    fn path(&self) -> std::path::PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}
