//! RDMA adapters, each tried by a program with the shim on; and the kernel modules
//! for copies that are not in the kernel itself.

use std::ffi::OsString;
use std::fs;

use rustix::fs::{access, Access};

use super::finding::{Finding, Standing::*, Who};
use super::place::{names, Place};
use super::shim::Trial;
use crate::figures::Tally;
use crate::look::look;
use crate::units;

const NODES: &str = "/dev/infiniband";

pub fn all(near: &Place) -> Vec<Finding> {
    let devices = names("/sys/class/infiniband");
    let mut all = vec![nodes(near, &devices)];
    all.extend([registering(&devices), on_demand(&devices)]);
    all.extend(MODULES.iter().map(|m| m.finding(near)));
    all
}

fn nodes(near: &Place, devices: &[String]) -> Finding {
    let name = "RDMA adapters";
    if devices.is_empty() {
        return near.mend_host(
            Finding::new(name, Absent, "none: the pin set alone is active"),
            "sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev \
             \"$(ip -o route show default | awk '{print $5; exit}')\" # Soft-RoCE, to try it",
        );
    }
    let found = devices.join(", ");
    let nodes = names(NODES).into_iter().filter(|n| n.starts_with("uverbs"));
    let nodes: Vec<_> = nodes.map(|n| format!("{NODES}/{n}")).collect();
    if nodes.is_empty() {
        let finding = Finding::new(name, Limits, format!("{found}, but no {NODES}/uverbs*"))
            .effect("nothing can be registered with them");
        return near.mend(
            finding,
            &format!("--device={NODES}"),
            "sudo modprobe ib_uverbs",
        );
    }
    match nodes.iter().all(|n| accessible(n)) {
        true => Finding::new(name, Good, format!("{found}; {}", nodes.join(", "))),
        false => Finding::new(name, Limits, format!("{found}; {NODES}/uverbs*: no access"))
            .effect("nothing can be registered with them")
            .mend(
                Who::Administrator,
                "echo 'KERNEL==\"uverbs*\", MODE=\"0666\"' | sudo tee \
                 /etc/udev/rules.d/90-uverbs.rules && sudo udevadm trigger",
            ),
    }
}

/// What a program with the shim registers with a device: bytes held, and what it said.
fn tried(device: &str, mode: &str) -> Result<(Tally, Vec<String>), String> {
    let word = |text: &str| OsString::from(text);
    let trial = Trial::start(&[
        ("REGALL_HCA", word(device)),
        ("REGALL_HCA_MODE", word(mode)),
    ])?;
    let looked = look(trial.pid()).map_err(|e| e.to_string())?;
    Ok((Tally::of(&looked.entries), trial.end()))
}

/// A program registers all its memory with each device.
fn registering(devices: &[String]) -> Finding {
    let name = "registering";
    if devices.is_empty() {
        return Finding::new(name, NotChecked, "there is no adapter");
    }
    let (mut words, mut good) = (Vec::new(), true);
    for device in devices {
        match tried(device, "pinned") {
            Err(why) => return Finding::new(name, NotChecked, why),
            Ok((bytes, said)) => {
                let held = bytes.0.hca.get("yes").copied().unwrap_or(0);
                good &= held > 0 && said.is_empty();
                words.push(match said.first() {
                    None => format!("{device}: {} registered", units::bytes(held)),
                    Some(line) => format!("{device}: {line}"),
                });
            }
        }
    }
    let found = words.join("; ");
    match good {
        true => Finding::new(name, Good, found),
        false => Finding::new(name, Limits, found)
            .effect("the application registers itself, as without regall")
            .mend(
                Who::You,
                "look that line up in docs/troubleshooting.md, \"Registration\"",
            ),
    }
}

/// Which devices page on demand, as the shim finds it.
fn on_demand(devices: &[String]) -> Finding {
    let name = "on-demand paging";
    if devices.is_empty() {
        return Finding::new(name, NotChecked, "there is no adapter");
    }
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for device in devices {
        match tried(device, "odp") {
            Ok((_, said)) if said.is_empty() => with.push(device.as_str()),
            Ok(_) => without.push(device.as_str()),
            Err(why) => return Finding::new(name, NotChecked, why),
        }
    }
    let without_text = format!(
        "{} can't: REGALL_HCA_MODE=odp acts as pinned there",
        without.join(", ")
    );
    match (with.is_empty(), without.is_empty()) {
        (false, true) => Finding::new(name, Good, with.join(", ")),
        (false, false) => Finding::new(name, Good, with.join(", ")).effect(without_text),
        _ => Finding::new(name, Absent, without_text),
    }
}

/// A kernel module that copies between processes.
struct Module {
    name: &'static str,
    node: &'static str,
    without: &'static str,
    module: &'static str,
    from: &'static str,
}

const MODULES: [Module; 2] = [
    Module {
        name: "KNEM",
        node: "/dev/knem",
        without: "not loaded: memory behind a cookie is copied by mapping or process_vm_readv",
        module: "knem",
        from: "https://knem.gitlabpages.inria.fr",
    },
    Module {
        name: "XPMEM",
        node: "/dev/xpmem",
        without: "not loaded: peers map shared memory without it",
        module: "xpmem",
        from: "https://github.com/openucx/xpmem",
    },
];

impl Module {
    /// The line that loads it; nothing can before it has been built for this kernel.
    fn to_load(&self) -> String {
        let release = super::place::read("/proc/sys/kernel/osrelease").unwrap_or_default();
        let known = super::place::read(format!("/lib/modules/{release}/modules.dep"));
        let Self { module, from, .. } = self;
        match known.is_some_and(|all| has_module(&all, module)) {
            true => format!("sudo modprobe {module}"),
            false => {
                format!("sudo modprobe {module} # after it was built for this kernel, from {from}")
            }
        }
    }

    fn finding(&self, near: &Place) -> Finding {
        let node = self.node;
        match (fs::exists(node), accessible(node)) {
            (Ok(true), true) => Finding::new(self.name, Good, node),
            (Ok(true), false) => near.mend(
                Finding::new(self.name, Limits, format!("{node}: no access")),
                &format!("--device={node}"),
                format!("sudo chmod 666 {node}"),
            ),
            _ => near.mend_host(
                Finding::new(self.name, Absent, self.without),
                self.to_load(),
            ),
        }
    }
}

/// Whether the modules of this kernel, by their paths in modules.dep, have one of this name.
fn has_module(dependencies: &str, name: &str) -> bool {
    let path = |line: &str| line.split(':').next().unwrap_or("").to_string();
    dependencies.lines().any(|line| {
        let path = path(line);
        let file = path.rsplit('/').next().unwrap_or("");
        file.split('.').next() == Some(name)
    })
}

fn accessible(path: &str) -> bool {
    access(path, Access::READ_OK | Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::has_module;

    #[test]
    fn a_module_is_there_if_it_was_installed() {
        let all = "kernel/a/mem.ko.xz: kernel/a/knem-x.ko.xz\nupdates/dkms/xpmem.ko:\n";
        assert!(has_module(all, "xpmem") && has_module(all, "mem"));
        assert!(!has_module(all, "knem") && !has_module("", "knem"));
    }
}
