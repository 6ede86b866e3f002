//! Regions through /dev/knem: the real one where the module is, else a stand-in at the
//! system calls (c-tests/bridge/knem_device.c).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use regall_tests::child::{run, Outcome};
use regall_tests::mode::Mode;
use regall_tests::{build, skip};

/// enum regall_mechanism.
const CMA: &str = "3";
const KNEM: &str = "4";

/// Runs `program` under the stand-in, if one is wanted and there is no device.
fn under(standin: Option<&[&str]>, program: &str, args: &[&str], copy: &str) -> Outcome {
    let mut words: Vec<String> = Vec::new();
    if let (Some(options), false) = (standin, Path::new("/dev/knem").exists()) {
        words.push(build::program("bridge/knem_device").display().to_string());
        words.extend(options.iter().map(|o| o.to_string()));
    }
    words.push("env".into());
    let mut shim = Command::new("true");
    Mode::Populate.apply(&mut shim);
    for (name, value) in shim.get_envs() {
        if let (Some(name), Some(value)) = (name.to_str(), value.and_then(|v| v.to_str())) {
            words.push(format!("{name}={value}"));
        }
    }
    words.push(format!("REGALL_COPY={copy}"));
    words.push(build::program(program).display().to_string());
    words.extend(args.iter().map(|a| a.to_string()));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let outcome = run(&mut command, Duration::from_secs(60));
    outcome.must_succeed_at(format_args!("{words:?}"));
    outcome
}

#[test]
fn the_stand_in_is_as_the_driver() {
    under(Some(&[]), "bridge/knem_client", &[], "auto");
    under(
        Some(&["--dma", "--slow=5"]),
        "bridge/knem_client",
        &[],
        "auto",
    );
}

/// `--pages`: a cookie whose pages have been replaced fails there, as the driver would
/// hand out the old ones.
#[test]
fn regions_go_through_the_module() {
    for options in [&[][..], &["--pages"]] {
        under(Some(options), "bridge/knem_region", &[KNEM], "knem,cma");
    }
}

#[test]
fn without_the_module_the_next_one_copies() {
    if Path::new("/dev/knem").exists() {
        return skip("there is a /dev/knem");
    }
    under(None, "bridge/knem_region", &[CMA], "knem,cma");
}

#[test]
fn auto_prefers_cross_memory_attach() {
    under(Some(&[]), "bridge/knem_region", &[CMA], "auto");
}
