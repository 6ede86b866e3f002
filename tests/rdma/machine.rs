//! What the doctor says of settings that are a whole machine's: changed for real, which is
//! the guest's business alone.

use super::*;
use regall_tests::child::Beside;
use regall_tests::fits::{compared, MIB};
use serde_json::Value;

/// A setting of the machine's, which is what it was when this goes.
struct Sysctl {
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
    let mut all = all.as_array().into_iter().flatten();
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
            "had by python3 (1 process, 12 MiB)",
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
            "promises are counted",
            "and not more: Cannot allocate memory",
            "vm.overcommit_memory is 2: REGALL_SHARE does nothing",
            "sysctl -w vm.overcommit_memory=0",
        ],
    );
    Ok(())
}

/// What fits without the shim fits with it in memory cgroups of version 2, too.
pub fn fits() -> Checked {
    let root = "/sys/fs/cgroup";
    if !Path::new(root).join("cgroup.controllers").exists() {
        let mut mount = Command::new("mount");
        let done = child::run(mount.args(["-t", "cgroup2", "none", root]), TIMEOUT);
        if done.end() != "exit 0" {
            return Err(Skipped(format!("no cgroups here: {}", done.stderr)));
        }
    }
    fs::write(format!("{root}/cgroup.subtree_control"), "+memory").expect("groups of memory");
    // As many programs are that map more than there is.
    let _all = Sysctl::set("overcommit_memory", "1");
    let small = "mount -t tmpfs -o size=64m none /tmp || exit 99;";
    let mut problems = Vec::new();
    for (row, place, limit, prepare) in [
        ("large", "-", 64, ""),
        ("sparse", "-", 64, ""),
        ("heap", "-", 64, ""),
        ("ranks", "-", 128, ""),
        ("segment", "/tmp", 256, small),
    ] {
        let found = compared(row, place, limit * MIB, prepare, Mode::Auto);
        let found = found.expect("a group");
        problems.extend(found.into_iter().map(|p| format!("{row}: {p}")));
    }
    assert!(problems.is_empty(), "{problems:#?}");
    Ok(())
}
