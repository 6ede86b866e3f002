//! What can be done with memory, in words and as a pattern: no colour has to be
//! told from another one.

use regall_directory::vocab::{Column, Reason};

use crate::rows::Row;

/// How a kind is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Fill {
    /// Full: it is held.
    Held,
    /// Full but for thin lines: one registrar could not have it.
    Half,
    /// Thin lines on white: left out, as it should be.
    Out,
    /// Crossed lines: left out, and that may hurt.
    Trouble,
    /// Nothing but a thick border: nobody says anything of it.
    Gap,
}

/// All kinds that a process has, numbered as they come.
#[derive(Default)]
pub struct Kinds(Vec<(Fill, String)>);

impl Kinds {
    /// The number of a row's kind.
    pub fn number(&mut self, row: &Row) -> usize {
        let kind = kind(row);
        let known = self.0.iter().position(|k| *k == kind);
        known.unwrap_or_else(|| {
            self.0.push(kind);
            self.0.len() - 1
        })
    }

    /// How it is drawn.
    pub fn fill(&self, number: usize) -> Fill {
        self.0.get(number).map_or(Fill::Gap, |(fill, _)| *fill)
    }

    /// What it is, in words.
    pub fn words(&self, number: usize) -> &str {
        self.0.get(number).map_or("", |(_, words)| words)
    }
}

fn kind(row: &Row) -> (Fill, String) {
    let Some(entry) = row.entry else {
        return (Fill::Gap, "A GAP: regall says nothing of it".into());
    };
    let (pin, hca) = (entry.attr.pin, entry.attr.hca);
    let fill_of = |column: Column| match trouble(column) {
        true => Fill::Half,
        false => Fill::Held,
    };
    let how = match pin.reason {
        Reason::None => Some("pinned"),
        Reason::Kept => Some("kept without a lock"),
        _ => None,
    };
    match (how, hca.held()) {
        (Some(how), true) => (
            Fill::Held,
            format!("registered: {how}, and with the adapter"),
        ),
        (Some(how), false) if hca.reason == Reason::Off => {
            (Fill::Held, format!("registered: {how}"))
        }
        (Some(how), false) => (
            fill_of(hca),
            format!("registered: {how}; adapter: {}", why(hca)),
        ),
        (None, true) if pin.reason == Reason::Off => {
            (Fill::Held, "registered: with the adapter".into())
        }
        (None, true) => {
            let words = format!("registered: with the adapter; pin: {}", why(pin));
            (fill_of(pin), words)
        }
        (None, false) => {
            let column = entry.attr.reason();
            let fill = match trouble(column) {
                true => Fill::Trouble,
                false => Fill::Out,
            };
            (fill, format!("not registered: {}", why(column)))
        }
    }
}

/// Whether a registrar would have had it if it could.
fn trouble(column: Column) -> bool {
    matches!(
        column.reason,
        Reason::Limit | Reason::Refused | Reason::Inherited | Reason::Off
    )
}

fn why(column: Column) -> String {
    let words = match column.reason {
        Reason::None => "it is",
        Reason::NoAccess => "no access allowed (PROT_NONE)",
        Reason::Kernel => "the kernel's own",
        Reason::Device => "a device's",
        Reason::Managed => "a driver moves it between host and device",
        Reason::Shim => "regall's own",
        Reason::OptedOut => "somebody asked for that",
        Reason::Scope => "REGALL_SCOPE leaves it out",
        Reason::Limit => "over the limit",
        Reason::Inherited => "inherited at fork",
        Reason::Off => "no registrar is active",
        Reason::Kept => "held without a lock: no swap space",
        Reason::Cache => "page cache, which the kernel reads again",
        Reason::Untouched => "nobody has touched it or asked for it yet",
        Reason::OnRequest => "registered when it is asked for",
        Reason::Refused => {
            let errno = std::io::Error::from_raw_os_error(column.errno.into());
            return format!("refused, {errno}").replace(" (os error ", " (errno ");
        }
    };
    words.to_string()
}
