//! The terminal: taken over, listened to, and given back as it was, however this
//! ends.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

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
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use crate::inherited::is_ignored;

use super::app::{App, Wish};
use super::sample::{Round, Sampler};
use super::screen::{self, Look};

/// How long a new round may have to wait.
const TICK: Duration = Duration::from_millis(50);
/// How long the end waits for a screen that is being written: a terminal may be gone.
const PATIENCE: Duration = Duration::from_millis(200);

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

/// Held while something is written to the terminal.
static WRITING: Mutex<()> = Mutex::new(());

/// Ends on a signal as if it had not been caught, but for the terminal.
///
/// In a thread of its own: on a terminal that is gone the first one never comes
/// back from waiting for keys.
fn end_on_signals() -> io::Result<()> {
    let ending = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
    // What whoever started us has ignored stays so.
    let mut signals = Signals::new(ending.into_iter().filter(|s| !is_ignored(*s)))?;
    std::thread::spawn(move || {
        for number in signals.forever() {
            let began = Instant::now();
            let mut quiet = WRITING.try_lock();
            while quiet.is_err() && began.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
                quiet = WRITING.try_lock();
            }
            give_back();
            let _ = low_level::emulate_default_handler(number);
        }
    });
    Ok(())
}

/// Shows `app` until somebody wants it to end.
pub fn show(app: &mut App, look: &Look, sampler: Sampler) -> anyhow::Result<()> {
    end_on_signals()?;
    let sampling = Sampling::start(sampler, app.pace);
    loop {
        match stay(app, look, &sampling)? {
            End::Quit => return Ok(()),
            End::Stop => low_level::emulate_default_handler(SIGTSTP)?,
        }
    }
}

/// Why the terminal is given back.
enum End {
    Quit,
    Stop,
}

fn stay(app: &mut App, look: &Look, sampling: &Sampling) -> anyhow::Result<End> {
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
        if changed {
            let _writing = WRITING.lock();
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
    fn start(sampler: Sampler, pace: Duration) -> Self {
        let (send, rounds) = mpsc::channel();
        let (set, changes) = mpsc::channel();
        std::thread::spawn(move || rounds_until_alone(sampler, pace, &send, &changes));
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
    mut sampler: Sampler,
    mut pace: Duration,
    send: &Sender<Result<Round, OpenError>>,
    changes: &Receiver<Duration>,
) {
    while send.send(sampler.round()).is_ok() {
        match changes.recv_timeout(pace) {
            Ok(changed) => pace = changed,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
