//! What is shown, and what keys do to it. Pure: keys and rounds in, state out.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::column::{self, Column, FIXED};
use super::sample::{Id, Round, Sample};

/// What is on the screen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum View {
    /// All processes.
    Table,
    /// All processes, while a filter is typed; what it was before.
    Typing(String),
    /// One process, and the first line of it that is seen.
    Detail(Id, usize),
    /// What columns and keys mean, and the first line of it that is seen.
    Help(usize),
}

/// What a key asks of those outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// Nothing is to be done.
    None,
    /// To end.
    Quit,
    /// To be stopped, as by Ctrl-Z in a shell.
    Stop,
    /// To look at another interval.
    Pace(Duration),
}

/// The intervals that keys lead to, in milliseconds.
const PACES: [u64; 7] = [100, 200, 500, 1000, 2000, 5000, 10_000];

/// In what order processes are, and which of them are left out.
pub struct Choice {
    /// A column's number.
    pub sort: usize,
    /// The other way round.
    pub reversed: bool,
    /// Words that must all be found in pid, name, state or rank.
    pub filter: String,
}

/// All that the screen shows.
pub struct App {
    /// The columns.
    pub columns: Vec<Column>,
    /// Order and filter.
    pub choice: Choice,
    /// What the last round has brought.
    pub round: Round,
    /// What is shown.
    pub view: View,
    /// Columns that were moved out of sight.
    pub skip: usize,
    /// Seconds between two rounds.
    pub pace: Duration,
    /// Whether a round has come yet.
    pub started: bool,
    selected: Option<Id>,
    /// Where the selected one is, for when it goes.
    position: usize,
    /// The process in the detail view as it was last seen.
    detail: Option<Sample>,
}

impl Choice {
    /// The processes that are shown, in order.
    pub fn apply<'a>(&self, columns: &[Column], samples: &'a [Sample]) -> Vec<&'a Sample> {
        let mut rows: Vec<_> = samples.iter().filter(|s| s.fits(&self.filter)).collect();
        if let Some(column) = columns.get(self.sort) {
            rows.sort_by(|a, b| {
                let order = column.order(a, b);
                let order = if self.reversed {
                    order.reverse()
                } else {
                    order
                };
                order.then_with(|| a.id().cmp(&b.id()))
            });
        }
        rows
    }
}

impl App {
    /// One that has seen nothing yet.
    pub fn new(choice: Choice, pace: Duration) -> Self {
        Self {
            columns: column::all(),
            choice,
            round: Round::default(),
            view: View::Table,
            skip: 0,
            pace,
            started: false,
            selected: None,
            position: 0,
            detail: None,
        }
    }

    /// The processes that are shown, in order.
    pub fn rows(&self) -> Vec<&Sample> {
        self.choice.apply(&self.columns, &self.round.samples)
    }

    /// Where the selected one is in [`Self::rows`].
    pub fn position(&self) -> usize {
        self.position
    }

    /// The process in the detail view, and whether it is still there.
    pub fn detail(&self) -> Option<(&Sample, bool)> {
        let last = self.detail.as_ref()?;
        let there = self.round.samples.iter().any(|s| s.id() == last.id());
        Some((last, there))
    }

    /// Takes in what a round has brought.
    pub fn take(&mut self, round: Round) {
        self.round = round;
        self.started = true;
        if let View::Detail(id, _) = self.view {
            self.remember(id);
        }
        self.keep_place();
    }

    /// After rows came, went or moved: the selected one stays selected; if it has
    /// gone, the one that has its place now.
    fn keep_place(&mut self) {
        let rows = self.rows();
        let found = rows.iter().position(|s| Some(s.id()) == self.selected);
        let position = found.unwrap_or(self.position);
        let position = position.min(rows.len().saturating_sub(1));
        let selected = rows.get(position).map(|s| s.id());
        (self.position, self.selected) = (position, selected);
    }

    fn remember(&mut self, id: Id) {
        let found = self.round.samples.iter().find(|s| s.id() == id);
        if let Some(sample) = found {
            self.detail = Some(sample.clone());
        }
    }

