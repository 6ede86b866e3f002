//! The environment that puts the shim into a program: for `run`, and in words for
//! job scripts (`env`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use regall_settings::{Config, Problem};

use crate::caches::Off;
use crate::library;
use crate::output::complain;

macro_rules! settings {
    ($($group:literal $seldom:literal {
        $($field:ident $variable:literal $default:literal $values:literal $help:literal;)*
    })*) => {
        /// A flag for each variable that the shim reads. The shim's own parser reads the value,
        /// so that what it would refuse is refused before anything starts.
        #[derive(clap::Args, Default)]
        pub struct Settings {
            $($(
                #[arg(
                    long,
                    value_name = $values,
                    value_parser = Checked($variable),
                    hide_possible_values = true,
                    help_heading = $group,
                    hide_short_help = $seldom,
                    help = concat!($help, " (", $variable, "; default: ", $default, ")"),
                )]
                $field: Option<OsString>,
            )*)*
            /// Leave the registration caches and memory hooks of UCX, libfabric and Open MPI off,
            /// by their own variables; what is set already stays (docs/caches.md)
            #[arg(long)]
            no_caches: bool,
        }
        impl Settings {
            /// Returns each of them.
            pub fn all(&self) -> Vec<Setting<'_>> {
                vec![$($(Setting {
                    name: $variable,
                    default: $default,
                    meaning: $help,
                    flag: self.$field.as_deref(),
                },)*)*]
            }
        }
    };
}

// In groups; those with `true` are left out by -h.
settings! {
    "Memory" false {
        pin "REGALL_PIN" "auto" "auto|onfault|populate|off" "How memory is locked";
        limit "REGALL_LIMIT" "90%" "BYTES|PERCENT" "The most that may be pinned";
        on_limit "REGALL_ON_LIMIT" "skip" "skip|fail" "What happens beyond the limit";
        exclude "REGALL_EXCLUDE" "none" "GLOBS" "Mappings that are never registered";
        only "REGALL_ONLY" "all but launchers and shells" "GLOBS" "Executables to be active in";
        huge "REGALL_HUGE" "off" "off|advise" "Whether huge pages are asked for";
    }
    "Adapters" false {
        hca "REGALL_HCA" "adopt" "adopt|DEVICE|off" "Where memory is registered with an adapter";
        hca_devices "REGALL_HCA_DEVICES" "all" "GLOBS" "Adapters in whose protection domains memory is registered";
        hca_mode "REGALL_HCA_MODE" "pinned" "pinned|odp" "Pinned or on-demand registration";
        keys "REGALL_KEYS" "mapping" "mapping|exact" "What a borrowed key covers";
        access "REGALL_ACCESS" "local" "local|remote-read|remote-write|remote-atomic" "What peers may do through published keys";
        scope "REGALL_SCOPE" "all" "all|data" "Whether text and read-only data are registered too";
    }
    "Log and statistics" false {
        log "REGALL_LOG" "warn" "off|error|warn|info|debug|trace" "How much is logged";
        log_file "REGALL_LOG_FILE" "stderr" "PATH" "Where the log goes instead of stderr; %p is the pid, %h the host's name";
        stats_file "REGALL_STATS_FILE" "none" "PATH|node" "Where counters are written at exit; %p is the pid, %h the host's name, %r the rank, %j the job, %u the user's number, %d the date; node: in the node's memory, for regall report --merge";
        merge_file "REGALL_MERGE_FILE" "none" "PATH" "Where Slurm's task-epilog merges what stats-file node has left on a node";
    }
    "Single copy between peers" true {
        copy "REGALL_COPY" "auto" "auto|LIST|off" "How peers' memory is copied";
        ptracer "REGALL_PTRACER" "off" "off|any" "Whether Yama lets every process of the user trace this one";
        share "REGALL_SHARE" "off" "off|heap|always" "Whether peers can map large anonymous memory";
    }
    "Calls and forks" true {
        intercept "REGALL_INTERCEPT" "patch" "patch|symbols|strict" "How memory calls are caught";
        fork "REGALL_FORK" "inherit" "inherit|all" "What a forked child registers";
    }
    "Adapters, in detail" true {
        hca_fork "REGALL_HCA_FORK" "safe" "safe|unsafe" "Whether memory is registered on a kernel whose fork does not copy registered memory: safe leaves it out";
        hca_fill "REGALL_HCA_FILL" "now" "now|later" "Whether the first request in a protection domain waits until all memory is registered: later has a thread register the rest";
        verbs "REGALL_VERBS" "ioctl" "symbols|ioctl" "Where registrations with an adapter are answered: at libibverbs' symbols alone, or at the kernel's ioctl, too";
        revoke_ms "REGALL_REVOKE_MS" "100" "MS|off" "How long peers still reach what was deregistered";
    }
    "Messages between peers" true {
        box_limit "REGALL_BOX_LIMIT" "4K" "BYTES" "The longest message that this process takes";
        box_size "REGALL_BOX_SIZE" "32K" "BYTES" "The size of a sender's ring";
        box_max "REGALL_BOX_MAX" "32" "RINGS" "How many senders have a ring of their own at one time";
        box_threshold "REGALL_BOX_THRESHOLD" "16" "MESSAGES" "After how many messages a sender gets a ring";
    }
    "Checking the program" true {
        check "REGALL_CHECK" "off" "off|registrations" "What is checked of the program's own registrations; see regall check";
        check_file "REGALL_CHECK_FILE" "regall-check.%h.%p" "PATH" "Where a checked process leaves what it noticed; %p is the pid, %h the host's name";
        check_exit "REGALL_CHECK_EXIT" "the command's" "CODE" "What regall check exits with where there are errors";
        check_suppressions "REGALL_CHECK_SUPPRESSIONS" "none" "PATH" "What regall check does not report";
    }
}

