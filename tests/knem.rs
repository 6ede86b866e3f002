//! Regions through /dev/knem: the real one where the module is, else a stand-in at the
//! system calls (c-tests/bridge/knem_device.c).

use std::process::Command;
use std::time::Duration;

use regall_tests::child::run;
use regall_tests::devices::KNEM;
use regall_tests::mode::Mode;
use regall_tests::{build, skip};

/// enum regall_mechanism.
const BY_CMA: &str = "3";
const BY_KNEM: &str = "4";

#[test]
fn the_stand_in_is_as_the_driver() {
    KNEM.run(Mode::Populate, &[], "auto", &["bridge/knem_client"]);
    if !KNEM.is_real() {
        let options = ["--dma", "--slow=5"];
        KNEM.run(Mode::Populate, &options, "auto", &["bridge/knem_client"]);
    }
}

/// `--pages`: a cookie whose pages have been replaced fails there, as the driver would
/// hand out the old ones.
#[test]
fn regions_go_through_the_module() {
    for options in [&[][..], &["--pages"]] {
        let program = ["bridge/knem_region", BY_KNEM];
        KNEM.run(Mode::Populate, options, "knem,cma", &program);
    }
}

/// Pages that are not there yet when the region is made, children's, and more segments than the
/// driver takes.
#[test]
fn what_is_written_later_is_seen() {
    for mode in [Mode::Populate, Mode::OnFault] {
        let program = ["bridge/knem_pages", BY_KNEM];
        let used = KNEM.run(mode, &["--pages"], "knem,cma", &program);
        assert_eq!(used.outcome.stderr, "", "{mode:?}");
        assert_eq!(used.count("stale", 0), 0, "{:?}", used.counted);
        assert_eq!(used.count("warned", 0), 0, "{:?}", used.counted);
    }
}

/// A fork during a copy takes the region's pages from the module, not the region from its
/// readers.
#[test]
fn copies_in_flight_go_on_by_another_way() {
    let program = ["bridge/region_stale", "flights"];
    KNEM.run(Mode::Populate, &["--pages"], "knem,cma", &program);
}

#[test]
fn without_the_module_the_next_one_copies() {
    if KNEM.is_real() {
        return skip("there is a /dev/knem");
    }
    for program in ["bridge/knem_region", "bridge/knem_pages"] {
        let mut command = Command::new(build::program(program));
        Mode::Populate.apply(&mut command);
        command.arg(BY_CMA).env("REGALL_COPY", "knem,cma");
        run(&mut command, Duration::from_secs(60)).must_succeed_at(program);
    }
}

#[test]
fn auto_prefers_cross_memory_attach() {
    KNEM.run(Mode::Populate, &[], "auto", &["bridge/knem_region", BY_CMA]);
}
