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

proptest! {
    #[test]
    fn no_environment_panics(name in "REGALL_[A-Z_]{0,12}", value in ".*") {
        let _ = Config::new().set(name.as_bytes(), value.as_bytes());
    }
}
