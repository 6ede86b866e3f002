//! What stands beside the boxes.

use std::fmt::Write;

use regall_reader::Region;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::blocks::{Block, Part};
use super::kind::Kinds;
use crate::regions::{is_implicit, Regions};
use crate::units;
use crate::words::Key;

/// Room for a name.
pub const NAME_CHARACTERS: usize = 44;

/// Kinds of one block that are told in words.
const MOST_PARTS: usize = 4;

/// Lines of text beside a block.
pub fn lines(block: &Block) -> usize {
    match block.pieces() {
        1 => 1,
        _ => block.parts.len().clamp(2, MOST_PARTS + 1),
    }
}

/// The lines beside a block: what it is at the left, what is done with it at the
/// right.
pub fn texts(block: &Block, kinds: &Kinds) -> Vec<(String, String)> {
    match block.pieces() {
        1 => vec![one(block, kinds)],
        _ => many(block, kinds),
    }
}

/// Beside a mapping.
fn one(block: &Block, kinds: &Kinds) -> (String, String) {
    let size = units::bytes(block.mapped);
    let prot = block.prot.map_or(String::new(), |p| p.to_string());
    let left = format!("{size:>9}  {prot}  {}", names(block));
    let words = block.parts.first().map_or("", |p| kinds.words(p.kind));
    (left, words.to_string())
}

/// Beside many mappings.
fn many(block: &Block, kinds: &Kinds) -> Vec<(String, String)> {
    let size = units::bytes(block.mapped);
    let prot = block.prot.map_or("    ".to_string(), |p| p.to_string());
    let mut left = vec![
        format!("{size:>9}  {prot}  {}", names(block)),
        format!("{:>17}{}", "", plural(block.pieces(), "piece")),
    ];
    let hole = (block.end - block.start).saturating_sub(block.mapped);
    if hole > 0 {
        let between = format!(", {} between them not mapped", units::bytes(hole));
        left.iter_mut().skip(1).for_each(|l| l.push_str(&between));
    }
    let say = |p: &Part| {
        let (bytes, words) = (units::bytes(p.bytes), kinds.words(p.kind));
        match block.parts.len() {
            1 => words.to_string(),
            _ => format!("{bytes} {words}"),
        }
    };
    let mut right: Vec<_> = block.parts.iter().take(MOST_PARTS).map(say).collect();
    if block.parts.len() > MOST_PARTS {
        right.push(format!("and {} others", block.parts.len() - MOST_PARTS));
    }
    let count = left.len().max(right.len());
    left.resize(count, String::new());
    right.resize(count, String::new());
    left.into_iter().zip(right).collect()
}

/// As much as there is room for: a file by its end.
fn names(block: &Block) -> String {
    let short = |name: &Option<String>| match name.as_deref() {
        Some("") => "anonymous".to_string(),
        Some(path) => path.rsplit('/').next().unwrap_or(path).to_string(),
        None => "...".to_string(),
    };
    let all = match &block.names[..] {
        [Some(path)] if !path.is_empty() => path.clone(),
        names => names.iter().map(short).collect::<Vec<_>>().join(", "),
    };
    let mut room = NAME_CHARACTERS;
    if all.width() <= room {
        return all;
    }
    room -= 3;
    let fits = |c: &char| {
        let places = c.width().unwrap_or(0);
        let fits = places <= room;
        room = room.saturating_sub(places);
        fits
    };
    let end: Vec<_> = all.chars().rev().take_while(fits).collect();
    "...".chars().chain(end.into_iter().rev()).collect()
}

/// What a browser shows of a box that is pointed at.
pub fn tip(block: &Block, kinds: &Kinds) -> String {
    let all = match &block.names[..] {
        [Some(path)] => path.as_str(),
        _ => "",
    };
    let mut tip = format!("{:x}-{:x} {all}", block.start, block.end);
    for part in &block.parts {
        let bytes = units::bytes(part.bytes);
        let (pieces, words) = (plural(part.pieces, "piece"), kinds.words(part.kind));
        let _ = write!(tip, "; {bytes} in {pieces}: {words}");
    }
    tip
}

/// Sums of all memory regions.
pub fn about_regions(regions: &Regions) -> Vec<String> {
    let bytes = |all: &mut dyn Iterator<Item = &Region>| {
        let finite = all.filter(|r| !is_implicit(r)).map(|r| r.range.len());
        units::bytes(finite.fold(0, u64::saturating_add))
    };
    let (primary, others) = (regions.primary(), regions.others().count());
    let mut lines = Vec::new();
    if !primary.is_empty() {
        let bytes = bytes(&mut primary.iter());
        let count = plural(primary.len(), "memory region");
        lines.push(format!(
            "{bytes:>9}  in {count} of the protection domain that is drawn"
        ));
    }
    if others != 0 {
        let bytes = bytes(&mut regions.others());
        let count = plural(others, "memory region");
        lines.push(format!(
            "{bytes:>9}  in {count} of other protection domains, not drawn"
        ));
    }
    if lines.is_empty() {
        lines.push("no memory regions: nothing is registered with an adapter".to_string());
    }
    lines
}

/// Beside one memory region.
pub fn about(region: &Region) -> String {
    match is_implicit(region) {
        true => "one for all, on demand".to_string(),
        false => {
            let (size, key) = (units::bytes(region.range.len()), Key(Some(region.lkey)));
            format!("{size}, lkey {key}")
        }
    }
}

/// `1 piece`, `20,000 pieces`
pub fn plural(n: usize, one: &str) -> String {
    format!("{} {one}{}", thousands(n), if n == 1 { "" } else { "s" })
}

/// With a comma at each thousand: `20,000`.
pub fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}
