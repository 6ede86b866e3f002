//! What is said of a range and of a key.

use std::fmt;

use regall_directory::vocab::{Attr, Reason};

/// What is said of processes that had no turn.
pub const NO_TIME: &str = "not looked at: processes of several users took all of the time";

/// Says that there is none of the processes that are meant.
pub const NO_PROCESS: &str = "no process with the shim on";

/// The word for whether any registrar holds a range.
pub fn state(attr: &Attr) -> &'static str {
    match attr.registered() {
        true => "registered",
        false => "excluded",
    }
}

/// The one reason, or `-` of what is registered.
pub fn reason(attr: &Attr) -> String {
    let column = attr.reason();
    match column.reason {
        Reason::None => "-".to_string(),
        _ => column.to_string(),
    }
}

/// A key in hexadecimal, or `-`.
pub struct Key(pub Option<u32>);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(key) => write!(f, "{key:#x}"),
            None => f.write_str("-"),
        }
    }
}
