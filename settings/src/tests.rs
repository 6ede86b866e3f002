//! Text as settings.

use super::*;
use proptest::prelude::*;

const DEFAULTS: &[(&str, &str)] = &[
    ("REGALL_PIN", "auto"),
    ("REGALL_HCA", "adopt"),
    ("REGALL_HCA_MODE", "pinned"),
    ("REGALL_HCA_FORK", "safe"),
    ("REGALL_HCA_FILL", "now"),
    ("REGALL_SCOPE", "all"),
    ("REGALL_KEYS", "mapping"),
    ("REGALL_VERBS", "ioctl"),
    ("REGALL_REVOKE_MS", "100"),
    ("REGALL_ACCESS", "local"),
    ("REGALL_LIMIT", "90%"),
    ("REGALL_ON_LIMIT", "skip"),
    ("REGALL_INTERCEPT", "patch"),
    ("REGALL_FORK", "inherit"),
    ("REGALL_COPY", "auto"),
    ("REGALL_PTRACER", "off"),
    ("REGALL_BOX_LIMIT", "4K"),
    ("REGALL_BOX_SIZE", "32K"),
    ("REGALL_BOX_MAX", "32"),
    ("REGALL_BOX_THRESHOLD", "16"),
    ("REGALL_SHARE", "off"),
    ("REGALL_HUGE", "off"),
    ("REGALL_CHECK", "off"),
    ("REGALL_LOG", "warn"),
];

