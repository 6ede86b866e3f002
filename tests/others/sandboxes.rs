//! Sandboxes, and programs that make somebody else of themselves before they go on.

use super::*;

/// Who else one can be, and what is kept of it.
#[test]
fn identities() {
    Script::new(
        "identities",
        &["setpriv", "capsh", "su", "runuser", "chroot"],
    )
    .same();
}

#[test]
fn sudo() {
    Script::new("sudo", &["sudo", "setpriv"]).same();
}

#[test]
fn namespaces() {
    Script::new("namespaces", &["unshare", "nsenter", "setpriv"]).same();
}

#[test]
fn bubblewrap() {
    Script::new("bubblewrap", &["bwrap", "python3", "setpriv"]).same();
}

#[test]
fn firejail() {
    Script::new("firejail", &["firejail", "python3"]).same();
}

/// Runs containers, under the filter that they have by default.
#[test]
fn crun() {
    Script::new("crun", &["crun", "python3"]).same();
}

/// A browser with its sandbox.
#[test]
fn chromium() {
    Script::new("chromium", &["chromium", "setpriv"]).same();
}
