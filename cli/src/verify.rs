//! `regall verify`: an answer for each process, and one for all as exit code.

use std::io::Write;
use std::time::Duration;

use crate::answer::{Answers, Question, Users, GOOD};
use crate::examine::examine;
use crate::output::print_json;
use crate::round::{Round, Time};
use crate::{units, watch};

pub const EXIT_CODES: &str = after_help!(
    "Exit code: 0 no gap (memory over the limit is a gap only with --strict); 1 a gap, which is \
    printed; 2 a process could not be checked: it has ended, belongs to another user, has the shim \
    off, has a corrupt directory, was busy for 5 s, or /proc does not tell what is locked \
    or whether there is swap. The highest code of all processes counts. With --all there are 5 s in all, in which \
    users take turns; processes that had none, or are in pid namespaces that can't be seen from here, count \
    as not checked, also with --job and --filter; --user leaves all but one user's out. With --all, 2 also if no process is found (unless \
    --allow-none is given) or fewer than --expect N: --all does not see a process in which the \
    shim is off.",
    "regall verify --all --expect 2",
    "regall-verify"
);

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    question: Question,
    /// Look every so many seconds until they have ended, and keep the worst code
    #[arg(long, value_name = "SECONDS", value_parser = units::seconds)]
    watch: Option<Duration>,
    /// As JSON; with --watch a line for each round, and a last one without processes
    #[arg(long)]
    json: bool,
}

pub fn verify(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    if let Some(pause) = args.watch {
        return watch::watch(&args.question, pause, args.json, out);
    }
    let mut answers = Answers::new(args.json);
    let asked = &args.question;
    let mut worst = GOOD;
    for pid in asked.pids() {
        let verdict = examine(*pid, asked.strict);
        worst = worst.max(answers.report(*pid, None, &verdict, out)?);
    }
    let mut users = Users::default();
    if asked.all {
        let time = Time::of(asked)?;
        let round = Round::of(asked, &time, time.search()?, &mut answers, out)?;
        round.complain_of_blind();
        users = round.users;
    }
    let (of_all, found) = users.sums();
    let code = worst.max(of_all).max(asked.found(found));
    if let Some(document) = answers.document(code, users) {
        print_json(&document, out)?;
    }
    Ok(code)
}
