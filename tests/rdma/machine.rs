//! What the doctor says of settings that are a whole machine's: changed for real, which is
//! the guest's business alone.

use super::*;
use regall_tests::child::Beside;
use regall_tests::fits::{compared, compared_with_adapter, compared_words, MIB};
use serde_json::Value;

/// A setting of the machine's, which is what it was when this goes.
pub struct Sysctl {
    path: String,
    before: String,
}

impl Sysctl {
    fn set(name: &str, value: &str) -> Self {
        let path = format!("/proc/sys/vm/{name}");
        let before = fs::read_to_string(&path).expect("a setting");
        fs::write(&path, value).expect("a setting");
        Self { path, before }
    }
}

impl Drop for Sysctl {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, self.before.trim());
    }
}

/// What is found of one thing.
fn finding(name: &str) -> Value {
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(&mut command);
    let done = child::run(command.args(["doctor", "--json"]), TIMEOUT);
    let all: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let mut all = all["findings"].as_array().into_iter().flatten();
    all.find(|f| f["name"] == name).expect("a finding").clone()
}

fn says(finding: &Value, standing: &str, words: &[&str]) {
    assert_eq!(finding["standing"], standing, "{finding:#}");
    for word in words {
        assert!(finding.to_string().contains(word), "{word}: {finding:#}");
    }
}

/// A pool of huge pages that is there, and one that somebody has.
pub fn pool() -> Checked {
    let name = "HugeTLB pool";
    let none = Sysctl::set("nr_hugepages", "0");
    says(&finding(name), "absent", &["vm.nr_hugepages=512"]);
    drop(none);

    let _pool = Sysctl::set("nr_hugepages", "6");
    let there = finding(name);
    says(&there, "good", &["6 free", "no process"]);
    let figure = |name: &str| there["measured"][name].as_u64();
    assert_eq!(figure("pool_bytes"), Some(12 << 20));
    // Which of both is less is not emulation's to say.
    for name in ["populate_2mib_ns", "populate_2mib_small_ns"] {
        assert!(figure(name) > Some(1000), "{there:#}");
    }

    let mut holder = Command::new("/usr/bin/python3");
    holder.args([
        "-c",
        "import mmap, time\n\
         m = mmap.mmap(-1, 12 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)\n\
         m.write(b'x' * (12 << 20))\ntime.sleep(600)",
    ]);
    Mode::Plain.apply(&mut holder);
    let _holder = Beside::start(&mut holder);
    let free = || fs::read_to_string("/proc/meminfo").expect("meminfo");
    let began = Instant::now();
    while !free().contains("HugePages_Free:        0\n") {
        assert!(began.elapsed() < TIMEOUT, "{}", free());
        std::thread::sleep(Duration::from_millis(50));
    }
    says(
        &finding(name),
        "good",
        &[
            "0 free",
            "used by python3 (1 process, 12 MiB)",
            "not to be had: Cannot allocate memory",
        ],
    );
    Ok(())
}

/// Promises that are counted: what is left of them, and what does nothing then.
pub fn overcommit() -> Checked {
    let name = "overcommit";
    let here = finding(name);
    says(&here, "good", &["vm.overcommit_memory 0"]);
    // More than a page, and no more than a stack at its limit and the shim's own account.
    let bytes = here["measured"]["shim_bytes"].as_u64().unwrap_or(0);
    assert!((64 << 10..16 << 20).contains(&bytes), "{here:#}");
    let _counted = Sysctl::set("overcommit_memory", "2");
    says(
        &finding(name),
        "limits",
        &[
            "the kernel counts memory when it is mapped",
            "and not more: Cannot allocate memory",
            "vm.overcommit_memory is 2: REGALL_SHARE does nothing",
            "sysctl -w vm.overcommit_memory=0",
        ],
    );
    Ok(())
}

