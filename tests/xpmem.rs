//! A peer's memory through /dev/xpmem: the real one where the module is, else a stand-in at the
//! system calls, which attaches shared memory alone (c-tests/bridge/xpmem_device.c).

use std::process::Command;
use std::time::Duration;

use regall_tests::devices::XPMEM;
use regall_tests::mode::Mode;
use regall_tests::{build, child, skip};

#[test]
fn the_stand_in_is_as_the_driver() {
    XPMEM.run(Mode::Plain, &[], "auto", &["bridge/xpmem_client"]);
}

/// What is read and written, and what becomes of it.
#[test]
fn mapped() {
    for (name, order, copies) in [
        ("kinds", "xpmem", true),
        ("replaced", "xpmem", true),
        ("forked", "xpmem", true),
        ("large", "xpmem", true),
        ("ends", "xpmem", true),
        ("kinds", "auto", false),
    ] {
        let used = XPMEM.run(Mode::Populate, &[], order, &["bridge/mapping", name]);
        assert_eq!(used.outcome.stderr, "", "{name}, REGALL_COPY={order}");
        let attached = used.count("attaches", copies.into());
        assert_eq!(attached > 0, copies, "{name}, {order}: {:?}", used.counted);
    }
}

/// Never a signal, never memory of our own.
fn life(name: &str, order: &str) {
    let used = XPMEM.run(Mode::Populate, &[], order, &["bridge/xpmem_life", name]);
    assert_eq!(used.outcome.stderr, "", "{name}, REGALL_COPY={order}");
    assert_eq!(used.count("hangs", 0), 0, "{name}: {:?}", used.counted);
}

#[test]
fn owners_that_end() {
    life("killed", "xpmem");
    life("executes", "xpmem");
    life("stopped", "xpmem,cma,helper");
}

#[test]
fn who_changes_its_credentials_takes_its_memory_back() {
    // SAFETY: a system call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        return skip("a change of credentials: not root");
    }
    life("changes", "xpmem");
}

#[test]
fn children_that_share_descriptors_close_none_of_their_parents() {
    let program = ["bridge/table", "files"];
    let used = XPMEM.run(Mode::Populate, &[], "xpmem,helper", &program);
    assert_eq!(used.outcome.stderr, "");
}

#[test]
fn descriptors_that_are_closed() {
    life("closes", "xpmem,cma");
    life("own", "xpmem,cma");
}

/// The driver never ends a process that has something attached then.
#[test]
fn other_programs_are_executed() {
    life("execs", "xpmem");
    life("execs", "xpmem,cma,helper");
}

#[test]
fn the_helper_leaves_what_is_the_programs() {
    life("segments", "auto");
    life("segments", "xpmem,cma,helper");
}

#[test]
fn without_the_module() {
    if XPMEM.is_real() {
        return skip("there is a /dev/xpmem");
    }
    for order in ["xpmem,cma", "xpmem,map"] {
        let mut command = Command::new(build::program("bridge/mapping"));
        Mode::Populate.apply(&mut command);
        command.arg("replaced").env("REGALL_COPY", order);
        child::run(&mut command, Duration::from_secs(60)).must_succeed_at(order);
    }
}
