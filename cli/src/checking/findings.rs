//! Records put together to findings: what belongs to one loss is one, and what has the same
//! stacks happened several times.

use std::collections::HashMap;

use regall_checking::record::{Head, How, Kind};
use regall_directory::layout::Call;
use regall_documents::{Check, Checked, Checks, Fault, Registration, Severity, Stack, VERSION};

use super::records::{Image, Record};
use super::suppress::Suppressions;
use super::walk::Files;

/// What the images left comes to; `late`: with the losses of memory whose registration was
/// deregistered later, without a use in between.
pub fn of(images: &[Image], suppressions: &Suppressions, late: bool) -> Check {
    let mut files = Files::default();
    let mut all = Vec::new();
    let mut left_out = 0;
    for image in images {
        left_out += of_image(image, late, &mut files, &mut all);
    }
    let faults = merged(all);
    let found = faults.len();
    let (named, mut findings): (Vec<_>, Vec<_>) = faults
        .into_iter()
        .partition(|fault| suppressions.name(fault));
    // What was left without stacks, as too many came before it, is one of those before it.
    let like = |all: &[Fault], fault: &Fault| {
        all.iter()
            .any(|f| f.text == fault.text && !f.stacks.is_empty())
    };
    let reported = findings.clone();
    findings.retain(|f| !f.stacks.is_empty() || !like(&named, f) || like(&reported, f));
    // (Those of one kind stay in the order in which they happened.)
    findings.sort_by_key(|fault| fault.severity);
    let count = |s| findings.iter().filter(|f| f.severity == s).count() as u64;
    Check {
        version: VERSION,
        errors: count(Severity::Error),
        notes: count(Severity::Note),
        suppressed: (found - findings.len()) as u64,
        late: left_out,
        processes: images.iter().map(process).collect(),
        findings,
    }
}

fn process(image: &Image) -> Checked {
    Checked {
        pid: image.pid,
        exe: image.exe.clone(),
        counts: image.sums.map(|s| Checks {
            registered: s.registered,
            deregistered: s.deregistered,
            untracked: s.untracked,
            crowded: s.crowded,
            dropped: s.dropped,
            devices: s.watched,
        }),
        damaged: image.damaged,
    }
}

/// What goes on from a record.
#[derive(Default)]
struct After<'a> {
    returned: Option<&'a Record>,
    ended: bool,
    used: bool,
}

impl After<'_> {
    /// A cache may have done this, and be right: in its hook it must not wait for locks.
    fn only_late(&self) -> bool {
        self.ended && !self.used
    }
}

/// How many losses were left out, since deregistering was only late.
fn of_image(image: &Image, late: bool, files: &mut Files, all: &mut Vec<Fault>) -> u64 {
    let mut left_out = 0;
    let mut after: HashMap<u64, After> = HashMap::new();
    for record in image.records.iter().filter(|r| r.head.of != 0) {
        let entry = after.entry(record.head.of).or_default();
        match record.kind {
            Kind::Returned => entry.returned = Some(record),
            Kind::Ended => entry.ended = true,
            Kind::Used => entry.used = true,
            _ => (),
        }
    }
    let begun: HashMap<u64, &Record> = image.records.iter().map(|r| (r.head.id, r)).collect();
    let nothing = After::default();
    for record in &image.records {
        let (gone, later) = match record.kind {
            Kind::Returned | Kind::Ended => continue,
            Kind::Used => (
                begun.get(&record.head.of).copied(),
                after.get(&record.head.of),
            ),
            _ => (None, after.get(&record.head.id)),
        };
        let later = later.unwrap_or(&nothing);
        // The error says it all.
        if record.kind == Kind::Gone && later.used {
            continue;
        }
        if record.kind == Kind::Gone && later.only_late() && !late {
            left_out += 1;
            continue;
        }
        all.push(fault(record, gone, later, files));
    }
    left_out
}

fn fault(record: &Record, gone: Option<&Record>, later: &After, files: &mut Files) -> Fault {
    let head = &record.head;
    let mut stacks = Vec::new();
    let mut add = |what: &str, of: &Record, n: usize| {
        if let Some(raw) = &of.stacks[n] {
            stacks.push(files.walk(what, raw, &of.code));
        }
    };
    let first = match record.kind {
        Kind::Twice => "deregistered first",
        Kind::Again => "registered first",
        _ => "registered",
    };
    add(first, record, 0);
    if let Some(gone) = gone {
        add(&went(&gone.head), gone, 1);
    }
    if let (Some(back), true) = (later.returned, record.kind != Kind::Gone) {
        add(&mapped(&back.head), back, 1);
    }
    let last = match record.kind {
        Kind::Gone => went(head),
        Kind::Used => "posted".to_string(),
        Kind::Twice => "deregistered again".to_string(),
        Kind::Again => "registered again".to_string(),
        Kind::Forked => "forked".to_string(),
        _ => String::new(),
    };
    add(&last, record, 1);
    if let (Some(back), Kind::Gone) = (later.returned, record.kind) {
        add(&mapped(&back.head), back, 1);
    }
    Fault {
        severity: severity(record.kind),
        kind: record.kind.word().to_string(),
        text: sentence(record, later),
        pids: vec![head.pid as u32],
        count: 1,
        registration: registration(head),
        start: format!("{:#x}", head.start),
        end: format!("{:#x}", head.end),
        stacks,
    }
}

fn severity(kind: Kind) -> Severity {
    match kind {
        Kind::Used | Kind::Twice => Severity::Error,
        _ => Severity::Note,
    }
}

fn call(head: &Head) -> &'static str {
    let named = Call::ALL.iter().find(|c| **c as u64 == head.call);
    named.map_or("?", |c| c.word())
}

