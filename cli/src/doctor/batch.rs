//! Slurm: which limits srun hands on to ranks.

use std::path::Path;

use super::finding::{Finding, Standing::*, Who};
use super::place::{limits, read, MEMLOCK};

/// Places of Slurm's settings where SLURM_CONF does not name one.
const FILES: [&str; 2] = ["/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf"];

/// Whether this node is one of Slurm's.
pub fn present() -> bool {
    inside() || file().is_some()
}

fn inside() -> bool {
    std::env::var_os("SLURM_JOB_ID").is_some()
}

fn file() -> Option<String> {
    if let Ok(named) = std::env::var("SLURM_CONF") {
        return Some(named);
    }
    let found = FILES.iter().find(|f| Path::new(f).exists())?;
    Some(found.to_string())
}

/// Whether `conf` has srun hand on RLIMIT_MEMLOCK as it is where the job is submitted
/// (slurm.conf(5): all limits, unless told otherwise).
fn hands_on_memlock(conf: &str) -> bool {
    let setting = |wanted: &str| {
        let lines = conf.lines().map(|l| l.split('#').next().unwrap_or(""));
        let pairs = lines.filter_map(|l| l.split_once('='));
        let mut values = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case(wanted));
        values
            .next()
            .map(|(_, value)| value.trim().to_ascii_uppercase())
    };
    let names = |value: &str| {
        value
            .split(',')
            .any(|w| matches!(w.trim(), "MEMLOCK" | "ALL"))
    };
    if setting("PropagateResourceLimitsExcept").is_some_and(|v| names(&v)) {
        return false;
    }
    setting("PropagateResourceLimits").is_none_or(|v| names(&v))
}

pub fn slurm() -> Finding {
    let name = "Slurm";
    let where_ = if inside() { "inside a job; " } else { "" };
    let Some(file) = file() else {
        return match inside() {
            true => Finding::new(
                name,
                NotChecked,
                "inside a job; slurm.conf is not found here",
            ),
            false => Finding::new(name, Absent, "not on this node"),
        };
    };
    let Some(conf) = read(&file) else {
        return Finding::new(name, NotChecked, format!("{where_}{file} can't be read"));
    };
    let handed_on = hands_on_memlock(&conf);
    let bounded = limits(MEMLOCK).is_some_and(|(soft, _)| soft != "unlimited");
    let found = match handed_on {
        true => {
            format!("{where_}srun passes on the RLIMIT_MEMLOCK of the shell that calls it ({file})")
        }
        false => format!("{where_}RLIMIT_MEMLOCK is slurmd's, not the caller's ({file})"),
    };
    if !(handed_on && bounded) {
        return Finding::new(name, Good, found);
    }
    Finding::new(name, Limits, found)
        .effect("ranks that are started from here get this shell's limit, which is finite")
        .mend(
            Who::Administrator,
            format!("echo PropagateResourceLimitsExcept=MEMLOCK | sudo tee -a {file} && sudo scontrol reconfigure"),
        )
}

#[cfg(test)]
mod tests {
    use super::hands_on_memlock;

    #[test]
    fn limits_are_handed_on_unless_told_otherwise() {
        for (conf, handed_on) in [
            ("", true),
            ("PropagateResourceLimitsExcept=MEMLOCK\n", false),
            (
                "propagateresourcelimitsexcept = memlock,core # why\n",
                false,
            ),
            ("PropagateResourceLimitsExcept=CORE\n", true),
            ("#PropagateResourceLimitsExcept=MEMLOCK\n", true),
            ("PropagateResourceLimits=NONE\n", false),
            ("PropagateResourceLimits=CORE,STACK\n", false),
            ("PropagateResourceLimits=ALL\n", true),
            ("PropagateResourceLimits=MEMLOCK\n", true),
        ] {
            assert_eq!(hands_on_memlock(conf), handed_on, "{conf}");
        }
    }
}
