//! REGALL_STATS_FILE: the counters as JSON, at exit. Written by hand into a
//! fixed buffer: no allocator here, and the libraries for it want one.

use crate::base::{counters, launched, settings};
use crate::config::names;
use crate::limits;
use crate::logger::{is_own, open_named, with_names};
use crate::sys::file::Fd;
use crate::sys::process::Identity;
use crate::sys::{self, folder, Errno};
use crate::text::{JsonText, Text};
use crate::track;
use crate::version;
use core::fmt::{self, Write};
use core::ops::ControlFlow;
use core::sync::atomic::Ordering::Relaxed;
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::layout::{Call, Counter, Header, SETTING_FORKED, SETTING_GAVE_UP};
use regall_directory::settings::each as each_setting;
use regall_directory::vocab::{Attr, Column, Reason};

/// Writes the file, if one is asked for.
#[cold]
#[inline(never)]
pub fn write() {
    let pattern = settings::config().stats_file.as_bytes();
    if pattern.is_empty() {
        return;
    }
    let opened = match names::on_node(pattern) {
        Some(name) => on_this_node(&name),
        None => at(pattern),
    };
    let written = opened.and_then(|fd| {
        let mut out = Out {
            fd,
            text: Text::new(),
            failed: None,
        };
        let _ = json(&mut out);
        out.flush();
        if out.failed.is_some() && !is_own(pattern) {
            // Nobody takes an empty file for a whole one. (What is in a pipe stays.)
            let _ = out.fd.truncate(0);
        }
        out.failed.map_or(Ok(()), Err)
    });
    if let Err(errno) = written {
        log::warn!("REGALL_STATS_FILE can't be written: {errno}");
    }
}

/// The file that a pattern names.
fn at(pattern: &[u8]) -> Result<Fd, Errno> {
    let path: Text<1100> = with_names(pattern);
    open_named(path.as_cstr().ok_or(Errno::INVAL)?, libc::O_TRUNC, 0o644)
}

/// A new file of this process's in the memory of the node, in a folder that nobody else can
/// enter. Its name begins with `name`, or else the job, and the rank, so that who merges those
/// opens no other.
fn on_this_node(name: &names::Job) -> Result<Fd, Errno> {
    let uid = sys::geteuid();
    let me = Identity::own()?;
    let mut file: Text<192> = match name.as_bytes() {
        [] => with_names(b"%j,%r,"),
        name => {
            let mut file = Text::new();
            file.push(name);
            let rest: Text<32> = with_names(b",%r,");
            file.push(rest.as_bytes());
            file
        }
    };
    let _ = write!(file, "{}.{}.{}", me.pid, me.start, me.namespace);
    let how = libc::O_CREAT | libc::O_TRUNC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = file.as_cstr().ok_or(Errno::INVAL)?;
    folder::in_own(folder::ROOT, uid, |_, which| {
        let mut path = which.path();
        path.push(b"/");
        path.push(names::STATISTICS);
        let inside = folder::open(path.as_cstr().ok_or(Errno::INVAL)?, uid)?;
        Fd::open_in(&inside, file, libc::O_WRONLY | how, 0o600)
    })
}

/// Text on its way to a file.
struct Out {
    fd: Fd,
    text: Text<1024>,
    failed: Option<Errno>,
}

impl Out {
    fn flush(&mut self) {
        if self.failed.is_none() {
            self.failed = self.fd.write_all_patiently(self.text.as_bytes()).err();
        }
        self.text.clear();
    }
}

impl Write for Out {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for piece in s.as_bytes().chunks(512) {
            if self.text.as_bytes().len() + piece.len() >= 1024 {
                self.flush();
            }
            self.text.push(piece);
        }
        Ok(())
    }
}

/// Everything, as one object: `Process` of documents/, whose names these are.
fn json(out: &mut Out) -> fmt::Result {
    let Some(h) = counters::header() else {
        return Ok(());
    };
    let (pinned, mappings, own) = match track::lock() {
        Some(guard) => (
            guard.ledger.totals().pin[Reason::None as usize],
            guard.ledger.len(),
            guard.own_bytes(),
        ),
        None => return Ok(()),
    };
    who(out, h)?;
    write!(
        out,
        "\"unpublished\":{},\"mappings\":{mappings},\"settings\":{{",
        h.unpublished.load(Relaxed)
    )?;
    let mut comma = "";
    each_setting(
        h.settings.load(Relaxed),
        settings::device(),
        |name, value| {
            let before = core::mem::replace(&mut comma, ",");
            write!(out, "{before}\"{name}\":\"{value}\"")
        },
    )?;
    write!(out, "}},\"bytes\":{{")?;
    bytes(out)?;
    write!(out, "}},\"events\":{{")?;
    let calls = Call::ALL.iter().map(|c| c.word());
    list(out, calls.zip(h.calls.iter().map(|n| n.load(Relaxed))))?;
    write!(out, "}},\"counters\":{{")?;
    let counters = Counter::ALL.iter().zip(&h.counters).map(|(c, n)| match c {
        Counter::Ranges => (c.word(), mappings as u64),
        Counter::PinnedBytes => (c.word(), pinned),
        Counter::ShimBytes => (c.word(), own),
        _ => (c.word(), n.load(Relaxed)),
    });
    list(out, counters)?;
    write!(
        out,
        "}},\"sites\":{{\"patched\":{},\"refused\":{}}},\"selftest_missed\":[",
        h.sites_patched.load(Relaxed),
        h.sites_refused.load(Relaxed)
    )?;
    let missed = h.selftest_missed.load(Relaxed);
    let mut comma = "";
    for call in Call::ALL.iter().filter(|c| missed & 1 << **c as u64 != 0) {
        write!(out, "{comma}\"{}\"", call.word())?;
        comma = ",";
    }
    writeln!(out, "],\"live\":null}}")
}

