//! Waits for a command, hands signals on to it, and can be ended when it has ended.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::thread;

use rustix::io::Errno;
use rustix::process::{kill_process, waitid, Pid, Signal, WaitId, WaitIdOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::exfiltrator::WithRawSiginfo;
use signal_hook::iterator::{Signals, SignalsInfo};
use signal_hook::low_level::emulate_default_handler;

use crate::inherited;
use crate::output::complain;

/// How a command ended.
pub struct Ended {
    /// Its exit status, as a shell says it.
    pub code: u8,
    /// It was to be ended more than once: by SIGINT or SIGTERM. Who asks twice does not want to
    /// wait for what would be done after it.
    pub at_once: bool,
}

/// Runs it to its end. A signal that somebody sends is handed on, so that whoever means the
/// command reaches it. A signal that the kernel sends, for a key of the terminal or its end, has
/// gone to the command, too: it is in the same group. What somebody sends to that group can't be
/// told from what is sent to us, and reaches the command twice: to be ended twice is better than
/// not at all.
///
/// From then on SIGINT, SIGTERM and SIGQUIT end this process, which says what is `undone` then.
pub fn waited(command: &mut Command, undone: String) -> io::Result<Ended> {
    let signals = heeded(&[SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]);
    let mut coming = SignalsInfo::<WithRawSiginfo>::new(signals)?;
    let handle = coming.handle();
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    let forwarder = thread::spawn(move || {
        let mut ends = 0;
        for signal in coming.forever() {
            ends += usize::from(is_end(signal.si_signo));
            let named = Signal::from_named_raw(signal.si_signo);
            if let Some(named) = named.filter(|_| signal.si_code != libc::SI_KERNEL) {
                // The child has not been waited for while this runs.
                let _ = kill_process(pid, named);
            }
        }
        (coming, ends)
    });
    let over = ended(pid);
    // What came before the command's end was meant for it, and what comes now for us.
    let late = Signals::new(heeded(&[SIGINT, SIGQUIT, SIGTERM]));
    // From here on its number may be somebody else's.
    handle.close();
    let ends = forwarder.join().map_or(0, |(mut coming, ends)| {
        let rest = coming.pending().filter(|s| is_end(s.si_signo));
        ends + rest.count()
    });
    over?;
    end_with(late?, undone);
    let status = child.wait()?;
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    Ok(Ended {
        code: code.and_then(|c| u8::try_from(c).ok()).unwrap_or(u8::MAX),
        at_once: ends > 1,
    })
}

/// Those that are not ignored: a handler here would be the default action in the command.
fn heeded(signals: &[i32]) -> Vec<i32> {
    let all = signals.iter().copied();
    all.filter(|s| !inherited::is_ignored(*s)).collect()
}

fn is_end(signal: i32) -> bool {
    matches!(signal, SIGINT | SIGTERM)
}

/// The next of these signals ends this process, as if nobody had asked for it.
fn end_with(mut signals: Signals, undone: String) {
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            complain(&undone);
            let _ = emulate_default_handler(signal);
        }
    });
}

/// Waits for a child's end and leaves it to be waited for.
fn ended(pid: Pid) -> io::Result<()> {
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(pid), how) {
            Err(Errno::INTR) => continue,
            done => return Ok(done.map(drop)?),
        }
    }
}
