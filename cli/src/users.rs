//! Users, by number and by name.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context;

/// So long the system's sources of users may take: who asks them serves somebody who waits.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a line of passwd(5), at the most.
const LONGEST: u64 = 64 << 10;

/// A user's number: of that number, or of a name that the system's sources of users know.
pub fn number(name: &str) -> anyhow::Result<u32> {
    let asked = || {
        let lines = entries("getent", &[name.to_string()]);
        lines.first()?.split(':').nth(2)?.parse().ok()
    };
    let number = name.parse().ok().or_else(asked);
    number.with_context(|| format!("no user {name}"))
}

/// The names of users, of those that have one.
pub fn names(numbers: impl Iterator<Item = u32>) -> BTreeMap<u32, String> {
    let keys: Vec<_> = numbers.map(|n| n.to_string()).collect();
    let lines = entries("getent", &keys);
    let named = lines.iter().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_string();
        Some((fields.nth(1)?.parse().ok()?, name))
    });
    named.collect()
}

/// The lines of passwd(5) of all that are known of these, as far as they come in time. The command
/// is linked statically, and has no part of libc's that asks LDAP and the like.
fn entries(getent: &str, keys: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut command = Command::new(getent);
    command.args(["passwd", "--"]).args(keys);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    if keys.is_empty() {
        return lines;
    }
    let Ok(mut child) = command.stdout(Stdio::piped()).spawn() else {
        return lines;
    };
    let until = Instant::now() + PATIENCE;
    let most = LONGEST * keys.len() as u64;
    let (send, receive) = mpsc::channel();
    let said = child.stdout.take().map(|out| out.take(most));
    std::thread::spawn(move || {
        let said = said.into_iter().flat_map(|out| BufReader::new(out).lines());
        let _ = said.flatten().try_for_each(|line| send.send(line));
    });
    while let Ok(line) = receive.recv_timeout(until.saturating_duration_since(Instant::now())) {
        lines.push(line);
    }
    // (If it does not end, it is not waited for.)
    let _ = child.kill();
    std::thread::spawn(move || child.wait());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_nought() {
        assert_eq!(number("root").unwrap(), 0);
        let name = |n: u32| names([0, n].into_iter()).remove(&n);
        assert_eq!(name(0).as_deref(), Some("root"));
        assert_eq!(number("4294967294").unwrap(), u32::MAX - 1);
        assert!(number("no such user").is_err());
        assert_eq!(name(u32::MAX - 2), None);
    }

    /// A source that does not answer: what came before counts.
    #[test]
    fn nobody_is_waited_for_for_ever() {
        let path = std::env::temp_dir().join(format!("regall-getent-{}", std::process::id()));
        let script = "#!/bin/sh\necho a:x:1:\nexec sleep 1000\n";
        std::fs::write(&path, script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&path, mode).unwrap();
        let said = entries(path.to_str().unwrap(), &["1".into(), "2".into()]);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(said, ["a:x:1:"]);
    }
}
