//! The address space as a picture: a column of boxes in the order of addresses,
//! with what is done with each in words beside it, and the memory regions that
//! hold it.
//!
//! Heights are logarithms of sizes, which range over nine orders of magnitude;
//! where nothing is mapped, the column is broken.

mod blocks;
mod kind;
mod words;

use std::fmt::Write;

use regall_reader::Region;
use unicode_width::UnicodeWidthStr;

use crate::regions::Regions;
use crate::rows::Row;
use crate::units;
use blocks::{blocks, Block, Part};
use kind::{Fill, Kinds};
use words::{about, about_regions, lines, plural, texts, thousands, tip, NAME_CHARACTERS};

/// A line of text.
const LINE: f64 = 15.0;
/// Where nothing is mapped.
const HOLE: f64 = 30.0;
/// The least height of a memory region that can be told from the next one.
const REGION: f64 = 4.0;
/// A line of small text.
const LABEL: f64 = 10.5;

/// Places from left to right.
const MARGIN: f64 = 14.0;
const ADDRESS: f64 = 112.0;
const MEMORY: f64 = 122.0;
const MEMORY_WIDTH: f64 = 130.0;
const REGIONS: f64 = 264.0;
const REGIONS_WIDTH: f64 = 190.0;
/// Width of a character of the monospaced text.
const CHARACTER: f64 = 6.65;
/// What is drawn of a process.
pub struct Subject<'a> {
    /// Its pid.
    pub pid: u32,
    /// Its executable.
    pub exe: &'a str,
    /// Its mappings, cut where different things are said of them.
    pub rows: &'a [Row<'a>],
    /// Its memory regions.
    pub regions: &'a Regions,
}

/// The picture as SVG.
pub fn draw(subject: &Subject) -> String {
    let mut kinds = Kinds::default();
    let blocks = blocks(subject.rows, &mut kinds);
    let mut body = Canvas::default();
    let top = summary(&mut body, subject, &kinds, &blocks);
    let slots = slots(&blocks, top);
    let bottom = slots.last().map_or(top, |s| s.bottom) + LINE;
    let page = Page {
        kinds: &kinds,
        words_at: words_at(subject),
    };
    headings(&mut body, subject, &page, top);
    for pair in slots.windows(2) {
        if let [above, below] = pair {
            body.hole(above, below, &page);
        }
    }
    slots.iter().for_each(|slot| body.block(slot, &page));
    body.regions(&slots, subject.regions.primary());
    if let Some(last) = slots.last() {
        body.address(last.block.end, last.bottom + 10.0);
    }
    let texts = slots.iter().flat_map(|s| texts(s.block, &kinds));
    let longest = texts.map(|(_, words)| words.width()).max().unwrap_or(0);
    let width = page.words_at + (longest + 2) as f64 * CHARACTER;
    document(subject, &body.0, width, bottom + MARGIN)
}

/// Where the texts beside the boxes begin: regions need room only if there are any.
fn words_at(subject: &Subject) -> f64 {
    let sizes = match subject.regions.primary() {
        [] => REGIONS,
        _ => REGIONS + REGIONS_WIDTH + 10.0,
    };
    sizes + (9 + 2 + 4 + 2 + NAME_CHARACTERS + 2) as f64 * CHARACTER
}

fn document(subject: &Subject, body: &str, width: f64, height: f64) -> String {
    let (pid, exe) = (subject.pid, escape(subject.exe));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{width:.0}\" \
         height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"DejaVu Sans Mono, monospace\" font-size=\"11\">\n\
         <title>regall: the memory of process {pid}, {exe}</title>\n\
         {DEFINITIONS}<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

/// What boxes are filled with.
const DEFINITIONS: &str = "\
<defs>
<pattern id=\"half\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
<rect width=\"6\" height=\"6\" fill=\"#2c6fad\"/>\
<path d=\"M0 6L6 0\" stroke=\"white\" stroke-width=\"1.2\"/></pattern>
<pattern id=\"out\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
<rect width=\"6\" height=\"6\" fill=\"white\"/>\
<path d=\"M0 6L6 0\" stroke=\"#999\" stroke-width=\"0.7\"/></pattern>
<pattern id=\"trouble\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
<rect width=\"6\" height=\"6\" fill=\"#ffe9c7\"/>\
<path d=\"M0 6L6 0M0 0L6 6\" stroke=\"#b35900\" stroke-width=\"1.1\"/></pattern>
</defs>
";

impl Fill {
    fn attributes(self) -> &'static str {
        match self {
            Self::Held => "fill=\"#2c6fad\" stroke=\"#123\"",
            Self::Half => "fill=\"url(#half)\" stroke=\"#123\"",
            Self::Out => "fill=\"url(#out)\" stroke=\"#777\"",
            Self::Trouble => "fill=\"url(#trouble)\" stroke=\"#b35900\"",
            Self::Gap => "fill=\"#fff\" stroke=\"#c00\" stroke-width=\"3\"",
        }
    }
}