/// A variable that the shim reads.
pub struct Setting<'a> {
    /// Its name.
    pub name: &'static str,
    /// Holds if nobody says anything else: a value, or words for it.
    pub default: &'static str,
    /// Says in a line what it is for.
    pub meaning: &'static str,
    /// The value of its flag.
    pub flag: Option<&'a OsStr>,
}

/// Returns what is wrong with a variable's value, as the shim has it.
pub fn wrong(name: &str, value: &OsStr) -> Option<String> {
    match Config::new().set(name.as_bytes(), value.as_bytes()) {
        Ok(()) => None,
        Err(Problem::Value { expected }) => Some(format!("expected {expected}")),
        Err(Problem::Long) => Some("too long".to_string()),
        Err(Problem::Name) => Some("unknown".to_string()),
    }
}

/// What a variable may be, as the shim has it.
#[derive(Clone)]
struct Checked(&'static str);

impl TypedValueParser for Checked {
    type Value = OsString;

    fn parse_ref(
        &self,
        command: &clap::Command,
        flag: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<OsString, clap::Error> {
        let Some(why) = wrong(self.0, value) else {
            return Ok(value.to_os_string());
        };
        let flag = flag.map(ToString::to_string).unwrap_or_default();
        let value = value.to_string_lossy();
        let text = format!("invalid value '{value}' for '{flag}': {why}\n");
        Err(clap::Error::raw(ErrorKind::ValueValidation, text).with_cmd(command))
    }

    /// For completions.
    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let words = regall_settings::words(self.0)?;
        Some(Box::new(words.iter().map(PossibleValue::new)))
    }
}

/// A variable and its value.
pub type Variable = (&'static str, OsString);

impl Settings {
    /// All that a program needs in its environment, wherever it is started.
    pub fn environment(&self) -> Result<Vec<Variable>, Missing> {
        self.with(preloaded()?)
    }

    /// The same with a copy of the library in its place.
    pub fn environment_of(&self, copy: &Path) -> Result<Vec<Variable>, Missing> {
        let other = library::find().ok();
        let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        let staged = |entry: &Path| {
            let name = entry.file_name().and_then(OsStr::to_str);
            name.is_some_and(library::is_copy)
        };
        let ours = |entry: &[u8]| {
            let entry = Path::new(OsStr::from_bytes(entry));
            Some(entry) == other.as_deref() || staged(entry)
        };
        let left = before
            .as_bytes()
            .split(separator)
            .filter(|e| !e.is_empty() && !ours(e));
        let left = left.collect::<Vec<_>>().join(&b':');
        let preload = preload(copy, Some(OsStr::from_bytes(&left))).map_err(Missing::Path)?;
        self.with(vec![("REGALL", "1".into()), ("LD_PRELOAD", preload)])
    }

    fn with(&self, mut all: Vec<Variable>) -> Result<Vec<Variable>, Missing> {
        all.extend(self.variables());
        if let Some(off) = self.no_caches() {
            if self.informs() {
                complain(&off.said());
            }
            all.extend(
                off.set
                    .into_iter()
                    .map(|(name, value)| (name, value.into())),
            );
        }
        Ok(all)
    }

    /// Returns each variable that was given a flag, or else stands in the environment: it does not
    /// reach every rank by itself.
    fn variables(&self) -> impl Iterator<Item = Variable> + '_ {
        let value = |s: &Setting<'_>| {
            s.flag
                .map(OsStr::to_os_string)
                .or_else(|| std::env::var_os(s.name))
        };
        let all = self.all().into_iter();
        all.filter_map(move |s| Some((s.name, value(&s)?)))
    }

    /// Returns what `--no-caches` sets, if it was given.
    pub fn no_caches(&self) -> Option<Off> {
        let theirs = |name: &str| std::env::var_os(name).is_some();
        self.no_caches.then(|| Off::beside(theirs))
    }

    /// Whether the shim would log what is but worth knowing.
    fn informs(&self) -> bool {
        let mut variables = self.variables();
        let log = variables.find_map(|(name, value)| (name == LOG).then_some(value));
        matches!(
            log.as_deref().and_then(OsStr::to_str),
            Some("info" | "debug" | "trace")
        )
    }
}