    /// A key was pressed; `page` lines are seen at a time.
    pub fn key(&mut self, key: KeyEvent, page: usize) -> Wish {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Wish::Quit,
                KeyCode::Char('z') => Wish::Stop,
                _ => Wish::None,
            };
        }
        match self.view.clone() {
            View::Table => self.key_in_table(key.code, page),
            View::Typing(before) => {
                self.key_in_filter(key.code, before);
                Wish::None
            }
            View::Detail(id, line) => {
                self.key_in_text(key.code, page, line, |n| View::Detail(id, n))
            }
            View::Help(line) => self.key_in_text(key.code, page, line, View::Help),
        }
    }

    fn key_in_table(&mut self, key: KeyCode, page: usize) -> Wish {
        match key {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char('s') => self.sort_by(1),
            KeyCode::Char('S') => self.sort_by(self.columns.len().saturating_sub(1)),
            KeyCode::Char('r') => {
                self.choice.reversed = !self.choice.reversed;
                self.keep_place();
            }
            KeyCode::Char('/') => self.view = View::Typing(self.choice.filter.clone()),
            KeyCode::Char('?' | 'h') => self.view = View::Help(0),
            KeyCode::Char('+') => return self.change_pace(true),
            KeyCode::Char('-') => return self.change_pace(false),
            KeyCode::Esc => {
                self.choice.filter.clear();
                self.keep_place();
            }
            KeyCode::Enter => {
                if let Some(id) = self.selected {
                    self.remember(id);
                    self.view = View::Detail(id, 0);
                }
            }
            KeyCode::Right => {
                let moving = self.columns.len().saturating_sub(FIXED + 1);
                self.skip = (self.skip + 1).min(moving);
            }
            KeyCode::Left => self.skip = self.skip.saturating_sub(1),
            other => self.select(moved(other, self.position, page)),
        }
        Wish::None
    }

    fn key_in_filter(&mut self, key: KeyCode, before: String) {
        match key {
            KeyCode::Enter => self.view = View::Table,
            KeyCode::Esc => {
                self.choice.filter = before;
                self.view = View::Table;
            }
            KeyCode::Backspace => drop(self.choice.filter.pop()),
            KeyCode::Char(c) if self.choice.filter.len() < 200 => self.choice.filter.push(c),
            _ => {}
        }
        self.keep_place();
    }

    fn key_in_text(
        &mut self,
        key: KeyCode,
        page: usize,
        line: usize,
        view: impl Fn(usize) -> View,
    ) -> Wish {
        match key {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Esc | KeyCode::Enter | KeyCode::Left | KeyCode::Char('?') => {
                self.view = View::Table;
            }
            KeyCode::Char('+') => return self.change_pace(true),
            KeyCode::Char('-') => return self.change_pace(false),
            other => self.view = view(moved(other, line, page)),
        }
        Wish::None
    }

    /// The first line of a text that is seen can't be behind the `last` one.
    pub fn clamp(&mut self, last: usize) {
        match &mut self.view {
            View::Detail(_, line) | View::Help(line) => *line = (*line).min(last),
            View::Table | View::Typing(_) => {}
        }
    }

    fn sort_by(&mut self, step: usize) {
        let columns = self.columns.len().max(1);
        self.choice.sort = (self.choice.sort + step) % columns;
        self.choice.reversed = false;
        self.keep_place();
    }

    fn select(&mut self, position: usize) {
        self.selected = None;
        self.position = position;
        self.keep_place();
    }

    fn change_pace(&mut self, slower: bool) -> Wish {
        let mut paces = PACES.iter().copied().map(Duration::from_millis);
        let next = match slower {
            true => paces.find(|p| *p > self.pace),
            false => paces.rev().find(|p| *p < self.pace),
        };
        let Some(next) = next else {
            return Wish::None;
        };
        self.pace = next;
        Wish::Pace(next)
    }
}

