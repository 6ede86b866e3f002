//! The terminal: taken over, listened to, and given back as it was, however this
//! ends.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Once};
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    disable_raw_mode, enable_raw_mode, EnterAlternateScreen, LeaveAlternateScreen,
};
use ratatui::Terminal;
use regall_reader::OpenError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::{flag, low_level};

use super::app::{App, Wish};
use super::sample::{Round, Sampler};
use super::screen::{self, Look};

/// So long a signal or a new round may have to wait.
const TICK: Duration = Duration::from_millis(50);

/// The terminal while it is ours.
struct Taken;

impl Taken {
    fn take() -> io::Result<Self> {
        give_back_on_panic();
        enable_raw_mode()?;
        let taken = Self;
        execute!(io::stdout(), EnterAlternateScreen)?;
        Ok(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        give_back();
    }
}

/// Whoever is not there any more to be given the terminal back does not matter.
///
/// By a descriptor of its own: the first thread holds the lock of the standard one,
/// and another one may be panicking.
fn give_back() {
    if let Ok(out) = io::stdout().as_fd().try_clone_to_owned() {
        let mut out = File::from(out);
        let _ = execute!(out, LeaveAlternateScreen, Show);
    }
    let _ = disable_raw_mode();
}

/// A panic aborts, so that nothing is dropped: the hook must do it.
fn give_back_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            give_back();
            before(info);
        }));
    });
}

/// Shows `app` until somebody wants it to end.
pub fn show(app: &mut App, look: &Look) -> anyhow::Result<()> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        flag::register_usize(number, Arc::clone(&signal), number as usize)?;
    }
    let sampling = Sampling::start(app.pace);
    loop {
        let end = stay(app, look, &sampling, &signal)?;
        match end {
            End::Quit => return Ok(()),
            // As if it had not been caught: the shell shall see what it was.
            End::Signal(number) => return Ok(low_level::emulate_default_handler(number)?),
            End::Stop => low_level::emulate_default_handler(SIGTSTP)?,
        }
    }
}

/// Why the terminal is given back.
enum End {
    Quit,
    Stop,
    Signal(i32),
}

fn stay(
    app: &mut App,
    look: &Look,
    sampling: &Sampling,
    signal: &AtomicUsize,
) -> anyhow::Result<End> {
    let _taken = Taken::take()?;
    let mut terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
    terminal.clear()?;
    let mut page = 0;
    let mut changed = true;
    loop {
        while let Some(round) = sampling.round() {
            app.take(round?);
            changed = true;
        }
        let number = signal.swap(0, Ordering::Relaxed);
        if number != 0 {
            return Ok(End::Signal(number as i32));
        }
        if changed {
            terminal.draw(|frame| page = screen::draw(app, look, frame))?;
        }
        changed = event::poll(TICK)?;
        if !changed {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match app.key(key, page) {
                Wish::None => {}
                Wish::Quit => return Ok(End::Quit),
                Wish::Stop => return Ok(End::Stop),
                Wish::Pace(pace) => sampling.set(pace),
            },
            // The terminal may have been written to; a size tells nothing of that.
            Event::Resize(..) => terminal.clear()?,
            _ => {}
        }
    }
}

/// Rounds that another thread makes, so that keys are answered however long one
/// takes.
struct Sampling {
    rounds: Receiver<Result<Round, OpenError>>,
    pace: Sender<Duration>,
}

impl Sampling {
    fn start(pace: Duration) -> Self {
        let (send, rounds) = mpsc::channel();
        let (set, changes) = mpsc::channel();
        std::thread::spawn(move || rounds_until_alone(pace, &send, &changes));
        Self { rounds, pace: set }
    }

    /// A round that has come since.
    fn round(&self) -> Option<Result<Round, OpenError>> {
        self.rounds.try_recv().ok()
    }

    fn set(&self, pace: Duration) {
        // It only ends once we have.
        let _ = self.pace.send(pace);
    }
}

fn rounds_until_alone(
    mut pace: Duration,
    send: &Sender<Result<Round, OpenError>>,
    changes: &Receiver<Duration>,
) {
    let mut sampler = Sampler::default();
    while send.send(sampler.round()).is_ok() {
        match changes.recv_timeout(pace) {
            Ok(changed) => pace = changed,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
