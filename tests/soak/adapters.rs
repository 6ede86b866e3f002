//! Adapters that nobody here has: what rdma-core's library of each sends the kernel for a
//! registration, and that the shim's own commands are of the same form. The device is a stand-in
//! that answers as the kernel's driver does (c-tests/uverbs).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use regall_tests::child::{run, Outcome};
use regall_tests::mode::Mode;
use regall_tests::soak::{rounds, Row};
use regall_tests::{build, skip};

/// A library of rdma-core's, and what it adds to REG_MR.
struct Adapter {
    provider: &'static str,
    device: &'static str,
    /// Bytes that it sends beyond the common part, and for how many of an answer it has room.
    sent: usize,
    room: usize,
}

const fn of(provider: &'static str, device: &'static str, sent: usize, room: usize) -> Adapter {
    Adapter {
        provider,
        device,
        sent,
        room,
    }
}

const ADAPTERS: [Adapter; 7] = [
    of("mlx5", "mlx5_0", 0, 0),
    of("efa", "rdmap0s6", 0, 0),
    of("irdma", "irdma0", 8, 0),
    of("hns", "hns_0", 0, 0),
    of("bnxt_re", "bnxt_re0", 0, 0),
    of("mana", "mana_0", 0, 0),
    of("siw", "siw0", 8, 8),
];

/// Registrations that the program makes.
const MADE: usize = 22;

/// Arguments of the program: by functions that the shim sees called, and by others.
const WAYS: [&[&str]; 2] = [&[], &["loaded"]];

/// A command as the stand-in wrote it down: a name, and fields.
struct Sent {
    line: String,
}

impl Sent {
    fn is(&self, name: &str) -> bool {
        self.line.split(' ').next() == Some(name)
    }

    fn text(&self, field: &str) -> &str {
        let mut words = self.line.split(' ');
        words
            .find_map(|word| word.strip_prefix(field)?.strip_prefix('='))
            .unwrap_or_else(|| panic!("no {field} in {}", self.line))
    }

    fn number(&self, field: &str) -> usize {
        self.text(field)
            .parse()
            .unwrap_or_else(|_| panic!("{field} in {}", self.line))
    }

    /// Bytes of the driver's own.
    fn sent(&self) -> usize {
        self.text("sent").len() / 2
    }

    /// By a method, as libibverbs does; the shim's own are write commands.
    fn by_method(&self) -> bool {
        self.number("core-in") == 0
    }
}

/// The program over an adapter, and what the kernel was sent.
fn over(adapter: &Adapter, mode: Mode, hca: &str, way: &[&str]) -> (Outcome, Vec<Sent>) {
    let record = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut command = Command::new(build::program("uverbs/uverbs_device"));
    command.arg(format!("--adapter={}", adapter.provider));
    command.arg(format!("--record={}", record.path().display()));
    command.arg("env");
    // For the program alone: the stand-in is not under the shim.
    for (name, value) in mode.settings() {
        command.arg(format!("{name}={value}"));
    }
    command.arg(format!("REGALL_HCA={hca}"));
    command.arg(build::program("uverbs/register")).args(way);
    let outcome = run(&mut command, Duration::from_secs(100));
    outcome.must_succeed_at(format_args!("{} {mode:?} {hca} {way:?}", adapter.provider));
    let text = std::fs::read_to_string(record.path()).expect("the record");
    let lines = text.lines().map(|line| Sent { line: line.into() });
    (outcome, lines.collect())
}

/// What rdma-core's library sends is what the table says.
fn sends(adapter: &Adapter, commands: &[Sent]) {
    let made: Vec<_> = commands.iter().filter(|c| c.is("REG_MR")).collect();
    assert_eq!(made.len(), MADE, "{}", adapter.provider);
    for c in made {
        let seen = (c.sent(), c.number("room"), c.number("errno"));
        assert_eq!(seen, (adapter.sent, adapter.room, 0), "{}", c.line);
        let core = (c.number("core-in"), c.number("core-out"));
        assert_eq!((core, c.text("address")), ((40, 12), "own"), "{}", c.line);
        // struct irdma_mem_reg_req: IRDMA_MEMREG_TYPE_MEM; its other fields are not filled.
        // struct siw_ureq_reg_mr: no part of the key is asked for.
        let (begin, all) = (&c.text("sent")[..adapter.sent.min(2) * 2], c.text("sent"));
        assert!(begin.bytes().all(|b| b == b'0'), "{}", c.line);
        assert!(
            adapter.provider == "irdma" || all.bytes().all(|b| b == b'0'),
            "{}",
            c.line
        );
    }
}