/// Where a key leads from line `at`.
fn moved(key: KeyCode, at: usize, page: usize) -> usize {
    match key {
        KeyCode::Down | KeyCode::Char('j') => at.saturating_add(1),
        KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
        KeyCode::PageDown | KeyCode::Char(' ') => at.saturating_add(page.max(1)),
        KeyCode::PageUp => at.saturating_sub(page.max(1)),
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => usize::MAX,
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::fixtures::sample;
    use super::*;

    fn app(samples: Vec<Sample>) -> App {
        let choice = Choice {
            sort: 0,
            reversed: false,
            filter: String::new(),
        };
        let mut app = App::new(choice, Duration::from_secs(1));
        app.take(round(samples));
        app
    }

    fn round(samples: Vec<Sample>) -> Round {
        Round {
            samples,
            ..Round::default()
        }
    }

    fn three() -> Vec<Sample> {
        vec![
            sample(1, "/bin/one", 5),
            sample(2, "/bin/two", 50),
            sample(3, "/bin/three", 7),
        ]
    }

    fn press(app: &mut App, keys: &str) -> Wish {
        let key = |c| match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            'v' => KeyCode::Down,
            '>' => KeyCode::Right,
            c => KeyCode::Char(c),
        };
        let mut last = Wish::None;
        for c in keys.chars() {
            last = app.key(KeyEvent::from(key(c)), 10);
        }
        last
    }

    fn pids(app: &App) -> Vec<u32> {
        app.rows().iter().map(|s| s.figures.pid).collect()
    }

    fn chosen(app: &App) -> Option<u32> {
        app.rows().get(app.position()).map(|s| s.figures.pid)
    }

    #[test]
    fn sorted_by_any_column_and_back() {
        let mut app = app(three());
        assert_eq!(pids(&app), [1, 2, 3]);
        press(&mut app, "ssss");
        assert_eq!(pids(&app), [2, 3, 1], "by mappings, the most first");
        press(&mut app, "r");
        assert_eq!(pids(&app), [1, 3, 2]);
        press(&mut app, "SS");
        assert_eq!(pids(&app), [1, 3, 2], "by name: one, three, two");
        for _ in 0..3 * app.columns.len() {
            press(&mut app, "s");
            assert_eq!(pids(&app).len(), 3);
        }
    }

    #[test]
    fn filtered_by_what_is_typed() {
        let mut app = app(three());
        press(&mut app, "/t");
        assert_eq!(pids(&app), [2, 3]);
        press(&mut app, "wo\n");
        assert_eq!((pids(&app), &app.view), (vec![2], &View::Table));
        press(&mut app, "/q\x1b");
        assert_eq!(app.choice.filter, "two", "Esc keeps what was before");
        press(&mut app, "/\x08\x08\x08\x08\x08sleeping three\n");
        assert_eq!(pids(&app), [3], "all words must be found");
        press(&mut app, "\x1b");
        assert_eq!(pids(&app), [1, 2, 3]);
        assert_eq!(press(&mut app, "/nobody"), Wish::None);
        assert_eq!(chosen(&app), None);
    }

    #[test]
    fn the_selected_one_stays_selected() {
        let mut app = app(three());
        press(&mut app, "v");
        assert_eq!(chosen(&app), Some(2));
        press(&mut app, "ssss");
        assert_eq!((chosen(&app), app.position()), (Some(2), 0));
        let mut more = three();
        more.push(sample(9, "/bin/nine", 900));
        app.take(round(more.clone()));
        assert_eq!((chosen(&app), app.position()), (Some(2), 1));
        // When it goes, the next one has its place.
        more.remove(1);
        app.take(round(more));
        assert_eq!((chosen(&app), app.position()), (Some(3), 1));
        app.take(round(Vec::new()));
        assert_eq!((chosen(&app), app.position()), (None, 0));
        app.take(round(three()));
        assert_eq!(app.position(), 0);
        // Another process with the same pid is another one.
        press(&mut app, "v");
        let mut again = three();
        again[1].start_time = 2;
        let id = again[1].id();
        app.take(round(again));
        assert_ne!(app.selected, Some(id));
    }

    #[test]
    fn the_detail_view_outlives_its_process() {
        let mut app = app(three());
        press(&mut app, "v\n");
        assert_eq!(app.view, View::Detail((2, 1), 0));
        let there = |app: &App| app.detail().map(|(s, there)| (s.figures.pid, there));
        assert_eq!(there(&app), Some((2, true)));
        app.take(round(vec![sample(1, "/bin/one", 5)]));
        assert_eq!(there(&app), Some((2, false)));
        press(&mut app, "vvv");
        app.clamp(2);
        assert_eq!(app.view, View::Detail((2, 1), 2));
        press(&mut app, "\x1b");
        assert_eq!((chosen(&app), &app.view), (Some(1), &View::Table));
        // With nobody there, nobody is looked at.
        app.take(round(Vec::new()));
        press(&mut app, "\n");
        assert_eq!(app.view, View::Table);
    }

    #[test]
    fn keys_to_end_are_heard_everywhere() {
        let end = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for keys in ["", "/", "\n", "?"] {
            let mut app = app(three());
            press(&mut app, keys);
            assert_eq!(app.key(end, 10), Wish::Quit, "{keys:?}");
            if keys != "/" {
                assert_eq!(press(&mut app, "q"), Wish::Quit, "{keys:?}");
            }
        }
    }

    #[test]
    fn the_pace_has_bounds() {
        let mut app = app(three());
        assert_eq!(press(&mut app, "+"), Wish::Pace(Duration::from_secs(2)));
        for _ in 0..20 {
            press(&mut app, "-");
        }
        assert_eq!(app.pace, Duration::from_millis(100));
        assert_eq!(press(&mut app, "-"), Wish::None);
        app.pace = Duration::from_millis(700);
        assert_eq!(press(&mut app, "-"), Wish::Pace(Duration::from_millis(500)));
    }
}
