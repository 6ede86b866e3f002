//! `regall config`: each setting, where its value comes from, and what it is.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use regall_documents::{self as documents, Setting, Source};
use regall_settings::{Complaint, Config, Problem, Switch, CHECKED};

use crate::output::{complain, print_json};
use crate::settings::{self, Settings};
use crate::table::table;
use crate::units::printable;

pub const EXIT_CODES: &str = after_help!(
    "FROM is flag, environment or default, or check where REGALL_CHECK=registrations turns it off. \
    regall stats has what is in force in a process, on its machine.\n\n\
    Exit code: 0; 1 if a value is not valid, so that programs would run without the shim, or a \
    name that begins with REGALL_ is none of a variable; 2 wrong use.",
    "regall config --pin onfault",
    "regall-config"
);

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    settings: Settings,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn config(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    let told = documents::Config {
        version: documents::VERSION,
        settings: all(&args.settings),
        unknown: unknown(),
    };
    match args.json {
        true => print_json(&told, out)?,
        false => print(&told.settings, out)?,
    }
    for name in &told.unknown {
        let complaint = Complaint {
            name: name.as_bytes(),
            value: b"",
            problem: Problem::Name,
        };
        complain(&complaint.to_string());
    }
    if let Some(off) = args.settings.no_caches() {
        complain(&off.said());
    }
    let good = told.settings.iter().all(|s| s.wrong.is_none()) && told.unknown.is_empty();
    Ok(u8::from(!good))
}

/// Returns what turns the shim on, and all settings as `regall run` hands them on.
fn all(flags: &Settings) -> Vec<Setting> {
    let mut all = vec![switch()];
    let mut config = Config::new();
    for setting in flags.all() {
        let variable = std::env::var_os(setting.name);
        let (value, source) = match (setting.flag, &variable) {
            (Some(value), _) => (Some(value), Source::Flag),
            (None, Some(value)) => (Some(value.as_os_str()), Source::Environment),
            (None, None) => (None, Source::Default),
        };
        if let Some(value) = value {
            // (What is wrong is told.)
            let _ = config.set(setting.name.as_bytes(), value.as_bytes());
        }
        all.push(Setting {
            name: setting.name.to_string(),
            value: value.map_or(setting.default.into(), |v| v.to_string_lossy().into()),
            source,
            wrong: value.and_then(|value| settings::wrong(setting.name, value)),
            meaning: setting.meaning.to_string(),
        });
    }
    if config.check {
        all.iter_mut().for_each(decided);
    }
    all
}

/// Gives a setting the value that it has while the program is checked.
fn decided(setting: &mut Setting) {
    let known = CHECKED.iter().find(|(name, _)| *name == setting.name);
    let known = known.filter(|_| setting.wrong.is_none());
    if let Some((_, value)) = known {
        setting.value = value.to_string();
        setting.source = Source::Check;
    }
}

/// Returns REGALL, which no flag sets.
fn switch() -> Setting {
    let value = std::env::var_os("REGALL");
    let (source, shown) = match &value {
        Some(value) => (Source::Environment, value.to_string_lossy().into_owned()),
        None => (Source::Default, "0".to_string()),
    };
    let unclear = Switch::of(value.unwrap_or_default().as_bytes()) == Switch::Unclear;
    Setting {
        name: "REGALL".to_string(),
        value: shown,
        source,
        wrong: unclear.then(|| "expected 1, 0, off, no or false".to_string()),
        meaning: "Whether the shim is on: only 1 turns it on; regall run sets that".to_string(),
    }
}

/// Returns the variables that begin as ours do, and that the shim does not know.
fn unknown() -> Vec<String> {
    let ours = |name: &[u8]| {
        name.starts_with(b"REGALL_") && Config::new().set(name, b"") == Err(Problem::Name)
    };
    let names = std::env::vars_os().map(|(name, _)| name);
    let unknown = names.filter(|name| ours(name.as_bytes()));
    let mut all: Vec<_> = unknown.map(|n| n.to_string_lossy().into_owned()).collect();
    all.sort();
    all
}

/// One setting in a line.
fn print(all: &[Setting], out: &mut impl Write) -> std::io::Result<()> {
    let rows = all.iter().map(|setting| {
        let value = match setting.value.as_str() {
            "" => "\"\"".to_string(),
            value => printable(value),
        };
        let meaning = match &setting.wrong {
            Some(wrong) => format!("not valid ({wrong}): regall stays off"),
            None => setting.meaning.clone(),
        };
        let source = setting.source.word().to_string();
        [setting.name.clone(), value, source, meaning]
    });
    write!(
        out,
        "{}",
        table(["SETTING", "VALUE", "FROM", "MEANING"], rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::evil;

    /// Whoever set a variable says what stands in it.
    #[test]
    fn a_value_commands_no_terminal() {
        let setting = Setting {
            value: evil::TEXT.to_string(),
            ..switch()
        };
        let mut said = Vec::new();
        print(&[setting], &mut said).unwrap();
        evil::is_harmless(&String::from_utf8(said).unwrap());
    }

    /// Checking decides some of the settings, with values that they can have.
    #[test]
    fn what_checking_decides_is_told() {
        let mut all = all(&Settings::default());
        all.iter_mut().for_each(decided);
        let decided: Vec<_> = all.iter().filter(|s| s.source == Source::Check).collect();
        assert_eq!(decided.len(), CHECKED.len());
        for setting in decided {
            let wrong = settings::wrong(&setting.name, setting.value.as_ref());
            assert_eq!(wrong, None, "{}", setting.name);
        }
    }
}
