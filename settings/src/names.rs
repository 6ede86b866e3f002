//! Names of files in which a `%` and a letter stand for what tells processes apart.

use core::fmt::{self, Write};
use regall_sys::text::Text;

/// What REGALL_STATS_FILE is where the statistics stay on the node until they are merged.
const NODE: &[u8] = b"node";

/// The folder of such statistics, in the user's folder below /dev/shm.
pub const STATISTICS: &[u8] = b"statistics";

/// What stands for a job or a rank where nobody says which it is.
pub const UNKNOWN: &[u8] = b"none";

/// A batch job's number, as part of a file's name.
pub type Job = Text<64>;

/// The name under which the statistics stay on the node, by REGALL_STATS_FILE: that of
/// `node:NAME`; of `node` it is empty, which stands for the job. None: they go to a path.
pub fn on_node(stats_file: &[u8]) -> Option<Job> {
    match stats_file.strip_prefix(NODE)? {
        [] => Some(Job::new()),
        [b':', name @ ..] => Some(job(name)),
        _ => None,
    }
}

/// What the letters stand for.
pub struct Names<'a> {
    /// `%p`.
    pub pid: u32,
    /// `%u`: the number of the effective user.
    pub uid: u32,
    /// `%h`.
    pub host: &'a [u8],
    /// `%j`; empty: no batch system says.
    pub job: &'a [u8],
    /// `%r`; none: no launcher says.
    pub rank: Option<u64>,
    /// `%d`: days since 1970-01-01.
    pub day: u64,
}

impl Names<'_> {
    /// `pattern` with each known letter behind a `%` replaced, and `%%` by a percent sign.
    pub fn expand<const N: usize>(&self, pattern: &[u8]) -> Text<N> {
        let mut out = Text::new();
        let mut rest = pattern;
        while let Some((&c, tail)) = rest.split_first() {
            rest = tail;
            let letter = tail.first().filter(|_| c == b'%');
            match letter.is_some_and(|l| self.put(*l, &mut out).is_some()) {
                true => rest = tail.get(1..).unwrap_or(&[]),
                false => out.push(&[c]),
            }
        }
        out
    }

    fn put<const N: usize>(&self, letter: u8, out: &mut Text<N>) -> Option<()> {
        let _ = match letter {
            b'%' => out.write_str("%"),
            b'p' => write!(out, "{}", self.pid),
            b'u' => write!(out, "{}", self.uid),
            b'd' => write!(out, "{}", Day(self.day)),
            b'h' => {
                out.push(self.host);
                Ok(())
            }
            b'j' => {
                out.push(if self.job.is_empty() {
                    UNKNOWN
                } else {
                    self.job
                });
                Ok(())
            }
            b'r' => match self.rank {
                Some(rank) => write!(out, "{rank}"),
                None => {
                    out.push(UNKNOWN);
                    Ok(())
                }
            },
            _ => return None,
        };
        Some(())
    }
}

/// A batch job's number as part of a file's name: what could lead to another folder, or be taken
/// for a separator, becomes `_`.
pub fn job(value: &[u8]) -> Job {
    let mut name = Job::new();
    for (n, &b) in value.iter().enumerate() {
        let plain = b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'[' | b']');
        name.push(&[if plain || (b == b'.' && n > 0) {
            b
        } else {
            b'_'
        }]);
    }
    name
}

/// A day of the Gregorian calendar, as `20261124`.
struct Day(u64);

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Years begin in March here, so that the day that not all have is the last one.
        const BEFORE_1970: u64 = 719_468;
        let days = self.0.saturating_add(BEFORE_1970);
        let (cycle, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = year + cycle * 400 + u64::from(month < 3);
        write!(f, "{year:04}{month:02}{day:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(pattern: &str) -> String {
        let names = Names {
            pid: 77,
            uid: 1000,
            host: b"n1",
            job: b"4711",
            rank: Some(3),
            day: 20_781,
        };
        let text: Text<128> = names.expand(pattern.as_bytes());
        String::from_utf8(text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn letters_stand_for_what_tells_processes_apart() {
        assert_eq!(expanded("/tmp/%p.%%.%x.%"), "/tmp/77.%.%x.%");
        assert_eq!(expanded("%h.%%h"), "n1.%h");
        assert_eq!(expanded("%u/%j/%r-%d"), "1000/4711/3-20261124");
        assert_eq!(expanded("%%%j%%"), "%4711%");
    }

    #[test]
    fn what_nobody_says_has_a_name() {
        let names = Names {
            pid: 1,
            uid: 0,
            host: b"",
            job: b"",
            rank: None,
            day: 0,
        };
        let text: Text<64> = names.expand(b"%j.%r.%d");
        assert_eq!(text.as_bytes(), b"none.none.19700101");
    }

    #[test]
    fn days_have_dates() {
        for (day, date) in [
            (0, "19700101"),
            (58, "19700228"),
            (59, "19700301"),
            (11_016, "20000229"),
            (11_017, "20000301"),
            (11_322, "20001231"),
            (19_782, "20240229"),
            (47_540, "21000228"),
            (47_541, "21000301"),
        ] {
            assert_eq!(Day(day).to_string(), date);
        }
        let _ = Day(u64::MAX).to_string();
    }

    #[test]
    fn a_job_leads_nowhere_else() {
        for (value, name) in [
            ("4711", "4711"),
            ("123[4].server", "123[4].server"),
            ("../../etc", "_._.._etc"),
            (".", "_"),
            ("a,b c\u{e4}", "a_b_c__"),
        ] {
            assert_eq!(job(value.as_bytes()).as_bytes(), name.as_bytes(), "{value}");
        }
        assert_eq!(job(&[b'x'; 200]).as_bytes().len(), 63);
    }

    #[test]
    fn statistics_stay_on_the_node_under_a_name() {
        let name = |value: &str| {
            let name = on_node(value.as_bytes())?;
            Some(String::from_utf8(name.as_bytes().to_vec()).unwrap())
        };
        assert_eq!(name("node").as_deref(), Some(""));
        assert_eq!(name("node:7.n1").as_deref(), Some("7.n1"));
        assert_eq!(name("node:../%j").as_deref(), Some("_.__j"));
        for path in ["", "nod", "nodes", "node.json", "node/x", "./node"] {
            assert_eq!(name(path), None, "{path}");
        }
    }
}
