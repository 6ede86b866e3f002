//! Users, by number and by name.

use std::process::Command;

use anyhow::Context;

/// A user's number: of that number, or of a name that the system's sources of users know.
pub fn number(name: &str) -> anyhow::Result<u32> {
    let asked = || entry(name)?.split(':').nth(2)?.parse().ok();
    let number = name.parse().ok().or_else(asked);
    number.with_context(|| format!("no user {name}"))
}

/// A user's name.
pub fn name(number: u32) -> Option<String> {
    let entry = entry(&number.to_string())?;
    entry.split(':').next().map(str::to_string)
}

/// The line of passwd(5). The command is linked statically, and has no part of libc's that asks
/// LDAP and the like.
fn entry(key: &str) -> Option<String> {
    let asked = Command::new("getent").args(["passwd", "--", key]).output();
    let asked = asked.ok().filter(|o| o.status.success())?;
    String::from_utf8(asked.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_nought() {
        assert_eq!(number("root").unwrap(), 0);
        assert_eq!(name(0).as_deref(), Some("root"));
        assert_eq!(number("4294967294").unwrap(), u32::MAX - 1);
        assert!(number("no such user").is_err());
        assert_eq!(name(u32::MAX - 2), None);
    }
}