/// A block and where it stands.
struct Slot<'a> {
    block: &'a Block,
    top: f64,
    bottom: f64,
}

/// What is the same for all blocks.
struct Page<'a> {
    kinds: &'a Kinds,
    words_at: f64,
}

fn slots(blocks: &[Block], top: f64) -> Vec<Slot<'_>> {
    let mut y = top;
    let mut end = None;
    let place = |block| {
        let Block {
            start, end: last, ..
        }: &Block = block;
        if end.is_some_and(|end| end != *start) {
            y += HOLE;
        }
        end = Some(*last);
        let pages = (block.mapped / 4096).max(1) as f64;
        let height = (LINE + 1.0 + 2.0 * pages.log2()).min(70.0);
        let slot = Slot {
            block,
            top: y,
            bottom: y + height.max(lines(block) as f64 * LINE + 3.0),
        };
        y = slot.bottom;
        slot
    };
    blocks.iter().map(place).collect()
}

const SCALE: &str = "boxes stand in the order of addresses; twice the memory is \
    a little more height, not twice the height";

/// Sums in words, each beside the pattern that it is drawn in; returns where the
/// column may begin.
fn summary(out: &mut Canvas, subject: &Subject, kinds: &Kinds, blocks: &[Block]) -> f64 {
    let title = format!("process {}: {}", subject.pid, subject.exe);
    out.styled(MARGIN, 26.0, "font-size=\"16\"", &title);
    let mut sums: Vec<Part> = Vec::new();
    for part in blocks.iter().flat_map(|b| &b.parts) {
        match sums.iter_mut().find(|s| s.kind == part.kind) {
            Some(sum) => {
                sum.bytes = sum.bytes.saturating_add(part.bytes);
                sum.pieces += part.pieces;
            }
            None => sums.push(*part),
        }
    }
    sums.sort_by_key(|s| (kinds.fill(s.kind), u64::MAX - s.bytes));
    let mut y = 40.0;
    for sum in &sums {
        let fill = kinds.fill(sum.kind);
        out.rect(MARGIN, y + 2.0, 30.0, 11.0, fill.attributes());
        let (bytes, words) = (units::bytes(sum.bytes), kinds.words(sum.kind));
        let pieces = plural(sum.pieces, "piece");
        out.text(
            MARGIN + 40.0,
            y + 11.0,
            &format!("{bytes:>9}  {words}, in {pieces}"),
        );
        y += LINE;
    }
    for line in about_regions(subject.regions) {
        out.text(MARGIN + 40.0, y + 11.0, &line);
        y += LINE;
    }
    let grey = "fill=\"#666\" font-style=\"italic\"";
    out.styled(MARGIN + 40.0, y + 17.0, grey, SCALE);
    y + 54.0
}

fn headings(out: &mut Canvas, subject: &Subject, page: &Page, top: f64) {
    let mut head = |x, text: &str| out.styled(x, top - 12.0, "font-weight=\"bold\"", text);
    head(MARGIN, "address");
    head(MEMORY, "memory");
    if !subject.regions.primary().is_empty() {
        head(REGIONS, "memory regions");
    }
    let text = beside(page.words_at);
    head(text + 5.0 * CHARACTER, "size");
    head(text + 11.0 * CHARACTER, "prot");
    head(text + 17.0 * CHARACTER, "name");
    head(page.words_at, "what is done with it");
}

/// Where sizes begin.
fn beside(words_at: f64) -> f64 {
    words_at - (9 + 2 + 4 + 2 + NAME_CHARACTERS + 2) as f64 * CHARACTER
}

/// SVG elements.
#[derive(Default)]
struct Canvas(String);

impl Canvas {
    fn text(&mut self, x: f64, y: f64, text: &str) {
        self.styled(x, y, "", text);
    }

