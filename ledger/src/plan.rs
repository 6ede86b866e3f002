//! What an insertion replaces, and by what.

use regall_directory::addr::PageRange;
use regall_directory::vocab::Attr;

use crate::entry::joins;
use crate::index::{Index, Pos, Row};

/// The rows from `from` up to `to` are replaced by what is left of the first, by the
/// new one, and by what is left of the last.
pub(crate) struct Plan {
    pub(crate) from: Pos,
    pub(crate) to: Pos,
    /// The row whose part before the range stays.
    pub(crate) before: Option<Row>,
    /// The new row's first address.
    pub(crate) start: u64,
    /// The first address behind the new row.
    pub(crate) end: u64,
    /// The row whose part behind the range stays.
    pub(crate) after: Option<Row>,
}

impl Plan {
    /// Rows that go where `from` is; `after` only if all that goes is `in_leaf`.
    pub(crate) fn rows_beside(&self, in_leaf: bool) -> usize {
        1 + usize::from(self.before.is_some()) + usize::from(self.after.is_some() && in_leaf)
    }
}

impl Plan {
    /// What an insertion of `range` replaces, and by what. Works on packed rows:
    /// of the entries that it looks at, most are only neighbours.
    #[inline]
    pub(crate) fn of(index: &Index, range: PageRange, attr: Attr, origin: u32) -> Self {
        let (start, end) = (range.start(), range.end());
        let joins = |row: &Row| joins(row, attr, origin);
        let mut plan = Self {
            from: Index::FIRST,
            to: Index::FIRST,
            before: None,
            start,
            end,
            after: None,
        };

        // On the left: a row that straddles the start or touches it.
        if let Some(at) = index.find(start) {
            let row = index.row(at).unwrap_or_default();
            plan.from = if row.end > start {
                at
            } else {
                index.behind(at)
            };
            let left = if row.start == start {
                index.previous(at).and_then(|at| Some((at, index.row(at)?)))
            } else {
                Some((at, row))
            };
            if let Some((at, row)) = left.filter(|(_, row)| row.end >= start) {
                if joins(&row) {
                    plan.from = at;
                    plan.start = row.start;
                    plan.end = end.max(row.end);
                } else if row.end > start {
                    plan.before = Some(row);
                }
            }
        }

        // On the right: the first row behind it, and the last one in it.
        plan.to = index.settle(plan.from);
        let mut next = index.row(plan.to);
        if next.is_some_and(|row| row.start < end) {
            let last = index.find(end.wrapping_sub(1)).unwrap_or(plan.to);
            plan.to = index.next(last);
            next = index.row(plan.to);
            if let Some(row) = index.row(last).filter(|row| row.end > end) {
                if joins(&row) {
                    plan.end = row.end;
                } else {
                    plan.after = Some(row);
                }
            }
        }
        if let Some(row) = next.filter(|row| row.start == end && joins(row)) {
            plan.end = row.end;
            plan.to = index.next(plan.to);
        }
        plan
    }

    /// As [`Plan::of`], for a piece of the one row at `at`: nothing is searched.
    #[inline]
    pub(crate) fn within(index: &Index, at: Pos, row: Row, piece: PageRange, attr: Attr) -> Self {
        let (start, end) = (piece.start(), piece.end());
        let joins = |other: &Row| joins(other, attr, row.origin);
        let mut plan = Self {
            from: at,
            to: index.next(at),
            before: (row.start < start).then_some(row),
            start,
            end,
            after: (end < row.end).then_some(row),
        };
        if plan.before.is_none() {
            let left = index.previous(at);
            let row = left.and_then(|at| index.row(at));
            if let (Some(at), Some(row)) = (left, row.filter(|r| r.end == start && joins(r))) {
                plan.from = at;
                plan.start = row.start;
            }
        }
        if plan.after.is_none() {
            let row = index.row(plan.to);
            if let Some(row) = row.filter(|r| r.start == end && joins(r)) {
                plan.to = index.next(plan.to);
                plan.end = row.end;
            }
        }
        plan
    }
}

/// Up to three rows, in order.
pub(crate) struct Rows {
    rows: [Row; 3],
    pub(crate) len: usize,
}

impl Rows {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self {
            rows: [Row::NONE; 3],
            len: 0,
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, row: Option<Row>) {
        if let (Some(row), Some(place)) = (row, self.rows.get_mut(self.len)) {
            *place = row;
            self.len = self.len.wrapping_add(1);
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> &[Row] {
        self.rows.get(..self.len).unwrap_or_default()
    }
}
