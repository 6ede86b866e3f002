//! A terminal that programs are run in and that can be read: tmux.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::mode::Mode;

/// So long a change may take to be seen.
const PATIENCE: Duration = Duration::from_secs(20);

/// A terminal with a shell in it, gone when this is dropped.
pub struct Screen {
    server: String,
}

impl Screen {
    /// One of this size. The shell has `env`, and of REGALL's variables none.
    pub fn new(width: u16, height: u16, env: &[(&str, &str)]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let server = format!("regall-tests-{}-{count}", std::process::id());
        let this = Self { server };
        let size = [width.to_string(), height.to_string()];
        let mut command = this.command(&["-f", "/dev/null", "new-session", "-d"]);
        command.args(["-x", &size[0], "-y", &size[1], "env", "PS1=$ ", "sh"]);
        Mode::Plain.apply(&mut command);
        command
            .env_remove("TMUX")
            .env_remove("NO_COLOR")
            .env("LC_ALL", "C.UTF-8")
            .env("TERM", "xterm-256color")
            .envs(env.iter().copied());
        let done = command.output().expect("tmux");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "tmux: {said}");
        this
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-L", &self.server]).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let done = self.command(arguments).output().expect("tmux");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{arguments:?}: {said}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Types keys by tmux's names, or text that is none.
    pub fn keys(&self, keys: &[&str]) {
        self.ask(&[&["send-keys"], keys].concat());
    }

    /// Types a command.
    pub fn line(&self, line: &str) {
        self.keys(&[line, "Enter"]);
    }

    /// What is seen, without blanks at the ends of lines.
    pub fn seen(&self) -> Vec<String> {
        let text = self.ask(&["capture-pane", "-p"]);
        text.lines().map(|l| l.trim_end().to_string()).collect()
    }

    /// The same with the sequences for colours and the like.
    pub fn painted(&self) -> String {
        self.ask(&["capture-pane", "-p", "-e"])
    }

    /// Waits until what is seen is as it should be, and returns it.
    pub fn wait(&self, what: &str, is: impl Fn(&[String]) -> bool) -> Vec<String> {
        let began = Instant::now();
        loop {
            let seen = self.seen();
            if is(&seen) {
                return seen;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{what} was not seen:\n{}",
                seen.join("\n")
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Makes it larger or smaller.
    pub fn resize(&self, width: u16, height: u16) {
        let (width, height) = (width.to_string(), height.to_string());
        self.ask(&["resize-window", "-x", &width, "-y", &height]);
    }

    /// Whether a program has taken the whole screen, and whether the cursor is seen.
    pub fn state(&self) -> (bool, bool) {
        let said = self.ask(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        (said.starts_with('1'), said.trim_end().ends_with('1'))
    }

    /// The terminal's settings, as a program in it that ran just now saw them.
    pub fn settings(&self, folder: &Path) -> String {
        let (new, file) = (folder.join("stty.new"), folder.join("stty"));
        let _ = std::fs::remove_file(&file);
        self.line(&format!(
            "stty -a >{new} && mv {new} {file}",
            new = new.display(),
            file = file.display()
        ));
        let began = Instant::now();
        loop {
            match std::fs::read_to_string(&file) {
                Ok(text) => return text,
                Err(_) => assert!(began.elapsed() < PATIENCE, "no shell: {:#?}", self.seen()),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).output();
    }
}
