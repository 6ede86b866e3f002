//! Whether the kernel may write a process's memory to swap space, by a look of our own. A cgroup
//! that can't be read keeps nothing from it.

use std::fs;
use std::path::Path;

use regall_reader::procfs;

/// The memory that may be written to swap space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swap {
    /// Nothing: there is no swap space.
    None,
    /// Shared memory. `memory.swap.max` is 0 for the process.
    Shared,
    /// All memory.
    All,
}

impl Swap {
    /// Returns what of process `pid` may be written to swap space; none if /proc does not tell
    /// whether there is any.
    pub fn of(pid: u32) -> Option<Self> {
        let swaps = fs::read_to_string("/proc/swaps");
        let space = swaps.map(|text| has_space(&text)).or_else(|_| {
            let memory = fs::read_to_string("/proc/meminfo")?;
            total(&memory).ok_or(std::io::ErrorKind::InvalidData.into())
        });
        let space: std::io::Result<bool> = space;
        if !space.ok()? {
            return Some(Self::None);
        }
        let groups = procfs::text(format!("/proc/{pid}/cgroup"));
        match groups.is_ok_and(|text| may_not(&text, Path::new("/sys/fs/cgroup"))) {
            true => Some(Self::Shared),
            false => Some(Self::All),
        }
    }
}

/// Returns whether the line of /proc/meminfo says that there is some.
fn total(memory: &str) -> Option<bool> {
    let line = memory
        .lines()
        .find_map(|line| line.strip_prefix("SwapTotal:"))?;
    Some(line.split_whitespace().next()? != "0")
}

/// Returns whether there is a line behind the title.
fn has_space(swaps: &str) -> bool {
    swaps.lines().count() > 1
}

/// Returns whether `memory.swap.max` is 0 in the cgroup of version 2 that `text`, a
/// /proc/PID/cgroup, names, or above it. `root` is where the hierarchy is mounted.
fn may_not(text: &str, root: &Path) -> bool {
    let own = text.lines().find_map(|line| line.strip_prefix("0::/"));
    let own = own.filter(|path| !path.split('/').any(|name| name == ".."));
    own.is_some_and(|path| {
        let levels = root.join(path);
        let mut levels = levels
            .ancestors()
            .take_while(|level| level.starts_with(root));
        levels.any(|level| {
            let most = fs::read_to_string(level.join("memory.swap.max"));
            most.is_ok_and(|most| most.trim_end() == "0")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_behind_the_title_is_swap_space() {
        let title = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(!has_space(title) && !has_space(""));
        assert_eq!(total("MemFree: 1 kB\nSwapTotal:       0 kB\n"), Some(false));
        assert_eq!(total("SwapTotal:  1048572 kB\n"), Some(true));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert!(has_space(&format!("{title}/swap file 1 0 -2\n")));
    }

    #[test]
    fn a_limit_of_0_counts_at_any_level() {
        let pid = std::process::id();
        let root = std::env::temp_dir().join(format!("regall-swap-{pid}"));
        let job = root.join("job/step");
        fs::create_dir_all(&job).expect("folders");
        let ask = |text| may_not(text, &root);
        assert!(!ask("0::/job/step\n"), "no file says anything");
        fs::write(job.join("memory.swap.max"), "max\n").expect("a file");
        assert!(!ask("0::/job/step\n"));
        fs::write(root.join("job/memory.swap.max"), "0\n").expect("a file");
        assert!(ask("4:memory:/\n0::/job/step\n") && ask("0::/job\n"));
        assert!(!ask("0::/\n") && !ask("1:memory:/job\n") && !ask(""));
        assert!(!ask("0::/../job/step\n"), "of another namespace");
        fs::remove_dir_all(&root).expect("it goes");
    }
}
