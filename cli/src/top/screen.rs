//! The state as a picture of a terminal.

use ratatui::layout::{Constraint, Layout as Split, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Widget};
use ratatui::Frame;

use super::app::{App, View};
use super::column::{Column, Layout};
use super::detail;
use super::sample::Sample;
use crate::units;

/// How things look; without colour by weight and reversal alone.
pub struct Look {
    colours: bool,
}

/// Columns left of the table: the mark of the selected row.
const MARK: usize = 1;

const KEYS: &str =
    "q quit  Enter detail  s/S sort  r reverse  / filter  Left/Right columns  ? help";
const KEYS_TEXT: &str = "q quit  Esc back  Up/Down PgUp/PgDn move  +/- slower, faster";
const KEYS_FILTER: &str = "Enter keep  Esc cancel";

impl Look {
    /// With or without colours.
    pub fn new(colours: bool) -> Self {
        Self { colours }
    }

    fn with(&self, colour: Color) -> Style {
        match self.colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    fn head(&self) -> Style {
        self.with(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    fn keys(&self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// What has gone wrong stands out, what rests steps back.
    fn row(&self, sample: &Sample, selected: bool) -> Style {
        let f = &sample.figures;
        let style = match sample.launched.state {
            _ if f.gave_up() || f.header.unpublished != 0 => self.with(Color::Red),
            'T' | 't' => self.with(Color::Magenta),
            _ if f.bytes.over_limit() != 0 => self.with(Color::Yellow),
            _ => Style::new(),
        };
        match selected {
            true => style.add_modifier(Modifier::REVERSED),
            false => style,
        }
    }
}

/// Draws all; returns how many lines of a table or a text are seen at a time.
pub fn draw(app: &mut App, look: &Look, frame: &mut Frame) -> usize {
    let [top, body, keys] = Split::vertical([
        Constraint::Length(2),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    put(frame, top, vec![summary(app), status(app)]);
    let footer = match &app.view {
        View::Table => KEYS,
        View::Typing(_) => KEYS_FILTER,
        View::Detail(..) | View::Help(_) => KEYS_TEXT,
    };
    put(
        frame,
        keys,
        vec![Line::styled(wide(footer, keys), look.keys())],
    );
    match &app.view {
        View::Table | View::Typing(_) => table(app, look, frame, body),
        View::Detail(..) => {
            let detail = app.detail();
            let lines = detail.map_or(Vec::new(), |(s, there)| detail::lines(s, there));
            text(app, look, frame, body, lines)
        }
        View::Help(_) => text(app, look, frame, body, help(&app.columns)),
    }
}

fn put(frame: &mut Frame, area: Rect, lines: Vec<Line>) {
    Paragraph::new(lines).render(area, frame.buffer_mut());
}

/// Text that fills its line.
fn wide(text: &str, area: Rect) -> String {
    format!("{text:<width$}", width = usize::from(area.width))
}

/// The first line: all processes in one.
fn summary(app: &App) -> Line<'static> {
    let samples = &app.round.samples;
    let sum = |bytes: fn(&Sample) -> u64| {
        let all = samples.iter().map(bytes);
        units::bytes(all.fold(0, u64::saturating_add))
    };
    let text = match app.started {
        false => "looking".to_string(),
        true => format!(
            "{}: {} registered, {} excluded, {} over the limit",
            plural(samples.len(), "process", "processes"),
            sum(|s| s.figures.bytes.registered()),
            sum(|s| s.figures.bytes.excluded()),
            sum(|s| s.figures.bytes.over_limit()),
        ),
    };
    Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
}

fn plural(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// The second line: how they are chosen, and what could not be seen.
fn status(app: &App) -> Line<'static> {
    if let View::Typing(_) = app.view {
        return Line::raw(format!("filter: {}_", app.choice.filter));
    }
    let mut parts = vec![format!("every {} s", app.pace.as_secs_f64())];
    if let Some(column) = app.columns.get(app.choice.sort) {
        let first = match column.ascending() != app.choice.reversed {
            true => "smallest",
            false => "largest",
        };
        parts.push(format!("sorted by {}, {first} first", column.head));
    }
    if !app.choice.filter.is_empty() {
        let shown = app.rows().len();
        parts.push(format!(
            "{shown} match \"{}\" (Esc: all)",
            app.choice.filter
        ));
    }
    if let Some((seen, why)) = app.round.blind.first() {
        let pid = seen.pid;
        let others = match app.round.blind.len() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        parts.push(format!("can't look at {pid}{others}: {why}"));
    }
    parts.extend(app.round.unreached());
    Line::raw(parts.join("; "))
}

fn table(app: &App, look: &Look, frame: &mut Frame, area: Rect) -> usize {
    let [head, body] = Split::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let room = usize::from(area.width).saturating_sub(MARK);
    let layout = Layout::new(&app.columns, app.skip, room);
    let heading = format!("{}{}", if app.skip > 0 { "<" } else { " " }, layout.head());
    put(frame, head, vec![Line::styled(heading, look.head())]);
    let rows = app.rows();
    let page = usize::from(body.height);
    if rows.is_empty() && app.started {
        let why = match app.round.samples.len() {
            0 => " no process runs with the shim on (regall run -- COMMAND starts one)",
            _ => " no process matches the filter (Esc: all)",
        };
        put(frame, body, vec![Line::raw(why)]);
        return page;
    }
    let first = first_seen(app.position(), page, rows.len());
    let lines = rows.iter().enumerate().skip(first).take(page);
    let lines = lines.map(|(n, sample)| {
        let selected = n == app.position();
        let mark = if selected { '>' } else { ' ' };
        let text = format!("{mark}{}", layout.row(sample));
        Line::styled(text, look.row(sample, selected))
    });
    put(frame, body, lines.collect());
    page
}

/// The first row of a page on which row `position` is seen.
fn first_seen(position: usize, page: usize, rows: usize) -> usize {
    let middle = position.saturating_sub(page / 2);
    middle.min(rows.saturating_sub(page))
}

fn text(
    app: &mut App,
    look: &Look,
    frame: &mut Frame,
    area: Rect,
    lines: Vec<detail::Line>,
) -> usize {
    let page = usize::from(area.height);
    app.clamp(lines.len().saturating_sub(page));
    let first = match app.view {
        View::Detail(_, line) | View::Help(line) => line,
        View::Table | View::Typing(_) => 0,
    };
    let lines = lines.into_iter().skip(first).take(page);
    let lines = lines.map(|(text, head)| match head {
        true => Line::styled(text, look.head()),
        false => Line::raw(text),
    });
    put(frame, area, lines.collect());
    page
}

fn help(columns: &[Column]) -> Vec<detail::Line> {
    let mut lines = vec![("columns".to_string(), true)];
    let column = |c: &Column| (format!("{:<9} {}", c.head, c.help), false);
    lines.extend(columns.iter().map(column));
    lines.push((String::new(), false));
    lines.push(("keys".to_string(), true));
    let keys = [
        ("Up Down PgUp PgDn Home End", "choose a process"),
        ("Enter", "show all that is known of it"),
        ("s  S", "sort by the next column, by the previous one"),
        ("r", "reverse the order"),
        ("/", "filter by words: pid, name, state or rank=N"),
        ("Esc", "show all"),
        ("Left Right", "see other columns"),
        ("+  -", "update less often, more often"),
        ("Ctrl-Z", "stop, as in a shell"),
        ("q  Ctrl-C", "quit"),
    ];
    let key = |(key, does): (&str, &str)| (format!("{key:<27} {does}"), false);
    lines.extend(keys.into_iter().map(key));
    lines
}

#[cfg(test)]
mod tests {
    use super::super::app::Choice;
    use super::super::sample::{fixtures::sample, Round};
    use super::*;
    use crate::answer::Blind;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};
    use ratatui::Terminal;
    use regall_reader::{OpenError, Seen, Unseen};
    use std::time::Duration;

    fn app(processes: u32) -> App {
        let choice = Choice {
            sort: 0,
            reversed: false,
            filter: String::new(),
        };
        let mut app = App::new(choice, Duration::from_secs(1));
        let samples = (0..processes).map(|n| sample(100 + n, "/bin/app", 7));
        app.take(Round {
            samples: samples.collect(),
            ..Round::default()
        });
        app
    }

    fn picture(app: &mut App, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let look = Look::new(false);
        terminal
            .draw(|frame| {
                draw(app, &look, frame);
            })
            .unwrap();
        let buffer = terminal.backend().buffer();
        for cell in buffer.content() {
            assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
        }
        let rows = buffer.content().chunks(usize::from(width.max(1)));
        rows.map(|row| row.iter().map(|c| c.symbol()).collect::<String>())
            .map(|row: String| row.trim_end().to_string())
            .collect()
    }

    #[test]
    fn without_colour_and_in_eighty_columns() {
        let mut app = app(3);
        let seen = picture(&mut app, 80, 24);
        assert_eq!(
            seen[0],
            "3 processes: 0 B registered, 0 B excluded, 0 B over the limit"
        );
        assert_eq!(seen[1], "every 1 s; sorted by PID, smallest first");
        assert!(seen[2].starts_with("     PID RANK EXE"), "{}", seen[2]);
        assert!(seen[2].ends_with("SHIM% SERVED"), "{}", seen[2]);
        assert!(seen[3].starts_with(">    100    - app"), "{}", seen[3]);
        assert!(seen[5].starts_with("     102    - app"), "{}", seen[5]);
        assert!(seen[23].starts_with("q quit") && seen[23].ends_with("? help"));
    }

    #[test]
    fn the_selected_row_is_always_seen() {
        let mut app = app(200);
        for _ in 0..150 {
            app.key(KeyEvent::from(KeyCode::Down), 10);
        }
        for height in 5..40 {
            let seen = picture(&mut app, 80, height);
            let marked = seen.iter().filter(|l| l.starts_with(">    250"));
            assert_eq!(marked.count(), 1, "{height}");
        }
        app.key(KeyEvent::from(KeyCode::End), 10);
        let seen = picture(&mut app, 80, 24);
        assert!(seen[22].starts_with(">    299"), "{seen:#?}");
    }

    #[test]
    fn any_size_will_do() {
        for width in [0, 1, 2, 7, 20, 79, 80, 81, 300] {
            for height in [0, 1, 2, 3, 4, 24, 100] {
                for key in ['x', '?', '/', '\n'] {
                    let mut app = app(5);
                    let code = match key {
                        '\n' => KeyCode::Enter,
                        c => KeyCode::Char(c),
                    };
                    app.key(KeyEvent::from(code), 0);
                    picture(&mut app, width, height);
                }
            }
        }
    }

    #[test]
    fn what_can_not_be_seen_is_said() {
        let seen = |pid| Seen {
            pid,
            start_time: 1,
            uid: 7,
            cost: Duration::ZERO,
        };
        let blind = |pid, why| (seen(pid), why);
        let mut app = app(0);
        assert!(picture(&mut app, 80, 24)[3].contains("no process runs"));
        app.take(Round {
            samples: vec![sample(1, "/bin/app", 1)],
            blind: vec![blind(7, OpenError::Foreign), blind(8, OpenError::Inert)],
            unreached: Blind {
                unseen: Unseen {
                    processes: vec![(1000, 3)],
                    unknown: vec![1002],
                },
                left: vec![(1003, 1)],
            },
            more: vec![(1001, 4)],
        });
        let seen = picture(&mut app, 500, 24);
        for part in [
            "can't look at 7 and 1 more: permission",
            "user 1000: 3 more processes in pid namespaces",
            "user 1001: 4 more than 2048 processes: not looked at",
            "user 1002: not all names",
            "user 1003: 1 more process: not looked at",
        ] {
            assert!(seen[1].contains(part), "{}", seen[1]);
        }
        assert!(seen[0].starts_with("1 process: "));
    }
}
