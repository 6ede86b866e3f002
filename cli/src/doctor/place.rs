//! Where this process is: in a container, under a batch system. Who has to mend a
//! thing depends on that.

use std::fs;
use std::path::Path;

use super::finding::{Finding, Standing::*, Who};

/// Where this process is.
pub struct Place {
    /// What kind of container it is in.
    pub container: Option<Container>,
    /// Ranks that this node has, or could have: by what the launcher says, else one
    /// for each processor.
    pub ranks: u64,
}

/// Kinds of containers, by how their limits are set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Container {
    Docker,
    Podman,
    Kubernetes,
    Apptainer,
    Other,
}

impl Container {
    fn word(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Kubernetes => "Kubernetes",
            Self::Apptainer => "Apptainer",
            Self::Other => "a container",
        }
    }
}

/// RLIMIT_MEMLOCK, as /proc/PID/limits names it.
pub const MEMLOCK: &str = "Max locked memory";

/// The soft and the hard limit of that name, as the kernel writes them. (A filter can refuse
/// getrlimit.)
pub fn limits(name: &str) -> Option<(String, String)> {
    let limits = read("/proc/self/limits")?;
    let line = limits.lines().find_map(|l| l.strip_prefix(name))?;
    let mut fields = line.split_ascii_whitespace().map(str::to_string);
    Some((fields.next()?, fields.next()?))
}

/// A small file's text without white space around it.
pub fn read(path: impl AsRef<Path>) -> Option<String> {
    Some(regall_reader::procfs::text(path).ok()?.trim().to_string())
}

/// Names in a folder, sorted.
pub fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// What stands behind `name:` in a text such as /proc/self/status.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = text.lines().find_map(|l| l.strip_prefix(name))?;
    Some(rest.strip_prefix(':')?.trim())
}

/// The bytes that stand behind `name:`, in kB, in such a text.
pub fn bytes(text: &str, name: &str) -> Option<u64> {
    in_bytes(field(text, name)?)
}

/// Of `4 kB`, as the kernel writes it.
pub fn in_bytes(kilobytes: &str) -> Option<u64> {
    let number = kilobytes.trim().strip_suffix(" kB")?;
    Some(number.trim().parse::<u64>().ok()? << 10)
}

/// Environment variables by which launchers tell how many ranks a node has.
const LOCAL_SIZES: [&str; 6] = [
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "PALS_LOCAL_SIZE",
    "LOCAL_WORLD_SIZE",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NTASKS_PER_NODE",
];

/// The number at the beginning: Slurm writes `4(x2)` for four tasks on each of two nodes.
fn first_number(text: &str) -> Option<u64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

impl Place {
    pub fn look() -> Self {
        let of = |name: &str| {
            let number = first_number(&std::env::var(name).ok()?)?;
            (number > 0).then_some(number)
        };
        // Flux says how many there are, and on how many nodes.
        let flux = || Some(of("FLUX_JOB_SIZE")?.div_ceil(of("FLUX_JOB_NNODES")?));
        let told = LOCAL_SIZES.iter().find_map(|name| of(name)).or_else(flux);
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        Self {
            container: container(),
            ranks: told.unwrap_or(processors),
        }
    }

    /// A finding that is mended by one line in docker and podman, and by another one on
    /// the machine itself.
    pub fn mend(&self, finding: Finding, flag: &str, host: impl Into<String>) -> Finding {
        match self.container {
            Some(Container::Podman) => finding.mend(Who::Container, format!("podman run {flag}")),
            Some(Container::Docker) => finding.mend(Who::Container, format!("docker run {flag}")),
            _ => self.mend_host(finding, host),
        }
    }

    /// A finding that is the machine's, whatever runs on it.
    pub fn mend_host(&self, finding: Finding, line: impl Into<String>) -> Finding {
        let line = line.into();
        let comment = if line.contains(" # ") { ";" } else { " #" };
        match self.container {
            Some(_) => finding.mend(
                Who::Administrator,
                format!("{line}{comment} on the machine itself, not in the container"),
            ),
            None => finding.mend(Who::Administrator, line),
        }
    }

    /// The container, as a finding.
    pub fn finding(&self) -> Finding {
        let name = "container";
        match self.container {
            None => Finding::new(name, Absent, "none detected"),
            Some(kind) => Finding::new(name, Good, format!("in {}", kind.word()))
                .effect("its limits and devices are those that it was started with"),
        }
    }
}

fn container() -> Option<Container> {
    let set = |name: &str| std::env::var_os(name).is_some();
    let there = |path: &str| Path::new(path).exists();
    if set("KUBERNETES_SERVICE_HOST") {
        return Some(Container::Kubernetes);
    }
    if set("APPTAINER_CONTAINER") || set("SINGULARITY_CONTAINER") {
        return Some(Container::Apptainer);
    }
    if there("/run/.containerenv") {
        return Some(Container::Podman);
    }
    if there("/.dockerenv") {
        return Some(Container::Docker);
    }
    let groups = read("/proc/1/cgroup").unwrap_or_default();
    let words = ["docker", "lxc", "kubepods", "libpod", "containerd"];
    let other = set("container") || words.iter().any(|w| groups.contains(w));
    other.then_some(Container::Other)
}

/// Privileges count for locked memory in the initial user namespace alone, and
/// process_vm_readv works within one.
pub fn user_namespace() -> Finding {
    let name = "user namespace";
    // PROC_USER_INIT_INO in the kernel's proc_ns.h.
    const INITIAL: &str = "user:[4026531837]";
    let Ok(link) = fs::read_link("/proc/self/ns/user") else {
        return Finding::new(name, Unknown, "/proc/self/ns/user can't be read");
    };
    if link.as_os_str() == INITIAL {
        return Finding::new(name, Good, "the initial one");
    }
    let map = read("/proc/self/uid_map").unwrap_or_default();
    let map = map.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    let found = format!("{}, uid_map {map}", link.display());
    Finding::new(name, Good, found).effect(
        "root's privileges do not lift RLIMIT_MEMLOCK here; ranks that are to copy from each \
         other must be in the same one, or run with regall",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_by_their_whole_name() {
        let text = "Seccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(field(text, "Seccomp"), Some("2"));
        assert_eq!(field(text, "Seccomp_filters"), Some("1"));
        assert_eq!(field(text, "Sec"), None);
    }

    #[test]
    fn slurm_says_how_many_tasks_each_node_has() {
        assert_eq!(first_number("4"), Some(4));
        assert_eq!(first_number("4(x2)"), Some(4));
        assert_eq!(first_number("12,3"), Some(12));
        assert_eq!(first_number("(x2)"), None);
        assert_eq!(first_number(""), None);
    }
}
