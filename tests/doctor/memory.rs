//! Settings of the kernel's about memory: mappings, huge pages, promises, core dumps.

use super::*;

#[test]
fn few_mappings() {
    if not_root() {
        return;
    }
    let mut command = doctor();
    let _folder = instead(&mut command, c"/proc/sys/vm/max_map_count", "1000\n");
    ask(&mut command).limits("max_map_count", "1000", "sysctl -w vm.max_map_count=65530");
}

#[test]
fn no_huge_pages() {
    // For real: this process and its children get none, whatever they ask for.
    let mut command = doctor();
    before(&mut command, || {
        // SAFETY: no memory.
        checked(i64::from(unsafe {
            libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0)
        }))
    });
    let said = ask(&mut command);
    if said.of("huge pages")["standing"] == "absent" {
        return skip("this kernel has no transparent huge pages");
    }
    said.limits("huge pages", "0 B are in huge pages", "compact_memory");
    assert!(said.of("single copy")["measured"]["cma_huge_1mib_ns"].is_null());
    if not_root() {
        return;
    }
    let mut command = doctor();
    let at = c"/sys/kernel/mm/transparent_hugepage/enabled";
    let _folder = instead(&mut command, at, "always madvise [never]\n");
    ask(&mut command).limits("huge pages", "never", "echo madvise");
}

/// A pool that is said to be there and is not; that of a machine is rdma.rs's.
#[test]
fn a_pool_of_huge_pages() {
    if not_root() {
        return;
    }
    let with = |pages: &str| {
        let mut command = doctor();
        let _folder = instead(&mut command, c"/proc/sys/vm/nr_hugepages", pages);
        ask(&mut command)
    };
    let nothing = with("0\n");
    let pool = nothing.of("HugeTLB pool");
    assert_eq!(pool["standing"], "absent", "{pool:#}");
    let free = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    if !free.contains("HugePages_Free:        0\n") {
        return skip("this machine has a pool");
    }
    with("1000\n").limits(
        "HugeTLB pool",
        "a page of it is not to be had: Cannot allocate memory",
        "sysctl -w vm.nr_hugepages=2000",
    );
}

/// Where the kernel is said to count promises; a machine on which it does is rdma.rs's.
#[test]
fn counted_promises() {
    if not_root() {
        return;
    }
    let mut command = doctor();
    let _folder = instead(&mut command, c"/proc/sys/vm/overcommit_memory", "2\n");
    let said = ask(&mut command);
    said.limits(
        "overcommit",
        "vm.overcommit_memory is 2: REGALL_SHARE does nothing",
        "sysctl -w vm.overcommit_memory=0",
    );
    let mut command = doctor();
    let _folder = instead(&mut command, c"/proc/sys/vm/overcommit_memory", "1\n");
    ask(&mut command).good("overcommit");
}

/// What is really in a core dump, for each kind of filter, and what the shim says to it.
#[test]
fn filters_of_core_dumps() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").expect("a pattern");
    let tried = !pattern.contains(['/', '|']);
    for (filter, private, shared) in [
        ("0x33", true, true),
        ("0x31", true, false),
        ("0x32", false, true),
        ("0x30", false, false),
    ] {
        let mut command = doctor();
        let folder = tempfile::tempdir().expect("a folder");
        command.env("TMPDIR", folder.path());
        before(&mut command, || {
            let limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 64 << 20,
            };
            // SAFETY: a structure that outlives the call.
            checked(i64::from(unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &limit)
            }))
        });
        before(&mut command, move || {
            std::fs::write("/proc/self/coredump_filter", filter)
        });
        let said = ask(&mut command);
        let dumps = said.of("core dumps");
        if tried {
            let has = &dumps["measured"];
            assert_eq!(has["private_in_core"], private, "{filter}: {dumps:#}");
            assert_eq!(has["shared_in_core"], shared, "{filter}: {dumps:#}");
        }
        match (private, shared) {
            (true, false) => said.limits(
                "core dumps",
                "coredump_filter leaves shared memory out: REGALL_SHARE does nothing",
                "echo 0x33 >/proc/$$/coredump_filter",
            ),
            _ => said.good("core dumps"),
        }
        let left = std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(left, 0, "a core is left behind");
    }
    if !tried {
        skip("cores go to a program or another folder, so none can be looked into");
    }
}