fn how(head: &Head) -> How {
    How::from_number(head.how).unwrap_or(How::None)
}

fn went(head: &Head) -> String {
    format!("{} ({})", how(head).word(), call(head))
}

fn mapped(head: &Head) -> String {
    format!("other memory was mapped ({})", call(head))
}

fn sentence(record: &Record, later: &After) -> String {
    let how = how(&record.head);
    match record.kind {
        Kind::Used => format!(
            "a work request names memory by a stale key: it was {} after it was registered, and \
             the adapter reaches the old pages",
            how.word()
        ),
        Kind::Twice => "a registration was deregistered twice".to_string(),
        Kind::Gone => {
            let instantly = matches!(how, How::Replaced | How::Discarded);
            let then = match (later.returned.is_some() || instantly, how.is_stale()) {
                (_, false) => "",
                (true, true) => "; other memory is there now, which the adapter does not reach",
                (false, true) => "",
            };
            let end = match later.ended {
                true => "; it was deregistered later",
                false => "; it was not deregistered",
            };
            format!("registered memory was {}{then}{end}", how.word())
        }
        Kind::Again => "memory was registered that is registered already, in the same protection \
                        domain with the same access"
            .to_string(),
        Kind::Leaked => "a registration was never deregistered".to_string(),
        Kind::ReadOnly => "memory was registered that is not mapped for writing".to_string(),
        Kind::Forked => "fork with registered memory, on a kernel that does not copy it: the \
                         process that writes first gets other pages"
            .to_string(),
        kind => kind.word().to_string(),
    }
}

fn registration(head: &Head) -> Registration {
    Registration {
        addr: format!("{:#x}", head.addr),
        bytes: head.len,
        lkey: format!("{:#x}", head.keys as u32),
        rkey: format!("{:#x}", head.keys >> 32),
        access: format!("{:#x}", head.access),
    }
}

/// What makes two findings the same: kind, sentence and stacks, whatever the addresses.
fn sameness(fault: &Fault) -> String {
    let mut all = format!("{}\n{}\n", fault.kind, fault.text);
    let frames = |stack: &Stack| {
        let mut text = stack.what.clone();
        for frame in &stack.frames {
            let place = frame.offset.as_ref().unwrap_or(&frame.address);
            text += &format!("\n{:?}+{place}", frame.module);
        }
        text
    };
    for stack in &fault.stacks {
        all += &frames(stack);
    }
    all
}

fn merged(all: Vec<Fault>) -> Vec<Fault> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut merged: Vec<Fault> = Vec::new();
    for fault in all {
        let place = places.entry(sameness(&fault)).or_insert(merged.len());
        match merged.get_mut(*place) {
            Some(first) => {
                first.count += 1;
                if !first.pids.contains(&fault.pids[0]) {
                    first.pids.push(fault.pids[0]);
                }
            }
            None => merged.push(fault),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn record(kind: Kind, id: u64, of: u64, how: How) -> Record {
        Record {
            head: Head {
                kind: kind as u64,
                id,
                of,
                how: how as u64,
                call: Call::Munmap as u64,
                ..Head::default()
            },
            kind,
            stacks: [None, None],
            code: Rc::default(),
        }
    }

    fn found(records: Vec<Record>) -> Check {
        found_with(records, false)
    }

    fn found_with(records: Vec<Record>, late: bool) -> Check {
        let image = Image {
            records,
            ..Image::default()
        };
        of(&[image], &Suppressions::default(), late)
    }

    #[test]
    fn a_use_is_the_error_and_takes_the_loss_along() {
        let found = found(vec![
            record(Kind::Gone, 1, 0, How::Unmapped),
            record(Kind::Returned, 2, 1, How::Unmapped),
            record(Kind::Used, 3, 1, How::Unmapped),
        ]);
        assert_eq!((found.errors, found.notes), (1, 0));
        assert_eq!(found.findings[0].kind, "stale-use");
    }

    /// As caches do that must not wait in a hook.
    #[test]
    fn what_is_deregistered_later_is_a_note_for_who_asks() {
        let records = || {
            vec![
                record(Kind::Gone, 1, 0, How::Unmapped),
                record(Kind::Returned, 2, 1, How::Unmapped),
                record(Kind::Ended, 3, 1, How::None),
            ]
        };
        let right = found(records());
        assert_eq!((right.errors, right.notes, right.late), (0, 0, 1));
        let found = found_with(records(), true);
        assert_eq!((found.errors, found.notes, found.late), (0, 1, 0));
        let text = &found.findings[0].text;
        assert!(text.contains("other memory is there now"), "{text}");
        assert!(text.ends_with("it was deregistered later"), "{text}");
    }

    #[test]
    fn what_is_used_first_is_not_only_late() {
        let found = found(vec![
            record(Kind::Gone, 1, 0, How::Unmapped),
            record(Kind::Used, 2, 1, How::Unmapped),
            record(Kind::Ended, 3, 1, How::None),
            record(Kind::Gone, 4, 0, How::Unmapped),
        ]);
        assert_eq!((found.errors, found.notes, found.late), (1, 1, 0));
    }

    #[test]
    fn the_same_is_told_once_and_errors_first() {
        let found = found(vec![
            record(Kind::Leaked, 1, 0, How::None),
            record(Kind::Leaked, 2, 0, How::None),
            record(Kind::Twice, 3, 0, How::None),
        ]);
        assert_eq!((found.errors, found.notes), (1, 1));
        assert_eq!(found.findings[0].severity, Severity::Error);
        assert_eq!(found.findings[1].count, 2);
    }
}