/// Which process it is, and what it may have.
fn who(out: &mut Out, h: &Header) -> fmt::Result {
    let mut exe = [0u8; 256];
    for (bytes, word) in exe.chunks_mut(8).zip(&h.exe) {
        bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
    }
    let end = exe.iter().position(|b| *b == 0).unwrap_or(exe.len());
    let in_force = h.settings.load(Relaxed);
    write!(
        out,
        "{{\"version\":1,\"library\":\"{}\",\"pid\":{},\"exe\":\"{}\",\"host\":\"{}\",\"rank\":{},\"ranks\":{},",
        version::name(),
        sys::getpid(),
        JsonText(exe.get(..end).unwrap_or(&[])),
        JsonText(sys::host().as_bytes()),
        Known(launched::rank().unwrap_or(u64::MAX)),
        Known(launched::ranks().unwrap_or(u64::MAX)),
    )?;
    write!(
        out,
        "\"start_time\":{},\"forked\":{},\"gave_up\":{},\"budget_bytes\":{},\"memlock_bytes\":{},",
        h.start_time.load(Relaxed),
        in_force & SETTING_FORKED != 0,
        in_force & SETTING_GAVE_UP != 0,
        Known(h.budget.load(Relaxed)),
        Known(limits::memlock_now().unwrap_or(u64::MAX)),
    )
}

/// Bytes by what is said of them. The ledger is asked for each group anew, so that little
/// stack is needed.
fn bytes(out: &mut Out) -> fmt::Result {
    let (mut registered, mut excluded) = (0, 0);
    let reasons = said(|attr, bytes| match attr.registered() {
        true => {
            registered += bytes;
            None
        }
        false => {
            excluded += bytes;
            Some(attr.reason())
        }
    });
    write!(
        out,
        "\"state\":{{\"registered\":{registered},\"excluded\":{excluded}}},\"reason\":{{"
    )?;
    reasons.list(out)?;
    write!(out, "}},\"pin\":{{")?;
    said(|attr, _| Some(attr.pin)).list(out)?;
    write!(out, "}},\"hca\":{{")?;
    said(|attr, _| Some(attr.hca)).list(out)?;
    write!(out, "}}")
}

/// Bytes by what one column says.
struct Said {
    /// By [`Reason`]; the first one is held.
    reasons: [u64; Reason::ALL.len()],
    /// The refused ones, by the kernel's errno.
    refused: [u64; 134],
}

/// All that is mapped, by what `column` says of it; none: it does not count.
fn said(mut column: impl FnMut(&Attr, u64) -> Option<Column>) -> Said {
    let mut said = Said {
        reasons: [0; Reason::ALL.len()],
        refused: [0; 134],
    };
    let (Some(guard), Some(all)) = (track::lock(), PageRange::new(0, !(PAGE - 1))) else {
        return said;
    };
    guard.ledger.for_each(all, |range, entry| {
        let Some(column) = column(&entry.attr, range.len()) else {
            return ControlFlow::Continue(());
        };
        let sum = match column.reason {
            Reason::Refused => said.refused.get_mut(usize::from(column.errno)),
            reason => said.reasons.get_mut(reason as usize),
        };
        if let Some(sum) = sum {
            *sum = sum.saturating_add(range.len());
        }
        ControlFlow::Continue(())
    });
    said
}

impl Said {
    /// What is not 0.
    fn list(&self, out: &mut Out) -> fmt::Result {
        let mut comma = "";
        let mut one = |column: Column, bytes: u64| match bytes {
            0 => Ok(()),
            _ => {
                let before = core::mem::replace(&mut comma, ",");
                write!(out, "{before}\"{column}\":{bytes}")
            }
        };
        for (reason, bytes) in Reason::ALL.iter().zip(self.reasons) {
            one(Column::no(*reason), bytes)?;
        }
        for (errno, bytes) in (0..).zip(self.refused) {
            one(Column::refused(errno), bytes)?;
        }
        Ok(())
    }
}

/// A number, or null for u64::MAX: there is none.
struct Known(u64);

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u64::MAX => f.write_str("null"),
            n => write!(f, "{n}"),
        }
    }
}

fn list(out: &mut Out, pairs: impl Iterator<Item = (&'static str, u64)>) -> fmt::Result {
    let mut comma = "";
    for (name, n) in pairs {
        write!(out, "{comma}\"{name}\":{n}")?;
        comma = ",";
    }
    Ok(())
}