/// Memory cgroups of version 2, in which what maps more than there is may run; until this goes.
pub fn groups() -> Result<Sysctl, Skipped> {
    let root = "/sys/fs/cgroup";
    if !Path::new(root).join("cgroup.controllers").exists() {
        let mut mount = Command::new("mount");
        let done = child::run(mount.args(["-t", "cgroup2", "none", root]), TIMEOUT);
        if done.end() != "exit 0" {
            return Err(Skipped(format!("no cgroups here: {}", done.stderr)));
        }
    }
    fs::write(format!("{root}/cgroup.subtree_control"), "+memory").expect("groups of memory");
    Ok(Sysctl::set("overcommit_memory", "1"))
}

/// Runs rows of c-tests/fits: name, place, MiB that there are, and shell before it.
fn rows_fit(rows: &[(&str, &str, u64, &str)]) -> Checked {
    let mut problems = Vec::new();
    for (row, place, limit, prepare) in rows {
        let found = compared(row, place, limit * MIB, prepare, Mode::Auto);
        let found = found.expect("a group");
        problems.extend(found.into_iter().map(|p| format!("{row}: {p}")));
    }
    assert!(problems.is_empty(), "{problems:#?}");
    Ok(())
}

/// What fits without the shim fits with it in memory cgroups of version 2, too.
pub fn fits() -> Checked {
    let _groups = groups()?;
    // (Over nothing that is needed: the work tree may be anywhere.)
    let small = "mkdir -p /run/small && mount -t tmpfs -o size=64m none /run/small || exit 99;";
    rows_fit(&[
        ("large", "-", 64, ""),
        ("sparse", "-", 64, ""),
        ("heap", "-", 64, ""),
        ("ranks", "-", 128, ""),
        ("segment", "/run/small", 256, small),
    ])
}

/// Swap space, until this goes.
pub struct Swap;

impl Swap {
    const DISK: &'static str = "/dev/ram0";

    /// There is some from here on.
    pub fn on() -> Result<Self, Skipped> {
        for tool in ["mkswap", "swapon"] {
            let done = child::run(Command::new(tool).arg(Self::DISK), TIMEOUT);
            if done.end() != "exit 0" {
                return Err(Skipped(format!("{tool}: {}", done.stderr)));
            }
        }
        Ok(Self)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        child::run(Command::new("swapoff").arg(Self::DISK), TIMEOUT);
    }
}

/// Pages swapped out since the machine came up.
fn swapped_out() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").expect("vmstat");
    let mut lines = text.lines().filter_map(|l| l.strip_prefix("pswpout "));
    lines.next().and_then(|n| n.parse().ok()).expect("a number")
}

/// Programs that need swap are let have it: what is locked can't be swapped out.
pub fn fits_with_swap() -> Checked {
    let _groups = groups()?;
    let _swap = Swap::on()?;
    let before = swapped_out();
    rows_fit(&[("swaps", "-", 32, ""), ("large", "-", 64, "")])?;
    // Each of the two runs had to.
    let pages = swapped_out() - before;
    assert!(pages > 2 * (32 << 8), "{pages} pages were swapped out");
    // The check can fail: what is locked can't be swapped out.
    let program = build::program("fits/fits").display().to_string();
    let words = ["env", "REGALL_LIMIT=1G", &program, "swaps", "-"];
    let found = compared_words("locked", &words, 32 * MIB, "", Mode::Populate);
    let found = found.expect("a group");
    assert!(!found.is_empty(), "it fits, locked");
    Ok(())
}

/// The programs of c-tests/rdma that run here.
pub const LISTED: &[&str] = &["roomy"];

/// A domain makes little resident that nobody has touched.
pub fn fits_with_adapter() -> Checked {
    let _groups = groups()?;
    for limit in [64, 256] {
        let found = compared_with_adapter("roomy", limit * MIB, Mode::Auto);
        let problems = found.expect("a group");
        assert!(problems.is_empty(), "{limit} MiB: {problems:#?}");
    }
    Ok(())
}
