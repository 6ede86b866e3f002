//! How many mappings a process may have: pinning and registering parts of mappings
//! splits them.

use rustix::mm::{mprotect, MapFlags, MprotectFlags, ProtFlags};

use super::attempt::{errno, in_child, map, text};
use super::finding::{Finding, Standing::*};
use super::place::{read, Place};

/// The kernel's default; less than this is soon too little.
const ENOUGH: u64 = 65530;
const FILE: &str = "/proc/sys/vm/max_map_count";

/// Splits one mapping until the kernel has enough of it, or `most` are there: the
/// errno, and how many there were.
fn split(most: u64) -> [i64; 2] {
    let at = match map(
        most as usize * 4096,
        ProtFlags::empty(),
        MapFlags::NORESERVE,
    ) {
        Ok(at) => at,
        no => return [errno(no), 0],
    };
    for n in (1..most).step_by(2) {
        let page = at.wrapping_add(n as usize * 4096);
        // SAFETY: a page of the mapping that was made above; nothing is in it.
        let answer = unsafe { mprotect(page.cast(), 4096, MprotectFlags::READ) };
        if answer.is_err() {
            return [errno(answer), n as i64];
        }
    }
    [0, most as i64]
}

pub fn count(near: &Place) -> Finding {
    let name = "max_map_count";
    let Some(count) = read(FILE).and_then(|c| c.parse::<u64>().ok()) else {
        return Finding::new(name, Unknown, format!("{FILE} can't be read"));
    };
    let finding = match in_child(|| split(ENOUGH.min(count) - ENOUGH.min(count) / 16)) {
        Ok([0, had]) if count >= ENOUGH => Finding::new(
            name,
            Good,
            format!("{count}; a process could have {had} mappings"),
        )
        .measured("mappings", had),
        // Where a machine is too busy for that, the number has to do.
        Err(_) if count >= ENOUGH => Finding::new(name, Good, count.to_string()),
        Ok([no, had]) if no != 0 => Finding::new(
            name,
            Limits,
            format!("{count}; after {had} mappings: {}", text(no)),
        )
        .measured("mappings", had),
        _ => Finding::new(name, Limits, count.to_string()),
    };
    if finding.standing == Good {
        return finding;
    }
    let finding = finding.effect(
        "a call in the midst of a mapping fails with ENOMEM where its parts are too many; \
         the shim says \"stopped tracking: no memory for the ledger\"",
    );
    let line = format!("sudo sysctl -w vm.max_map_count={ENOUGH}");
    // The number is the machine's, for containers as well.
    near.mend_host(finding, line)
}