/// What turns the shim on, with the defaults of all settings.
pub fn preloaded() -> Result<Vec<Variable>, Missing> {
    let library = library::find().map_err(|places| {
        let places: Vec<_> = places.iter().map(|p| p.display().to_string()).collect();
        let places = places.join(" and ");
        Missing::Library(format!("{} not found; looked for {places}", library::NAME))
    })?;
    let before = std::env::var_os("LD_PRELOAD");
    let preload = preload(&library, before.as_deref()).map_err(Missing::Path)?;
    Ok(vec![("REGALL", "1".into()), ("LD_PRELOAD", preload)])
}

/// The variable that says how much is logged.
const LOG: &str = "REGALL_LOG";

/// The variable that has counters written at exit.
pub const STATS_FILE: &str = "REGALL_STATS_FILE";

/// The variable that says where a node's are merged.
pub const MERGE_FILE: &str = "REGALL_MERGE_FILE";

/// Why there is no environment to be had.
#[derive(Debug)]
pub enum Missing {
    /// There is no library.
    Library(String),
    /// ld.so can't preload it.
    Path(String),
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Library(why) | Self::Path(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Missing {}

/// What ld.so takes to stand between two libraries.
fn separator(b: &u8) -> bool {
    matches!(b, b':' | b' ')
}

/// LD_PRELOAD with the shim first: before whatever else patches libc. ld.so
/// takes both colons and blanks as separators, so what is there is kept as it
/// is, and a path that contains one can't be preloaded at all (ld.so(8)).
fn preload(library: &Path, before: Option<&OsStr>) -> Result<OsString, String> {
    let path = library.as_os_str();
    if path.as_bytes().iter().any(separator) {
        return Err(format!(
            "{}: ld.so can't preload a path with a blank or a colon in it",
            library.display()
        ));
    }
    let before = before.unwrap_or_default();
    let mut entries = before.as_bytes().split(separator);
    if entries.find(|e| !e.is_empty()) == Some(path.as_bytes()) {
        return Ok(before.to_os_string());
    }
    let mut all = path.to_os_string();
    if !before.is_empty() {
        all.push(":");
        all.push(before);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shim_comes_first_and_once() {
        let with = |before: &str| preload(Path::new("/x/l.so"), Some(OsStr::new(before)));
        assert_eq!(preload(Path::new("/x/l.so"), None), Ok("/x/l.so".into()));
        assert_eq!(with(""), Ok("/x/l.so".into()));
        assert_eq!(with("a.so b.so"), Ok("/x/l.so:a.so b.so".into()));
        assert_eq!(with("/x/l.so:a.so"), Ok("/x/l.so:a.so".into()));
        assert_eq!(with("a.so:/x/l.so"), Ok("/x/l.so:a.so:/x/l.so".into()));
        assert!(preload(Path::new("/x y/l.so"), None).is_err());
    }
}