    /// Blanks stand for themselves.
    fn styled(&mut self, x: f64, y: f64, style: &str, text: &str) {
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" xml:space=\"preserve\" {style}>{}</text>",
            escape(text)
        );
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, style: &str) {
        let _ = writeln!(
            self.0,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {style}/>"
        );
    }

    fn address(&mut self, address: u64, y: f64) {
        let style = "text-anchor=\"end\" fill=\"#444\" font-size=\"10\"";
        self.styled(ADDRESS, y, style, &format!("{address:x}"));
    }

    /// The break of the column where nothing is mapped between two blocks.
    fn hole(&mut self, above: &Slot, below: &Slot, page: &Page) {
        let size = below.block.start.saturating_sub(above.block.end);
        if size == 0 {
            return;
        }
        self.address(above.block.end, above.bottom + 9.0);
        let middle = (above.bottom + below.top) / 2.0;
        for y in [middle - 3.0, middle + 3.0] {
            let mut path = format!("M{MEMORY} {y:.1}");
            for n in 0..(MEMORY_WIDTH / 10.0) as usize {
                path.push_str(if n % 2 == 0 { "l10 -4" } else { "l10 4" });
            }
            let _ = writeln!(self.0, "<path d=\"{path}\" fill=\"none\" stroke=\"#777\"/>");
        }
        let text = format!("{} where nothing is mapped", units::bytes(size));
        let x = beside(page.words_at) + 11.0 * CHARACTER;
        self.styled(
            x,
            middle + 4.0,
            "fill=\"#666\" font-style=\"italic\"",
            &text,
        );
    }

    fn block(&mut self, slot: &Slot, page: &Page) {
        let (block, kinds) = (slot.block, page.kinds);
        let _ = writeln!(self.0, "<g><title>{}</title>", escape(&tip(block, kinds)));
        self.boxes(slot, kinds);
        self.address(block.start, slot.top + 11.0);
        let lines = texts(block, kinds);
        // In the middle of what they are about.
        let height = lines.len() as f64 * LINE;
        let mut y = (slot.top + slot.bottom - height) / 2.0 + 11.0;
        for (left, words) in lines {
            self.text(beside(page.words_at), y, &left);
            self.text(page.words_at, y, &words);
            y += LINE;
        }
        self.0.push_str("</g>\n");
    }

    /// Side by side, as wide as their shares; the least is still seen.
    fn boxes(&mut self, slot: &Slot, kinds: &Kinds) {
        let parts = &slot.block.parts;
        let least = (MEMORY_WIDTH / parts.len().max(1) as f64).min(6.0);
        let spare = MEMORY_WIDTH - least * parts.len() as f64;
        let mut x = MEMORY;
        for part in parts {
            let share = part.bytes as f64 / slot.block.mapped.max(1) as f64;
            let width = least + spare * share;
            let fill = kinds.fill(part.kind).attributes();
            self.rect(x, slot.top + 1.0, width, slot.bottom - slot.top - 2.0, fill);
            x += width;
        }
    }

    /// Brackets along the column, from each region's first address to its last.
    fn regions(&mut self, slots: &[Slot], regions: &[Region]) {
        let mut boxes = brackets(slots, regions);
        for bracket in &boxes {
            let (top, height) = (bracket.top + 0.8, bracket.bottom - bracket.top - 1.6);
            let _ = writeln!(
                self.0,
                "<rect x=\"{REGIONS}\" y=\"{top:.1}\" width=\"14\" height=\"{height:.1}\" \
                 {BRACKET}><title>{}</title></rect>",
                bracket.text
            );
        }
        // The large ones are labelled first, the others where there is room.
        boxes.sort_by(|a, b| (b.bottom - b.top).total_cmp(&(a.bottom - a.top)));
        let mut taken: Vec<f64> = Vec::new();
        for bracket in &boxes {
            let y = (bracket.top + bracket.bottom) / 2.0 + 4.0;
            if taken.iter().all(|t| (t - y).abs() >= LABEL) {
                self.styled(REGIONS + 19.0, y, "font-size=\"10\"", &bracket.text);
                taken.push(y);
            }
        }
    }
}

const BRACKET: &str = "fill=\"#e8eef5\" stroke=\"#123\" stroke-width=\"0.8\"";

/// A memory region, or many that are too small to be told apart.
struct Bracket {
    top: f64,
    bottom: f64,
    text: String,
}

fn brackets(slots: &[Slot], regions: &[Region]) -> Vec<Bracket> {
    let place = |region| {
        let Region { range, .. }: &Region = region;
        let top = place(slots, range.start());
        (top, place(slots, range.end()).max(top), region)
    };
    let all: Vec<_> = regions.iter().map(place).collect();
    let mut rest = all.as_slice();
    let mut boxes = Vec::new();
    while let Some(((top, bottom, region), behind)) = rest.split_first() {
        let small = |b: &&(f64, f64, _)| b.1 - b.0 < REGION && b.0 < top + LABEL;
        let count = rest.iter().take_while(small).count();
        if count < 2 {
            boxes.push(Bracket {
                top: *top,
                bottom: bottom.max(top + REGION),
                text: about(region),
            });
            rest = behind;
            continue;
        }
        let (few, others) = rest.split_at(count);
        let bottom = few.last().map_or(*bottom, |(_, bottom, _)| *bottom);
        boxes.push(Bracket {
            top: *top,
            bottom: bottom.max(top + REGION),
            text: format!("{} regions", thousands(count)),
        });
        rest = others;
    }
    boxes
}

