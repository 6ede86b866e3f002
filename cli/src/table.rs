//! Tables as the commands print them: columns as wide as what stands in them, without lines.

use std::fmt;

use comfy_table::{presets, CellAlignment, Row, Table};

/// Blanks between two columns.
const BETWEEN: u16 = 2;

/// A table with these heads. In columns whose head begins with a blank the text ends at the
/// right, as numbers do.
pub fn table<const N: usize>(heads: [&str; N], rows: impl Iterator<Item = [String; N]>) -> Text {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(heads.map(str::trim_start));
    table.add_rows(rows.map(Row::from));
    for (column, head) in table.column_iter_mut().zip(heads) {
        column.set_padding((0, BETWEEN));
        if head.starts_with(' ') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    Text(table)
}

/// Its lines, without blanks at their ends.
pub struct Text(Table);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0
            .lines()
            .try_for_each(|line| writeln!(f, "{}", line.trim_end()))
    }
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn columns_are_as_wide_as_what_stands_in_them() {
        let rows = [["a", "1", "x"], ["long", "1234", ""], ["日本", "5", "y"]];
        let rows = rows.into_iter().map(|row| row.map(String::from));
        assert_eq!(
            table(["NAME", " SIZE", "REST"], rows).to_string(),
            "NAME  SIZE  REST\na        1  x\nlong  1234\n日本     5  y\n"
        );
    }
}
