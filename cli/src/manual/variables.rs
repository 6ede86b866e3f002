//! The variables, for regall(7). The README has the same table, and a test compares
//! both with what the shim takes (src/config.rs).

/// A variable that the shim reads.
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What holds without it; empty: nothing.
    pub default: &'static str,
    /// What it is, with code between backticks.
    pub meaning: &'static str,
}

const fn of(name: &'static str, default: &'static str, meaning: &'static str) -> Variable {
    Variable {
        name,
        default,
        meaning,
    }
}

/// In the README's order.
pub const ALL: [Variable; 20] = [
    of("REGALL", "0", "`1` turns it on"),
    of("REGALL_PIN", "auto", "the pin set: `auto` (locked when touched; adapters make nothing resident that nobody has touched, but for what is small), `onfault` (locked when touched; adapters register everything at once), `populate` (everything locked and resident at once), `off` (tracked only)"),
    of("REGALL_INTERCEPT", "patch", "`patch`: the sites of system calls are patched; `symbols`: only calls through the public functions are seen; `strict`: patch, plus Syscall User Dispatch for sites that can't be patched"),
    of("REGALL_LIMIT", "90%", "the budget: bytes with K, M, G, T (powers of 1,024), or % of the smallest of RLIMIT_MEMLOCK where it binds, this process's share of what the node and its memory cgroups have left (shared by the processes with the shim on in the same cgroup, or by the local ranks where their launcher is in it, reckoned anew as it fills), and this rank's share of physical memory by the local size that the launcher tells. With `REGALL_PIN=auto` and a percentage, where there is no swap space and RLIMIT_MEMLOCK does not bind, page cache alone counts: other memory is no harder to have back for being locked. With `auto` and `onfault` and a percentage, page cache is locked only while everything that the process has mapped fits its share"),
    of("REGALL_ON_LIMIT", "skip", "beyond it: `skip` (the range is `limit`) or `fail` (mmap, mremap and brk say ENOMEM)"),
    of("REGALL_FORK", "inherit", "`inherit`: a child leaves what it inherited alone and registers what it maps itself; `all`: everything, at once"),
    of("REGALL_EXCLUDE", "", "comma-separated globs: mappings never to register, by path or by name as `[heap]`; `*` matches slashes too"),
    of("REGALL_ONLY", "", "comma-separated globs: executables to be active in, by file name or path (default: all but those below)"),
    of("REGALL_STATS_FILE", "", "at exit, write the counters as JSON to this path; `%p` is the pid, `%h` the host's name"),
    of("REGALL_LOG", "warn", "`off`, `error`, `warn`, `info`, `debug`, `trace`"),
    of("REGALL_LOG_FILE", "stderr", "a path; `%p` is the pid, `%h` the host's name"),
    of("REGALL_HCA", "adopt", "`adopt`: from its first registration on, everything is registered in every protection domain (PD) of the application's; a device (`mlx5_0`, `rxe0`): the same, and in a PD of the shim's own on that device from before main; `off`"),
    of("REGALL_HCA_MODE", "pinned", "`pinned`; `odp`: on-demand paging, where the adapter has it: nothing is pinned, and PROT_NONE is registered too. Go with `REGALL_PIN=off` if nothing is to be resident"),
    of("REGALL_SCOPE", "all", "`all`: whatever the kernel will register; `data`: without read-only private file mappings (text, rodata), since registering them copies their pages, some tens of MiB for an MPI rank"),
    of("REGALL_KEYS", "mapping", "what a borrowed key covers: `mapping`: the region that the buffer lies in; `exact`: what was asked for, by a real registration (nothing is borrowed)"),
    of("REGALL_ACCESS", "local", "what peers may do through published keys: `local` (there are none for them), `remote-read`, `remote-write`, `remote-atomic`, each with those before. The application's own requests get what they ask for"),
    of("REGALL_COPY", "auto", "the copy between peers: `auto`, `off`, or a list in order of preference of `map` (the peer's memory mapped here), `xpmem`, `cma` (process_vm_readv), `knem` (regions alone), `helper` (a thread of the owner's; naming it starts one at once, `auto` only where peers can't get at a process otherwise, or where a seccomp filter keeps that from being found out). With `map` the application's own process_vm_readv and process_vm_writev are served so, too"),
    of("REGALL_PTRACER", "off", "where `kernel.yama.ptrace_scope` is 1: `any` lets every process of the user trace this one (PR_SET_PTRACER_ANY), so that process_vm_readv works among ranks without mapping or helper; debuggers, too. See SECURITY.md"),
    of("REGALL_SHARE", "off", "`heap`: back large anonymous memory of ranks by a memfd, so that peers can map it, where that pays; `always`: of every process"),
    of("REGALL_HUGE", "advise", "`advise`: ask for transparent huge pages on large anonymous ranges (with `REGALL_PIN=auto` only if this is set: a huge page is resident as a whole); `off`"),
];