/// How far down an address is.
fn place(slots: &[Slot], address: u64) -> f64 {
    let n = slots.partition_point(|s| s.block.end < address);
    let Some(slot) = slots.get(n) else {
        return slots.last().map_or(0.0, |s| s.bottom);
    };
    let inside = address.saturating_sub(slot.block.start) as f64;
    let size = (slot.block.end - slot.block.start).max(1) as f64;
    slot.top + (slot.bottom - slot.top) * inside / size
}

/// Text as XML takes it; characters that it does not take as `?`.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in units::printable(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::fixtures::{entry, mapping, region};
    use regall_directory::vocab::{Access, Column, Reason};
    use regall_reader::{Entry, Mapping};

    fn svg(parts: &[(Mapping, Option<Entry>)], regions: Vec<Region>) -> String {
        let row = |(m, e): &'_ (Mapping, Option<Entry>)| (m.clone(), *e);
        let parts: Vec<_> = parts.iter().map(row).collect();
        let rows = parts.iter().map(|(m, e)| Row::new(m, e.as_ref()));
        let rows: Vec<_> = rows.collect();
        let regions = Regions::of_primary(regions, 1);
        draw(&Subject {
            pid: 1,
            exe: "/bin/<a&b>\u{1}",
            rows: &rows,
            regions: &regions,
        })
    }

    /// All texts, in order.
    fn said(svg: &str) -> Vec<&str> {
        let all = svg.split("<text ").skip(1);
        all.filter_map(|t| Some(t.split_once('>')?.1.split_once("</text>")?.0))
            .collect()
    }

    fn several() -> Vec<(Mapping, Option<Entry>)> {
        let mut all = Vec::new();
        let mut at = 0x10;
        for n in 0..40_u64 {
            let pages = 1 << (n % 15);
            let (mut m, mut e) = (mapping(at, at + pages), entry(at, at + pages));
            at += pages + if n % 6 == 5 { 1 << n } else { 0 };
            m.name = ["", "/lib/libc.so.6", "[heap]"][n as usize % 3].to_string();
            match n % 8 {
                1 => e.attr.hca = Column::YES,
                2 => {
                    (e.attr.pin, e.attr.hca) =
                        (Column::no(Reason::NoAccess), Column::no(Reason::NoAccess))
                }
                3 => e.attr.hca = Column::refused(14),
                4 => e.attr.pin = Column::no(Reason::Limit),
                _ => {}
            }
            all.push((m, (n != 20).then_some(e)));
        }
        all
    }

    #[test]
    fn reasons_stand_in_words_beside_the_boxes() {
        let svg = svg(&several(), Vec::new());
        let said = said(&svg);
        for words in [
            "registered: pinned",
            "registered: pinned, and with the adapter",
            "registered: pinned; adapter: refused, Bad address (errno 14)",
            "not registered: no access allowed (PROT_NONE)",
            "not registered: over the limit",
            "A GAP: regall says nothing of it",
            "128 KiB where nothing is mapped",
            "no memory regions: nothing is registered with an adapter",
        ] {
            assert!(said.contains(&words), "{words}: {said:#?}");
        }
    }

    #[test]
    fn text_is_escaped() {
        let mut all = several();
        all[0].0.name = "</text><script>\"&\u{7}\u{202e}\u{ffff}".to_string();
        let svg = svg(&all, Vec::new());
        assert!(!svg.contains("<script") && !svg.contains("<a&"));
        assert!(svg.contains("&lt;/text&gt;&lt;script&gt;&quot;&amp;???"));
        assert!(svg.contains("/bin/&lt;a&amp;b&gt;?"));
        assert!(svg.chars().all(|c| c == '\n' || !c.is_control()));
    }

    #[test]
    fn regions_stand_beside_what_they_hold() {
        let mut regions = vec![region(1, 0x10, 0x10 + 31, 0x100)];
        let small = |n: u64| region(1, 0x70 + n, 0x71 + n, 0x200 + n as u32);
        regions.extend((0..60).map(small));
        regions.push(region(2, 0x10, 0x20, 0x900));
        let svg = svg(&several(), regions);
        let said = said(&svg);
        assert!(said.contains(&"124 KiB, lkey 0x100"), "{said:#?}");
        assert!(said.iter().any(|t| t.ends_with(" regions")), "{said:#?}");
        let other = "   64 KiB  in 1 memory region of other protection domains, not drawn";
        assert!(said.contains(&other), "{said:#?}");
        assert!(!svg.contains("NaN") && !svg.contains("height=\"-"));
    }

    #[test]
    fn one_region_over_all_addresses() {
        let mut all = region(1, 0, 1 << 40, 7);
        all.access = Access::ON_DEMAND;
        let svg = svg(&several(), vec![all]);
        assert!(said(&svg).contains(&"one for all, on demand"));
    }

    #[test]
    fn nothing_at_all_is_a_picture_too() {
        assert!(svg(&[], Vec::new()).ends_with("</svg>\n"));
    }
}
