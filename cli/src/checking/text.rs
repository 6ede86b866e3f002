//! The report for people.

use std::fmt::Write;

use regall_documents::{Check, Checked, Fault, Severity, Stack, StackFrame};

use crate::units;

/// The report; `errors`: without notes.
pub fn of(found: &Check, errors: bool) -> String {
    let mut text = String::new();
    for fault in &found.findings {
        if !errors || fault.severity == Severity::Error {
            finding(&mut text, fault);
        }
    }
    for process in &found.processes {
        remarks(&mut text, process);
    }
    let _ = writeln!(text, "regall check: {}", sums(found));
    text
}

fn sums(found: &Check) -> String {
    let many = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mut registered = 0;
    for process in &found.processes {
        registered += process.counts.as_ref().map_or(0, |c| c.registered);
    }
    let suppressed = match found.suppressed {
        0 => String::new(),
        n => format!(", {n} suppressed"),
    };
    let late = match found.late {
        0 => String::new(),
        n => format!(", {n} deregistered late (--late has them)"),
    };
    let images = found.processes.len() as u64;
    format!(
        "{}, {}{suppressed}{late}; {} in {}",
        many(found.errors, "error"),
        many(found.notes, "note"),
        many(registered, "registration"),
        match images {
            1 => "1 process".to_string(),
            n => format!("{n} processes"),
        },
    )
}

fn finding(text: &mut String, fault: &Fault) {
    let severity = match fault.severity {
        Severity::Error => "error",
        Severity::Note => "note",
    };
    let pids: Vec<_> = fault.pids.iter().map(u32::to_string).collect();
    let times = match fault.count {
        1 => String::new(),
        n => format!(", {n} times"),
    };
    let _ = writeln!(
        text,
        "{severity}: {} [{}]\n  in {}{times}: {}-{}, of {} bytes at {} with lkey {}, rkey {}",
        fault.text,
        fault.kind,
        pids.join(", "),
        fault.start,
        fault.end,
        fault.registration.bytes,
        fault.registration.addr,
        fault.registration.lkey,
        fault.registration.rkey,
    );
    for stack in &fault.stacks {
        of_stack(text, stack);
    }
    text.push('\n');
}

fn of_stack(text: &mut String, stack: &Stack) {
    let _ = writeln!(text, "  {}:", stack.what);
    for (n, frame) in stack.frames.iter().enumerate() {
        let _ = writeln!(text, "    #{n} {}", of_frame(frame));
    }
    if !stack.whole {
        let _ = writeln!(text, "    ... further frames are not known");
    }
}

fn of_frame(frame: &StackFrame) -> String {
    let plain = |text: &Option<String>| units::printable(text.as_deref().unwrap_or("?"));
    let module = &plain(&frame.module);
    let name = module.rsplit('/').next().unwrap_or(module);
    let at = match &frame.offset {
        Some(offset) => format!("{name}+{offset}"),
        None => format!("{name} {}", frame.address),
    };
    let function = plain(&frame.function);
    match (frame.line, plain(&frame.file)) {
        (Some(line), file) if frame.file.is_some() => format!("{function} at {file}:{line} ({at})"),
        _ => format!("{function} ({at})"),
    }
}

/// What is to be known of a process beside its findings.
fn remarks(text: &mut String, process: &Checked) {
    let mut say = |what: &str| {
        let exe = units::printable(&process.exe);
        let _ = writeln!(text, "remark: {exe} ({}): {what}", process.pid);
    };
    if process.damaged {
        say("what it wrote can't be read to its end");
    }
    let Some(counts) = &process.counts else {
        return say("it did not end by exit; what was never deregistered is not known");
    };
    for (n, what) in [
        (
            counts.untracked,
            "registrations were not followed: there were too many at a time",
        ),
        (
            counts.crowded,
            "more ranges were unmapped of registrations for which four are recorded already",
        ),
        (counts.dropped, "records were not written"),
    ] {
        if n > 0 {
            say(&format!("{n} {what}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::evil;

    /// Names of functions, sources, libraries and programs: what stands in a file that somebody has
    /// made.
    #[test]
    fn names_command_no_terminal() {
        let evil = || Some(evil::TEXT.to_string());
        let frame = StackFrame {
            address: "0x1".into(),
            function: evil(),
            file: evil(),
            line: Some(1),
            module: evil(),
            offset: Some("0x1".into()),
            build_id: evil(),
        };
        evil::is_harmless(&of_frame(&frame));
        let process = Checked {
            pid: 1,
            exe: evil::TEXT.into(),
            counts: None,
            damaged: true,
        };
        let mut text = String::new();
        remarks(&mut text, &process);
        evil::is_harmless(&text);
    }
}
