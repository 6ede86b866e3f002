//! `verify --all` looks at whatever runs on the machine, so it has a file (and
//! thereby a time) of its own, and minds what it says of our processes alone.

mod common;

use common::{regall, Publisher};

#[test]
fn all_are_those_that_run_with_the_shim() {
    let (good, mut bad, mut gone) = (Publisher::new(), Publisher::new(), Publisher::new());
    bad.tell("-");
    gone.tell("x");
    std::thread::sleep(std::time::Duration::from_millis(100));
    let (code, said) = regall(&["verify", "--all"]);
    assert_ne!(code, 0, "{said}");
    assert!(said.contains(&format!("{}: ok, ", good.pid())), "{said}");
    assert!(said.contains(&format!("{}: gap ", bad.pid())), "{said}");
    assert!(!said.contains(&format!("{}:", gone.pid())), "{said}");
}
