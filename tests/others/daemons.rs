//! Daemons that start as root and become somebody else.

use super::*;

/// A pool of memory, and threads.
#[test]
fn memcached() {
    Script::new("memcached", &["memcached/usr/bin/memcached", "python3"]).same();
}

/// A master that stays root, and workers that don't.
#[test]
fn nginx() {
    Script::new("nginx", &["nginx/usr/sbin/nginx", "python3"]).same();
}

/// It keeps capabilities when it gives up root.
#[test]
fn dnsmasq() {
    Script::new("dnsmasq", &["dnsmasq-base/usr/sbin/dnsmasq", "python3"]).same();
}

/// In a folder that it has made its root.
#[test]
fn unbound() {
    Script::new("unbound", &["unbound/usr/sbin/unbound", "python3"]).same();
}

/// A seccomp filter of its own making.
#[test]
fn chrony() {
    Script::new("chrony", &["chrony/usr/sbin/chronyd"]).same();
}

/// A child without rights, in a sandbox, talks to the network; another becomes the user.
#[test]
fn sshd() {
    Script::new(
        "sshd",
        &["openssh-server/usr/sbin/sshd", "ssh", "ssh-keygen"],
    )
    .same();
}
