//! The address space as a picture: a bar a mapping, in address order, as long
//! as the logarithm of its size (sizes range over nine orders of magnitude).

use std::fmt::Write;

use crate::maps::Row;
use crate::units;

const ROW: usize = 18;
const TOP: usize = 70;
const BARS: usize = 330;
/// Pixels for each doubling of the size, beginning with a page.
const DOUBLING: usize = 14;
const WIDTH: usize = 1160;

/// What is drawn in which colour; told apart without red and green, too.
const COLOURS: [(&str, &str); 8] = [
    ("registered", "#2b7bba"),
    ("gap", "#d62728"),
    ("limit", "#f0a202"),
    ("refused", "#e36414"),
    ("no-access", "#d9d9d9"),
    ("shim", "#9aa5b1"),
    ("inherited", "#c5b0d5"),
    ("other reason", "#7f8c8d"),
];

/// The picture as SVG.
pub fn draw(pid: u32, exe: &str, rows: &[Row]) -> String {
    let height = TOP + ROW * rows.len() + 20;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"16\">regall: process {pid} {}</text>\n",
        escape(exe)
    );
    legend(&mut svg);
    for (n, row) in rows.iter().enumerate() {
        bar(&mut svg, TOP + n * ROW, row);
    }
    svg.push_str("</svg>\n");
    svg
}

fn legend(svg: &mut String) {
    for (n, (word, colour)) in COLOURS.iter().enumerate() {
        let x = 12 + n * 130;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"40\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"51\">{word}</text>",
            x + 18
        );
    }
}

fn bar(svg: &mut String, y: usize, row: &Row) {
    let pages = (row.range.len() / 4096).max(1);
    let width = 8 + pages.ilog2() as usize * DOUBLING;
    let (start, end) = (row.range.start(), row.range.end());
    let (text, size) = (y + 12, units::bytes(row.range.len()));
    let (prot, name) = (row.mapping.prot, escape(&row.mapping.name));
    let (state, reason, colour) = (row.state(), row.reason(), colour(row));
    let _ = writeln!(
        svg,
        "<g><title>{start:x}-{end:x} {prot} {size}, {state} {reason} {name}</title>\
         <text x=\"12\" y=\"{text}\">{start:012x} {prot}</text>\
         <text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{size}</text>\
         <rect x=\"{BARS}\" y=\"{}\" width=\"{width}\" height=\"{}\" rx=\"2\" fill=\"{colour}\"/>\
         <text x=\"{}\" y=\"{text}\" fill=\"#444\">{name}</text></g>",
        BARS - 12,
        y + 2,
        ROW - 5,
        BARS + width + 8,
    );
}

fn colour(row: &Row) -> &'static str {
    let reason = row.reason();
    let word = match row.state() {
        "excluded" => reason.split(':').next().unwrap_or(""),
        state => state,
    };
    let found = COLOURS.iter().find(|(w, _)| *w == word);
    found
        .or(COLOURS.last())
        .map_or("black", |(_, colour)| colour)
}

/// Text as XML takes it; control characters, which it does not take, as `?`.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}
