//! `regall dump`: the directory, for scripts. The format is an interface.

use std::fmt;
use std::io::Write;

use anyhow::Context;
use regall_directory::vocab::{Attr, Reason};
use regall_reader::Entry;

use crate::look::{look, Look};

#[derive(clap::Args)]
pub struct Args {
    /// The process
    pid: u32,
}

pub fn dump(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    let look = look(args.pid).with_context(|| args.pid.to_string())?;
    print(args.pid, &look, out)?;
    Ok(0)
}

fn print(pid: u32, look: &Look, out: &mut impl Write) -> std::io::Result<()> {
    let (start, generation) = (look.start_time, look.header.generation);
    writeln!(
        out,
        "# regall 1 pid {pid} start {start} generation {generation} busy {}",
        look.busy
    )?;
    for entry in &look.entries {
        let Entry { range, attr, .. } = entry;
        writeln!(
            out,
            "{:08x}-{:08x} {} {} {} {} {} {} {}",
            range.start(),
            range.end(),
            attr.prot,
            state(attr),
            reason(attr),
            Key(entry.lkey()),
            Key(entry.rkey()),
            attr.pin,
            attr.hca,
        )?;
    }
    Ok(())
}

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
