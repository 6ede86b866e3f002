//! `regall pages`: manual pages, shell completions and JSON Schemas, for `make install`. Hidden,
//! since nobody else needs it; a part of the command, since whoever installs has that
//! and seldom a Rust toolchain.

pub mod counters;
mod header;
mod roff;
mod variables;

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use roff::Page;

#[derive(clap::Args)]
pub struct Args {
    /// The prefix below which they are written
    prefix: PathBuf,
}

/// Writes the pages, completions and schemas of `command`.
pub fn pages(args: &Args, command: Command, out: &mut impl Write) -> anyhow::Result<u8> {
    for (path, text) in all(command)? {
        let path = args.prefix.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        // Not what an older page is a link to.
        let _ = fs::remove_file(&path);
        let done = match text {
            Content::Text(text) => fs::write(&path, text),
            Content::Link(to) => symlink(to, &path),
        };
        done.with_context(|| path.display().to_string())?;
        writeln!(out, "{}", path.display())?;
    }
    Ok(0)
}

enum Content {
    Text(Vec<u8>),
    /// Another name of a page in the same folder.
    Link(&'static str),
}

/// Each file's path below the prefix, and what is in it.
fn all(mut command: Command) -> anyhow::Result<Vec<(PathBuf, Content)>> {
    let mut all = Vec::new();
    let mut put = |path: String, content| all.push((PathBuf::from(path), content));
    // Built: arguments that are global or come by themselves are there, too.
    let mut public = public(&command);
    command.build();
    put(
        "share/man/man1/regall.1".into(),
        Content::Text(main_page(&command)?.into()),
    );
    for sub in shown(&command) {
        let page = command_page(sub)?;
        put(
            format!("share/man/man1/regall-{}.1", sub.get_name()),
            Content::Text(page.into()),
        );
    }
    let (page, functions) = header::page();
    put("share/man/man3/regall.3".into(), Content::Text(page.into()));
    for function in functions {
        put(
            format!("share/man/man3/{function}.3"),
            Content::Link("regall.3"),
        );
    }
    put(
        "share/man/man7/regall.7".into(),
        Content::Text(variables_page().into()),
    );
    for (shell, path) in [
        (Shell::Bash, "share/bash-completion/completions/regall"),
        (Shell::Zsh, "share/zsh/site-functions/_regall"),
        (Shell::Fish, "share/fish/vendor_completions.d/regall.fish"),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut public, "regall", &mut text);
        put(path.into(), Content::Text(text));
    }
    for (name, schema) in regall_documents::schemas() {
        let mut text = serde_json::to_vec_pretty(&schema)?;
        text.push(b'\n');
        put(
            format!("share/regall/schema/{name}.json"),
            Content::Text(text),
        );
    }
    Ok(all)
}

/// The subcommands that people use.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    let hidden = |c: &&Command| !c.is_hide_set() && c.get_name() != "help";
    command.get_subcommands().filter(hidden)
}

/// Without what is hidden: completions would offer it.
fn public(command: &Command) -> Command {
    let mut public = Command::new("regall")
        .version(env!("REGALL_VERSION"))
        .args(command.get_arguments().cloned());
    for sub in shown(command) {
        public = public.subcommand(sub.clone());
    }
    public
}

fn main_page(command: &Command) -> anyhow::Result<String> {
    let mut page = Page::new(
        "regall",
        1,
        "run programs with all of their memory registered, and look at it",
    );
    page.section("SYNOPSIS");
    synopsis(&mut page, command);
    page.section("DESCRIPTION").text(
        "`libregall.so` is preloaded into an unmodified MPI program. From before `main` to the program's end, it \
         keeps memory pinned, and registered with RDMA adapters; what it leaves out has a named reason. `regall` preloads it into programs, and examines programs that have it. The library does nothing at all in a \
         program unless `REGALL=1` is in its environment.",
    );
    page.paragraph("What a process has published is read from its directory below /dev/shm, and from /proc. The \
         process itself is not asked, so it can be a stopped process.");
    page.section("COMMANDS");
    for sub in shown(command) {
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        page.item(&format!("`regall-{}`(1)", sub.get_name()), &about);
    }
    page.section("OPTIONS");
    page.raw(&rendered(command, Man::render_options_section)?);
    page.section("EXIT STATUS").text(
        "0: done, and nothing is wrong. 2: could not look, or wrong use. Other codes are in the commands\\(aq pages; \
         `regall run` has that of the command that it runs.".replace("\\(aq", "'").as_str(),
    );
    page.section("FILES");
    page.item("`/dev/shm/regall-UID/`", "the directories of a user's processes, a file each. The next process that starts removes what a dead process left.");
    page.item(
        "`libregall.so`",
        "is looked for beside `regall` itself, then in ../lib and ../lib64.",
    );
    page.section("EXAMPLES").text("Check a job while it runs:");
    page.code("regall run -- mpirun -np 2 ./app &\nregall verify --all\nregall top");
    page.paragraph("One table of what a job did, when it has ended:");
    page.code("regall run --report report.txt -- mpirun -np 2 ./app");
    page.paragraph(
        "What keeps registration from working on this machine, and the line that mends it:",
    );
    page.code("regall doctor");
    page.section("SEE ALSO");
    let pages = shown(command).map(|s| format!("`regall-{}`(1), ", s.get_name()));
    page.text(&format!(
        "{}`regall`(3), `regall`(7), `ld.so`(8), `mlock`(2)",
        pages.collect::<String>()
    ));
    Ok(page.finish())
}