/// The shim's commands have what the driver wants, and nothing else fails but memory that no
/// adapter takes (EFAULT: pages of the device itself, which can't be read).
fn takes(adapter: &Adapter, commands: &[Sent]) {
    for c in commands.iter().filter(|c| c.is("REG_MR")) {
        assert_eq!(c.sent(), adapter.sent, "{}: {}", adapter.provider, c.line);
        assert!(c.number("room") >= adapter.room, "{}", c.line);
        assert!([0, 14].contains(&c.number("errno")), "{}", c.line);
    }
    for c in commands {
        let plain = [
            "GET_CONTEXT",
            "ALLOC_PD",
            "DEALLOC_PD",
            "DEREG_MR",
            "QUERY_DEVICE",
        ];
        let known = plain.iter().any(|name| c.is(name));
        assert!(
            !known || c.number("errno") == 0,
            "{}: {}",
            adapter.provider,
            c.line
        );
    }
}

/// How many registrations the library made itself: it alone deregisters by method.
fn passed(commands: &[Sent]) -> usize {
    let by_method = |c: &&Sent| c.is("DEREG_MR") && c.by_method();
    commands.iter().filter(by_method).count()
}

fn tried(adapter: &Adapter, modes: &[Mode]) {
    let library = format!("lib{}-rdmav34.so", adapter.provider);
    let folder = "/usr/lib/x86_64-linux-gnu/libibverbs";
    let row = Row::begin("adapters", adapter.provider);
    if !Path::new(folder).join(&library).exists() {
        row.skipped(format!("no {library}"));
        return skip(&format!("no {library}"));
    }
    let mut made = [0; WAYS.len()];
    for _ in 0..rounds(1, 4) {
        for (way, made) in WAYS.iter().zip(&mut made) {
            let (plain, commands) = over(adapter, Mode::Plain, "off", way);
            sends(adapter, &commands);
            for &mode in modes {
                for hca in ["adopt", adapter.device] {
                    *made += served(adapter, mode, hca, way, &plain);
                }
            }
        }
    }
    let [seen, unseen] = made;
    row.passed(format!(
        "{seen} registrations served, of those that no export sees {unseen}"
    ));
}

/// With the shim the program says what it says without, and the driver takes what is sent. How many
/// registrations were served.
fn served(adapter: &Adapter, mode: Mode, hca: &str, way: &[&str], plain: &Outcome) -> usize {
    let (done, commands) = over(adapter, mode, hca, way);
    assert_eq!(done.stdout, plain.stdout, "{mode:?} {hca} {way:?}");
    assert_eq!(done.stderr, "", "{mode:?} {hca} {way:?}");
    takes(adapter, &commands);
    let contexts = commands.iter().filter(|c| c.is("GET_CONTEXT")).count();
    assert_eq!(contexts, if hca == "adopt" { 1 } else { 2 }, "{hca}");
    let left = passed(&commands);
    // What an application reads by is a domain of its own: its first registration.
    let most = if way.is_empty() { 3 } else { MADE };
    assert!(
        left <= most,
        "{left} of {MADE} made by the library, {mode:?} {hca} {way:?}"
    );
    MADE - left
}

#[test]
fn their_libraries_and_the_shim_send_the_same() {
    let short = [Mode::Populate];
    let long = [Mode::Populate, Mode::Auto, Mode::OnFault, Mode::Strict];
    let soak = std::env::var_os("SOAK_SECONDS").is_some();
    for adapter in &ADAPTERS {
        tried(adapter, if soak { &long } else { &short });
    }
}
