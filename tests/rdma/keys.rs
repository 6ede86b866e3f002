//! Protection keys, which the guest's processor has and most that tests run on have not.

use super::*;

/// What a program says without the shim, which has to have keys.
fn plain(program: &str, args: &[&str]) -> Outcome {
    let mut command = Command::new(build::program(program));
    Mode::Plain.apply(command.args(args));
    let done = child::run(&mut command, TIMEOUT);
    done.must_succeed_at(program);
    assert!(!done.stdout.contains("no keys"), "no keys in the guest");
    done
}

/// What it says with the shim, and private memory shared. (With pins and with REGALL_HUGE the
/// kernel's flags would say so.)
fn shared(program: &str, args: &[&str], mode: Mode) -> Outcome {
    let mut command = Command::new(build::program(program));
    mode.apply(command.args(args));
    command.envs([("REGALL_SHARE", "always"), ("REGALL_HUGE", "off")]);
    child::run(&mut command, TIMEOUT)
}

/// A key stays with private memory whatever is put in its place, in a child as well; what it
/// forbids stays forbidden; and code that it hides is not read in a sandbox.
pub fn stay() -> Checked {
    for args in [&["key"][..], &["-t", "key"]] {
        let with = shared("share/marks", &[&["-b"], args].concat(), Mode::Off);
        let differences = with.differences(&plain("share/marks", args));
        assert_eq!(differences, Vec::<String>::new(), "marks {args:?}");
    }
    let steps = ["3000", "1"];
    let alone = plain("share/differ", &steps);
    for mode in [Mode::Off, Mode::Populate] {
        let differences = shared("share/differ", &steps, mode).differences(&alone);
        assert_eq!(differences, Vec::<String>::new(), "differ, {mode:?}");
    }
    let differences = shared("boxed", &[], Mode::Auto).differences(&plain("boxed", &[]));
    assert_eq!(differences, Vec::<String>::new(), "boxed");
    Ok(())
}