/// How the paragraphs below a command's options begin that have sections of their own, or none.
const CODES: &str = "Exit code: ";
const EXAMPLE: &str = "Example: ";
const DOCUMENTS: &str = "Documents: ";

fn command_page(command: &Command) -> anyhow::Result<String> {
    let name = format!("regall-{}", command.get_name());
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut letters = about.chars();
    let what: String = letters
        .next()
        .into_iter()
        .flat_map(char::to_lowercase)
        .chain(letters)
        .collect();
    let mut page = Page::new(&name, 1, &what);
    page.section("SYNOPSIS");
    synopsis(&mut page, command);
    if let Some(text) = description(command.get_name()) {
        page.section("DESCRIPTION");
        for (n, paragraph) in text.iter().enumerate() {
            match (n, paragraph.strip_prefix("$ ")) {
                (0, _) => page.text(paragraph),
                (_, Some(code)) => page.code(code),
                _ => page.paragraph(paragraph),
            };
        }
    }
    page.section("OPTIONS");
    page.raw(&rendered(command, Man::render_options_section)?);
    let help = command.get_after_help();
    let help = help.map(ToString::to_string).unwrap_or_default();
    let paragraphs = || help.split("\n\n");
    let begins = |begin: &'static str| paragraphs().filter_map(move |p| p.strip_prefix(begin));
    for codes in begins(CODES) {
        page.section("EXIT STATUS").text(&lines(codes));
    }
    let named = [CODES, EXAMPLE, DOCUMENTS];
    let notes = begins("").filter(|p| !named.iter().any(|begin| p.starts_with(begin)));
    for (n, paragraph) in notes.enumerate() {
        match n {
            0 => page.section("NOTES").text(&lines(paragraph)),
            _ => page.paragraph(&lines(paragraph)),
        };
    }
    if command.get_name() == "stats" {
        page.section("NOTES")
            .text("The names below `settings` are those of the variables, see `regall`(7), and say what is in force: `intercept` is `symbols` where code can't be patched, `share` is `off` where it can do nothing, `huge` is `off` where the kernel does not leave it to programs. `forked`: a child of fork that leaves what it inherited alone; `gave_up`: the shim no longer tracks.")
            .paragraph("What the names below `counters` mean; those that are 0 are left out of the text:");
        for (name, text) in counters::all() {
            page.item(&format!("`{name}`"), &format!("{text}."));
        }
    }
    for example in begins(EXAMPLE) {
        page.section("EXAMPLES").code(&lines(example));
    }
    page.section("SEE ALSO").text("`regall`(1), `regall`(7)");
    Ok(page.finish())
}

/// How it is called, as its help says it.
fn synopsis(page: &mut Page, command: &Command) {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.replace(['<', '>'], "");
    let usage = usage.strip_prefix("Usage:").unwrap_or(&usage);
    for (n, line) in usage.lines().map(str::trim).enumerate() {
        if n > 0 {
            page.raw(".br\n");
        }
        page.text(line);
    }
}