/// Executables that are left out by default; the README has them in words, and a test
/// compares them with what the shim leaves out (directory/src/settings.rs).
pub const LEFT_OUT: &str =
    "mpirun, mpiexec, mpirun.openmpi, mpiexec.openmpi, mpirun.mpich, mpiexec.mpich, \
    mpiexec.hydra, hydra_pmi_proxy, hydra_bstrap_proxy, hydra_nameserver, orterun, orted, \
    ompi_info, prte, prted, prterun, prun, oshrun, srun, sbatch, salloc, slurmstepd, slurmd, \
    sattach, qsub, pbs_mom, jsrun, flux, aprun, ssh, sshd, rsh, sh, bash, dash, ash, busybox, \
    zsh, ksh, mksh, csh, tcsh, fish, env, nice, nohup, timeout, numactl, taskset, setsid, \
    stdbuf, time, sudo, su, xargs, strace, ltrace, gdb, perf, regall";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const README: &str = include_str!("../../../README.md");
    const SETTINGS: &str = include_str!("../../../directory/src/settings.rs");
    const CONFIG: &str = include_str!("../../../src/config.rs");

    /// What is between two marks, wherever both are in that order.
    fn between<'a>(text: &'a str, before: &'a str, behind: char) -> impl Iterator<Item = &'a str> {
        text.split(before)
            .skip(1)
            .filter_map(move |rest| rest.split(behind).next())
    }

    #[test]
    fn the_readme_says_the_same() {
        for v in &ALL {
            let default = match v.default {
                "" | "stderr" => v.default.to_string(),
                word => format!("`{word}`"),
            };
            let row = format!("| `{}` | {default} | {} |", v.name, v.meaning);
            let row = row.replace("|  |", "| |");
            assert!(README.contains(&row), "not in the README:\n{row}");
        }
        let rows = README.lines().filter(|l| l.starts_with("| `REGALL"));
        assert_eq!(rows.count(), ALL.len());
    }

    #[test]
    fn they_are_what_the_shim_takes() {
        let code = CONFIG.split("#[cfg(test)]").next().unwrap();
        let mut taken: Vec<_> = between(code, "b\"REGALL", '"')
            .map(|rest| format!("REGALL{rest}"))
            // A feature of the tests' alone.
            .filter(|name| name != "REGALL_FAIL_REQUEST")
            .collect();
        taken.sort();
        let mut told: Vec<_> = ALL.iter().map(|v| v.name.to_string()).collect();
        told.sort();
        assert_eq!(taken, told);
        let pairs = between(CONFIG, "(\"REGALL_", ')')
            .filter_map(|pair| pair.strip_suffix('"')?.split_once("\", \""))
            .map(|(name, value)| (format!("REGALL_{name}"), value));
        let defaults: BTreeMap<_, _> = pairs.collect();
        assert!(defaults.len() > 10, "{defaults:?}");
        for v in &ALL {
            if let Some(default) = defaults.get(v.name) {
                assert_eq!(&v.default, default, "{}", v.name);
            }
        }
    }

    #[test]
    fn what_is_left_out_is_what_the_shim_leaves_out() {
        let list = between(SETTINGS, "LAUNCHERS: &[u8] = b\"", '"')
            .next()
            .unwrap();
        let names = |text: &str| {
            let all = text.split([',', ' ', '\\', '\n']).filter(|w| !w.is_empty());
            all.map(str::to_string).collect::<Vec<_>>()
        };
        assert!(names(list).len() > 40);
        assert_eq!(names(LEFT_OUT), names(list));
    }

    /// But for the one that says whether it is on at all.
    #[test]
    fn each_has_a_flag_of_regall_run() {
        let told = ALL.iter().map(|v| v.name).filter(|name| *name != "REGALL");
        assert_eq!(
            told.collect::<std::collections::BTreeSet<_>>(),
            crate::settings::names().iter().copied().collect()
        );
    }
}
