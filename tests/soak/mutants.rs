//! Operators, conditions and results of the pure crates, changed one at a time: their unit tests notice. In
//! `make mutants` and `make soak` alone: it takes hours, and goes on where it was stopped.

use std::process::Command;

use regall_tests::build;
use regall_tests::soak::{is_short, tried, Row};

/// How long a part is tried at the most. What is left is tried the next time.
const SECONDS: &str = "7200";

fn part(name: &str) {
    if is_short() {
        return;
    }
    let row = Row::begin("mutants", name);
    // Of the table the part's row, with the words above it.
    let script = r#"table=$(mktemp); trap 'rm -f "$table"' EXIT
        "$0" --seconds "$2" "$1" >"$table" || { status=$?; cat "$table"; exit $status; }
        awk 'NR == 1 { for (n = 2; n <= NF; n++) word[n] = $n; next }
            { for (n = 2; n < NF; n++) printf "%d %s, ", $n, word[n]; print $NF " %" }' "$table""#;
    let mut command = Command::new("bash");
    let script = command.arg("-c").arg(script);
    tried(
        row,
        script.arg(build::script("mutants")).args([name, SECONDS]),
    );
}

macro_rules! parts {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            part(stringify!($name));
        }
    )*};
}

parts!(ledger directory settings checking decoder patch reader bridge cli);