/// One line.
fn lines(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Renders what clap knows as roff; without the heading, which is the page's. A group's is a smaller one.
fn rendered(
    command: &Command,
    section: impl Fn(&Man, &mut dyn Write) -> std::io::Result<()>,
) -> anyhow::Result<String> {
    let mut text = Vec::new();
    section(&Man::new(command.clone()), &mut text)?;
    let text = String::from_utf8(text)?;
    let heading =
        |l: &&str| *l != ".SH OPTIONS" && !l.starts_with(".ie ") && !l.starts_with(".el ");
    let line = |l: &str| match l.strip_prefix(".SH ") {
        Some(group) => format!(".SS {}\n", group.to_lowercase()),
        None => format!("{l}\n"),
    };
    // Its own string for an apostrophe is defined in what is not taken.
    let text = text.replace("\\*(Aq", "\\(aq");
    Ok(text.lines().filter(heading).map(line).collect())
}

fn variables_page() -> String {
    let mut page = Page::new("regall", 7, "the variables that libregall.so reads");
    page.section("DESCRIPTION").text(
        "The environment is read once, before main. With `REGALL=1` a bad value is one line on stderr and the shim \
         stays off; an unknown name that begins with `REGALL_` is one warning. Without `REGALL=1` the shim prints \
         nothing and does nothing.",
    );
    page.paragraph(
        "Each variable has a flag of `regall-run`(1): `REGALL_ON_LIMIT=fail` is `--on-limit fail`.",
    );
    page.section("ENVIRONMENT");
    for v in variables::all() {
        let mut text = variables::without_links(v.meaning);
        if !v.default.is_empty() {
            text += &format!(". Default: `{}`", v.default);
        }
        text += ".";
        page.item(&format!("`{}`", v.name), &text);
    }
    page.subsection("How the budget is calculated");
    for line in variables::budget() {
        match line.strip_prefix("- ") {
            Some(point) => page.item("-", point),
            None => page.paragraph(line),
        };
    }
    page.subsection("Executables that are left out by default")
        .text(
            "Launchers, shells and wrappers are left out, by the executable's file name, with links resolved. Setting \
             `REGALL_ONLY` replaces the list:",
        )
        .paragraph(&format!("{}.", variables::left_out()));
    page.section("NOTES").text(
        "Under Slurm the variables reach a job by `sbatch --export=ALL,REGALL=1`. Where slurm.conf names \
         share/regall/slurm/task-prolog of the installation as its TaskProlog, or srun's `--task-prolog` does, \
         that is all: it preloads the library where `REGALL=1` is set.",
    );
    page.section("SEE ALSO")
        .text("`regall`(1), `regall-run`(1), `regall`(3)");
    page.finish()
}

/// What a person should know of a command beyond its options.
fn description(command: &str) -> Option<&'static [&'static str]> {
    Some(match command {
        "run" => &[
            "Sets `REGALL=1` and `LD_PRELOAD` and becomes the command. In launchers and shells, which it knows by \
             their names, the library does nothing; it registers the memory of the ranks. Open MPI's mpirun also gets `-x` for each \
             variable, so that ranks on other nodes have them, and srun gets the variables that `sbatch --export` would leave out.",
            "With `--report` it waits for the command instead, and gathers what the ranks wrote when they ended. The \
             file's folder must be one that all nodes see; sbatch needs `--wait`.",
            "With `--stage` a copy of the library in each node's own memory is preloaded; see `regall-stage`(1).",
        ],
        "stage" => &[
            "On a thousand nodes a library on a shared file system is opened by every program of every rank at once. This \
             copies it into a folder in /dev/shm that nobody else can enter, under a name that is made from its \
             content, and prints the path. If it is there already, nothing is copied.",
            "`regall run --stage` does this by itself, on each node of a launcher that it starts.",
        ],
        "env" => &[
            "For job scripts that start the launcher themselves:",
            "$ mpirun $(regall env --for openmpi --pin onfault) -np 2 ./app",
        ],
        "config" => &[
            "A line for each variable that the library reads: its value, as `regall run` with the same flags hands it \
             on, whether that is from a flag, the environment or the default, and what it is. In the place of that \
             stands what is wrong with a value that is not valid. `regall`(7) explains each variable.",
        ],
        "maps" => &[
            "A line says the range, its size and protection, `registered` or `excluded` and why, the keys of its \
             memory region, and what is mapped there. `--svg` draws the same as a picture.",
        ],
        "dump" => &[
            "The format is an interface: a line that begins with `# regall 1`, then lines of START-END PROT STATE \
             REASON LKEY RKEY PIN HCA, sorted and without overlap. Keys of other protection domains are in lines \
             that begin with `# key`.",
        ],
        "peek" => &[
            "Reads what another process has registered, through the bridge, as a peer would: at an \
             address, or by the cookie of a region. Memory that is not registered is refused, and not \
             accessed. On a terminal the bytes are shown in hexadecimal; elsewhere they come as they \
             are.",
        ],
        "verify" => &[
            "Compares what is published with /proc/PID/maps. A mapped byte that is not in the directory is a \
             gap, which is a bug. A gap counts only if it is seen twice with nothing changed in between.",
        ],
        "stats" => &["Prints one counter on each line, of one process or, with `--all`, of each that you may look at, or a JSON object with the same names. `REGALL_STATS_FILE` has that of one process written at exit. Its JSON Schema is share/regall/schema/process.json of the installation."],
        "top" => &[
            "All processes with the shim on that you may look at. `s` chooses the column to sort by, `r` reverses the \
             order, `/` filters, Enter shows all that is known of one process, `?` explains, `q` quits.",
        ],
        "doctor" => &[
            "Tries what registration and single copy need, as the user and in the place where it is run: locking \
             memory, changing code, calls that a seccomp filter may forbid, copies between two processes, a program \
             with the shim on. It leaves nothing behind. For each obstacle it prints the effect, who \
             can mend it, and the line that does. The findings are in the order in which they matter.",
        ],
        "check" => &[
            "Runs the command with `REGALL_CHECK=registrations` and waits for it. Its processes leave what they notice \
             of their own registrations with adapters in a folder in the working directory, which all nodes must share. \
             Then it makes the report from these: errors, which are wrong data or worse, and notes.",
            "A line of a file of suppressions is `[KIND ]function:GLOB` or `[KIND ]module:GLOB`; it suppresses the \
             findings with such a frame in any stack. KIND is a word that the report has in brackets.",
            "$ regall check --exit 9 --suppressions known.txt -- mpirun -np 2 ./app\nregall check --read regall-check.*",
        ],
        "report" => &[
            "Reads what processes wrote to `REGALL_STATS_FILE` when they ended, and makes one table of it: least, \
             median and most of each figure, and which rank is furthest from the median; what was refused or \
             limited, and how to mend it; ranks that wrote nothing. Processes that are alike share one line, and each other one \
             is named.",
            "With `--merge` it makes one file of many instead, from which the same report can be made. Without \
             DIR_OR_FILE it merges what the processes of this batch job have left on this node with \
             `REGALL_STATS_FILE=node`.",
            "$ srun --ntasks-per-node=1 regall report --merge /shared/job.d/%h.json\nregall report /shared/job.d",
            "$ mkdir /shared/job\nsrun $(regall env --for srun --stats-file /shared/job/%h.%p.json) ./app\nregall report \
             /shared/job",
        ],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_has_a_page_and_a_word_from_a_person() {
        let command = crate::Cli::command();
        let names: Vec<_> = all(command.clone())
            .unwrap()
            .into_iter()
            .map(|(path, _)| path)
            .collect();
        for sub in shown(&command) {
            let name = sub.get_name();
            assert!(description(name).is_some(), "{name}");
            let path = format!("share/man/man1/regall-{name}.1");
            assert!(names.contains(&PathBuf::from(&path)), "{path}");
        }
    }

    /// In the sections where people look for them.
    #[test]
    fn every_page_has_exit_codes_and_an_example() {
        let mut command = crate::Cli::command();
        command.build();
        for sub in shown(&command) {
            let page = command_page(sub).unwrap();
            let sections: Vec<_> = page.split("\n.SH ").skip(1).collect();
            let of = |title: &str| {
                let begin = format!("{title}\n");
                let mut all = sections
                    .iter()
                    .filter_map(|s| s.strip_prefix(begin.as_str()));
                let first = all.next().unwrap_or_default();
                assert!(first.len() > 10 && all.next().is_none(), "{title}: {page}");
                first
            };
            of("EXIT STATUS");
            assert!(
                of("EXAMPLES").contains(&format!("regall {}", sub.get_name())),
                "{page}"
            );
            for begin in [CODES, EXAMPLE, DOCUMENTS] {
                assert!(!page.contains(begin), "{begin}: {page}");
            }
        }
    }

    /// Nobody can follow a link of Markdown in a terminal.
    #[test]
    fn no_page_has_a_link() {
        for (path, text) in all(crate::Cli::command()).unwrap() {
            let Content::Text(text) = text else { continue };
            let text = String::from_utf8(text).unwrap();
            let page = path.starts_with("share/man");
            assert!(!page || !text.contains("]("), "{}", path.display());
        }
        let plain = variables::without_links;
        assert_eq!(
            plain("`[heap]`, [a.md](a.md#b) and [c](d.md)"),
            "`[heap]`, docs/a.md and c"
        );
        assert_eq!(
            plain("`m_[0-3]`; [not (a link)"),
            "`m_[0-3]`; [not (a link)"
        );
    }

    #[test]
    fn what_is_hidden_is_nowhere() {
        for (path, text) in all(crate::Cli::command()).unwrap() {
            let Content::Text(text) = text else { continue };
            let text = String::from_utf8(text).unwrap();
            assert!(!text.contains("prefix below which"), "{}", path.display());
        }
    }
}
