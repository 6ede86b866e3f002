//! `regall env`: the words for a job script.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use crate::launcher::Launcher;
use crate::settings::Settings;

pub const EXIT_CODES: &str = after_help!(
    "The words go between the launcher and the program: \
    mpirun $(regall env --for openmpi) -np 2 ./app. A word that a shell would \
    change is quoted: paste the words, or eval \"mpirun $(regall env ...) ./app\". Variables of \
    regall that are exported are among them; a flag overrides its variable.\n\n\
    Exit code: 0; 2 if there is no library or the launcher can't be told such a value.",
    "mpirun $(regall env --for openmpi) -np 2 ./app",
    "regall-env"
);

#[derive(clap::Args)]
pub struct Args {
    /// The launcher: Open MPI's mpirun (4 and 5), MPICH's mpiexec (hydra), or Slurm's srun
    #[arg(long = "for", value_name = "LAUNCHER")]
    launcher: Launcher,
    #[command(flatten)]
    settings: Settings,
}

pub fn env(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    let words = args.launcher.words(&args.settings.environment()?)?;
    let mut separator = "";
    for word in &words {
        out.write_all(separator.as_bytes())?;
        out.write_all(&quoted(word.as_bytes()))?;
        separator = " ";
    }
    writeln!(out)?;
    Ok(0)
}

/// As a shell takes it for one word; as it is, if no shell changes it.
fn quoted(word: &[u8]) -> Vec<u8> {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"_-+=,./:%@^".contains(b);
    if !word.is_empty() && word.iter().all(plain) {
        return word.to_vec();
    }
    let mut all = vec![b'\''];
    for &b in word {
        match b {
            b'\'' => all.extend(b"'\\''"),
            b => all.push(b),
        }
    }
    all.push(b'\'');
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::process::Command;

    #[test]
    fn a_shell_gives_back_what_was_quoted() {
        for word in [
            &b"REGALL=1"[..],
            b"",
            b"a b",
            b"*/libc.so.6,[heap]",
            b"it's",
            b"$HOME `id` \\ \"x\"",
            b"a\nb",
            b"\xff\xfe",
            b"~",
            b"'",
            b"^a",
        ] {
            let mut script = b"printf %s ".to_vec();
            script.extend(quoted(word));
            let shell = Command::new("sh")
                .arg("-c")
                .arg(OsStr::from_bytes(&script))
                .output();
            assert_eq!(shell.unwrap().stdout, word);
        }
        for plain in [&b"LD_PRELOAD=/a/b.so"[..], b"OMPI_MCA_memory=^patcher"] {
            assert_eq!(quoted(plain), plain);
        }
    }
}