#[test]
fn limits() {
    assert_eq!(limit(b"90%"), Some(Limit::Percent(90)));
    assert_eq!(limit(b"16M"), Some(Limit::Bytes(16 << 20)));
    assert_eq!(limit(b"0"), Some(Limit::Bytes(0)));
    for bad in [
        "",
        "%",
        "0%",
        "101%",
        "-1",
        "1.5G",
        "M",
        "99999999999T",
        "1 G",
        "1GB",
    ] {
        assert_eq!(limit(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn times() {
    assert_eq!(revoke(b"off"), Some(None));
    assert_eq!(revoke(b"0"), Some(Some(0)));
    assert_eq!(revoke(b"3600000"), Some(Some(3_600_000)));
    for bad in ["", "-1", "1.5", "3600001", "100ms", "never", "OFF"] {
        assert_eq!(revoke(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn every_variable_takes_its_default_and_refuses_nonsense() {
    for (name, value) in DEFAULTS {
        let mut c = Config::new();
        assert_eq!(c.set(name.as_bytes(), value.as_bytes()), Ok(()), "{name}");
        for bad in ["", "no such value!", "POPULATE "] {
            let got = c.set(name.as_bytes(), bad.as_bytes());
            assert!(matches!(got, Err(Problem::Value { .. })), "{name}={bad}");
        }
    }
    assert_eq!(
        Config::new().set(b"REGALL_PINN", b"off"),
        Err(Problem::Name)
    );
    assert_eq!(Config::new().set(b"REGALL_LIBRARY", b"/a"), Ok(()));
    assert_eq!(
        Config::new().set(b"REGALL_EXCLUDE", &[b'x'; 5000]),
        Err(Problem::Long)
    );
}

/// What completions offer is taken, and all of it is told where none of it was given.
#[test]
fn words_are_what_is_taken() {
    for (name, words) in DEFAULTS.iter().filter_map(|(n, _)| Some((n, words(n)?))) {
        for word in words {
            let taken = Config::new().set(name.as_bytes(), word.as_bytes());
            assert_eq!(taken, Ok(()), "{name}={word}");
        }
        let expected = Expected::Words(words);
        let refused = Config::new().set(name.as_bytes(), b"?");
        assert_eq!(refused, Err(Problem::Value { expected }));
    }
    let said = Expected::Words(Pin::WORDS).to_string();
    assert_eq!(said, "auto, onfault, populate or off");
    assert_eq!(words("REGALL_LIMIT"), None);
}

/// Whoever checks the program's registrations makes none beside them.
#[test]
fn a_checker_does_nothing_else() {
    let chosen = || {
        let mut c = Config::new();
        let set = "PIN=populate HCA=mlx5_0 SHARE=always COPY=helper HUGE=advise ON_LIMIT=fail \
                   PTRACER=any VERBS=ioctl";
        for (name, value) in set.split(' ').filter_map(|pair| pair.split_once('=')) {
            let name = format!("REGALL_{name}");
            assert_eq!(c.set(name.as_bytes(), value.as_bytes()), Ok(()), "{name}");
        }
        c
    };
    let mut c = chosen();
    c.complete();
    assert!(c.pin == Pin::Populate && c.hca == Hca::Device && c.fail_on_limit);
    assert!(c.answers_ioctl() && Config::new().answers_ioctl());
    assert_eq!(c.set(b"REGALL_CHECK", b"registrations"), Ok(()));
    c.complete();
    assert!(c.pin == Pin::Off && c.hca == Hca::Off && c.share == Share::Off);
    assert!(c.copy == Order::OFF && !c.huge);
    assert!(!c.fail_on_limit && !c.ptracer_any && !c.answers_ioctl());
    assert_eq!(c.check_file.as_bytes(), CHECK_FILE);
    // What is told of it is all of it.
    let mut told = chosen();
    for (name, value) in CHECKED {
        assert_eq!(
            told.set(name.as_bytes(), value.as_bytes()),
            Ok(()),
            "{name}"
        );
    }
    assert!(told.pin == c.pin && told.hca == c.hca && told.share == c.share);
    assert!(told.copy == c.copy && told.huge == c.huge);
    assert!(told.fail_on_limit == c.fail_on_limit && told.ptracer_any == c.ptracer_any);
}

#[test]
fn numbers_of_boxes_have_bounds() {
    for (name, value, good) in [
        ("LIMIT", "64K", true),
        ("LIMIT", "65537", false),
        ("LIMIT", "0", false),
        ("LIMIT", "50%", false),
        ("SIZE", "1M", true),
        ("SIZE", "2M", false),
        ("MAX", "0", true),
        ("MAX", "62", true),
        ("MAX", "63", false),
        ("THRESHOLD", "0", true),
        ("THRESHOLD", "1048577", false),
    ] {
        let set = Config::new().set(format!("REGALL_BOX_{name}").as_bytes(), value.as_bytes());
        assert_eq!(set.is_ok(), good, "{name}={value}");
    }
}

#[test]
fn exit_codes() {
    assert_eq!((exit_code(b"0"), exit_code(b"255")), (Some(0), Some(255)));
    for bad in ["", "256", "-1", "1x"] {
        assert_eq!(exit_code(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn only_one_word_switches_it_on() {
    assert_eq!(Switch::of(b"1"), Switch::On);
    for no in ["", "0", "off", "no", "false", "OFF", "No"] {
        assert_eq!(Switch::of(no.as_bytes()), Switch::Off, "{no}");
    }
    for word in ["2", "10", "yes", "on", "true", "o", "offf", " 1"] {
        assert_eq!(Switch::of(word.as_bytes()), Switch::Unclear, "{word}");
    }
}

type Says = fn(&Config) -> bool;

/// Each variable has its own setting, and no other variable has it.
#[test]
fn a_variable_sets_what_it_is_named_for() {
    let own: &[(&str, &str, Says)] = &[
        ("PIN", "onfault", |c| c.pin == Pin::OnFault),
        ("HCA", "off", |c| c.hca == Hca::Off),
        ("HCA_DEVICES", "mlx5_0,rxe0", |c| {
            c.hca_devices.as_bytes() == b"mlx5_0,rxe0"
        }),
        ("HCA_MODE", "odp", |c| c.hca_odp),
        ("HCA_FORK", "unsafe", |c| c.hca_fork_unsafe),
        ("HCA_FILL", "later", |c| c.hca_fill_later),
        ("SCOPE", "data", |c| c.scope_data),
        ("KEYS", "exact", |c| c.keys_exact),
        ("VERBS", "symbols", |c| !c.verbs_ioctl),
        ("REVOKE_MS", "off", |c| c.revoke_ms.is_none()),
        ("ACCESS", "remote-read", |c| c.access == Access::RemoteRead),
        ("LIMIT", "7", |c| c.limit == Limit::Bytes(7)),
        ("ON_LIMIT", "fail", |c| c.fail_on_limit),
        ("INTERCEPT", "strict", |c| c.intercept == Intercept::Strict),
        ("FORK", "all", |c| c.fork_all),
        ("COPY", "off", |c| c.copy == Order::OFF),
        ("PTRACER", "any", |c| c.ptracer_any),
        ("BOX_LIMIT", "5", |c| c.box_limit == 5),
        ("BOX_SIZE", "6", |c| c.box_size == 6),
        ("BOX_MAX", "7", |c| c.box_max == 7),
        ("BOX_THRESHOLD", "8", |c| c.box_threshold == 8),
        ("SHARE", "heap", |c| c.share == Share::Heap),
        ("HUGE", "advise", |c| c.huge),
        ("EXCLUDE", "a,b", |c| c.exclude.as_bytes() == b"a,b"),
        ("STATS_FILE", "/s", |c| c.stats_file.as_bytes() == b"/s"),
        ("CHECK", "registrations", |c| c.check),
        ("CHECK_FILE", "/c", |c| c.check_file.as_bytes() == b"/c"),
        ("LOG", "trace", |c| c.log_level == LevelFilter::Trace),
        ("LOG_FILE", "/l", |c| c.log_file.as_bytes() == b"/l"),
    ];
    for (name, value, says) in own {
        assert!(!says(&Config::default()), "{name}");
        let mut c = Config::new();
        let set = c.set(format!("REGALL_{name}").as_bytes(), value.as_bytes());
        assert_eq!(set, Ok(()), "{name}");
        for (other, _, says) in own {
            assert_eq!(says(&c), other == name, "{name}: {other}");
        }
    }
}

#[test]
fn what_the_command_reads_is_checked_here() {
    for (name, value) in [
        ("", "1"),
        ("_ONLY", "a.out"),
        ("_MERGE_FILE", "/m"),
        ("_CHECK_SUPPRESSIONS", "/s"),
        ("_CHECK_EXIT", "3"),
    ] {
        let set = Config::new().set(format!("REGALL{name}").as_bytes(), value.as_bytes());
        assert_eq!(set, Ok(()), "{name}");
    }
    let set = |name: &[u8], bytes| Config::new().set(name, &vec![b'x'; bytes]);
    assert_eq!(set(b"REGALL_MERGE_FILE", 1024), Err(Problem::Long));
    assert_eq!(set(b"REGALL_CHECK_SUPPRESSIONS", 4095), Ok(()));
    assert_eq!(set(b"REGALL_CHECK_SUPPRESSIONS", 4096), Err(Problem::Long));
    let exit = Config::new().set(b"REGALL_CHECK_EXIT", b"256");
    assert!(matches!(exit, Err(Problem::Value { .. })));
}

#[test]
fn a_device_has_a_name_of_an_adapter() {
    let device = |value: &[u8]| {
        let mut c = Config::new();
        c.set(b"REGALL_HCA", b"other0").unwrap();
        c.set(b"REGALL_HCA", value).ok()?;
        (c.hca == Hca::Device).then(|| c.hca_device.as_bytes().to_vec())
    };
    for name in [&b"mlx5_0"[..], b"a-b.c:d_9", &[b'x'; 63]] {
        assert_eq!(device(name).as_deref(), Some(name));
    }
    for name in [&b""[..], b"a b", b"a/b", b"off", b"adopt", &[b'x'; 64]] {
        assert_eq!(device(name), None);
    }
}

#[test]
fn bytes_have_their_letters() {
    for (letters, shift) in [("Kk", 10), ("Mm", 20), ("Gg", 30), ("Tt", 40)] {
        for letter in letters.chars() {
            let value = format!("3{letter}");
            assert_eq!(
                limit(value.as_bytes()),
                Some(Limit::Bytes(3 << shift)),
                "{value}"
            );
        }
    }
    assert_eq!(limit(b"1%"), Some(Limit::Percent(1)));
    assert_eq!(limit(b"100%"), Some(Limit::Percent(100)));
    assert_eq!(bytes(b"1", 5), Some(1));
    assert_eq!(bytes(b"5", 5), Some(5));
    assert_eq!(
        (bytes(b"6", 5), bytes(b"0", 5), bytes(b"5%", 5)),
        (None, None, None)
    );
    assert_eq!((up_to(b"5", 5), up_to(b"6", 5)), (Some(5), None));
}

/// The names that have words and nothing else, and what their words are.
#[test]
fn who_has_words() {
    let with: Vec<_> = DEFAULTS
        .iter()
        .filter(|(n, _)| words(n).is_some())
        .collect();
    let without = [
        "HCA",
        "REVOKE_MS",
        "LIMIT",
        "COPY",
        "BOX_LIMIT",
        "BOX_SIZE",
        "BOX_MAX",
        "BOX_THRESHOLD",
    ];
    assert_eq!(with.len() + without.len(), DEFAULTS.len());
    for name in without {
        assert_eq!(words(&format!("REGALL_{name}")), None, "{name}");
    }
    for (name, default) in with {
        assert!(words(name).unwrap().contains(default), "{name}");
    }
    for word in LEVELS {
        let mut c = Config::new();
        c.set(b"REGALL_LOG", word.as_bytes()).unwrap();
        assert_eq!(c.log_level.as_str().to_lowercase(), word);
    }
}

/// What a checker is told to write stays; and only a driver of an adapter's is answered by ioctl.
#[test]
fn a_checker_keeps_its_file() {
    let mut c = Config::new();
    c.set(b"REGALL_CHECK", b"registrations").unwrap();
    c.set(b"REGALL_CHECK_FILE", b"/c").unwrap();
    c.complete();
    assert_eq!(c.check_file.as_bytes(), b"/c");
    let mut c = Config::new();
    c.set(b"REGALL_VERBS", b"symbols").unwrap();
    assert!(!c.answers_ioctl());
    c.set(b"REGALL_VERBS", b"ioctl").unwrap();
    c.set(b"REGALL_HCA", b"off").unwrap();
    assert!(!c.answers_ioctl());
}

#[test]
fn complaints_are_lines() {
    let said = |name: &str, value: &str, problem| {
        let (name, value) = (name.as_bytes(), value.as_bytes());
        Complaint {
            name,
            value,
            problem,
        }
        .to_string()
    };
    assert_eq!(
        said("REGALL_PINN", "1", Problem::Name),
        "REGALL_PINN is not a variable of regall; ignored"
    );
    assert_eq!(
        said("A", "1", Problem::Long),
        "A is too long; regall stays off"
    );
    let expected = Expected::Text("a number");
    assert_eq!(
        said("A", &"x".repeat(99), Problem::Value { expected }),
        format!(
            "A={} is not valid (expected a number); regall stays off",
            "x".repeat(64)
        )
    );
    assert_eq!(Expected::Words(&["a", "b"]).to_string(), "a or b");
    assert_eq!(Expected::Words(&["a"]).to_string(), "a");
}

proptest! {
    #[test]
    fn no_environment_panics(name in "REGALL_[A-Z_]{0,12}", value in ".*") {
        let _ = Config::new().set(name.as_bytes(), value.as_bytes());
    }
}
