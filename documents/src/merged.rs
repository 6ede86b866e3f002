//! What many processes of a job counted, in one document.

use std::borrow::Cow;
use std::fmt;

use indexmap::IndexMap;
use schemars::{json_schema, JsonSchema, Schema, SchemaGenerator};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::words::Words;

/// `regall report --merge FILE`: what many processes wrote at exit, a column a figure. It loses
/// nothing that a report needs, so files of nodes can be merged again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Merged {
    /// The version of this format.
    #[schemars(extend("const" = crate::version()))]
    pub version: u32,
    /// How many processes are in it.
    pub merged: u64,
    /// The number of ranks of the job; null: no launcher says.
    pub ranks: Option<u64>,
    /// Processes that ranks have started, which are not in it.
    pub children: u64,
    /// The nodes' names.
    pub hosts: Vec<String>,
    /// The programs, each with what is the same in all of its processes.
    pub kinds: Vec<Kind>,
    /// Of each process: the place of its node in `hosts`.
    pub host: Vec<u32>,
    /// Of each process: the place of its program in `kinds`.
    pub kind: Vec<u32>,
    /// Of each process: its pid.
    pub pid: Vec<u32>,
    /// Of each process: when it started, in clock ticks since boot.
    pub start_time: Vec<u64>,
    /// Of each process: its MPI rank; null: no launcher says.
    pub rank: Vec<Known>,
    /// The figures, by their place in a process's document (`counters.served`).
    pub figures: IndexMap<String, Column>,
}

/// What is the same in all processes of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    /// The library's name and version.
    pub library: Option<String>,
    /// The file that they execute.
    pub exe: String,
    /// Whether they are children of fork that leave what they inherited alone.
    pub forked: bool,
    /// Whether the shim no longer tracks.
    pub gave_up: bool,
    /// The variables as they are in force.
    #[serde(with = "pairs")]
    #[schemars(with = "Words")]
    pub settings: Vec<(String, String)>,
    /// The calls that did not arrive in the self-test.
    pub selftest_missed: Vec<String>,
}

/// Words by name, as a list that can be compared.
mod pairs {
    use super::{Deserialize, Deserializer, Serializer, Words};

    pub fn serialize<S: Serializer>(all: &[(String, String)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(all.iter().map(|(name, word)| (name, word)))
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(
        from: D,
    ) -> Result<Vec<(String, String)>, D::Error> {
        Ok(Words::deserialize(from)?.into_iter().collect())
    }
}

/// A number, or nothing, in eight bytes: there are millions of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Known(u64);

impl Known {
    /// Nothing.
    pub const NOT: Self = Self(u64::MAX);

    /// None at all, which is a number.
    pub const ZERO: Self = Self(0);

    /// The number; the largest one there is can't be told from nothing.
    pub fn get(self) -> Option<u64> {
        (self != Self::NOT).then_some(self.0)
    }
}

impl From<u64> for Known {
    fn from(n: u64) -> Self {
        Self(n.min(u64::MAX - 1))
    }
}

impl From<Option<u64>> for Known {
    fn from(n: Option<u64>) -> Self {
        n.map_or(Self::NOT, Self::from)
    }
}

impl Serialize for Known {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.get().serialize(to)
    }
}

impl<'d> Deserialize<'d> for Known {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.into())
    }
}

impl JsonSchema for Known {
    fn schema_name() -> Cow<'static, str> {
        "Known".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["integer", "null"], "minimum": 0 })
    }
}

/// One figure of all processes.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// All have the same.
    Same(Known),
    /// What each has.
    Each(Vec<Known>),
}

impl Serialize for Column {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Same(n) => n.serialize(to),
            Self::Each(all) => all.serialize(to),
        }
    }
}

impl<'d> Deserialize<'d> for Column {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        // As `untagged` would, but without a copy of everything in between.
        struct Either;
        impl<'d> Visitor<'d> for Either {
            type Value = Column;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a number, null, or a list of them")
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Column, E> {
                Ok(Column::Same(n.into()))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Column, E> {
                Ok(Column::Same(Known::NOT))
            }

            fn visit_seq<A: SeqAccess<'d>>(self, mut list: A) -> Result<Column, A::Error> {
                let mut all = Vec::new();
                while let Some(n) = list.next_element()? {
                    all.push(n);
                }
                Ok(Column::Each(all))
            }
        }
        from.deserialize_any(Either)
    }
}

impl JsonSchema for Column {
    fn schema_name() -> Cow<'static, str> {
        "Column".into()
    }

    fn json_schema(of: &mut SchemaGenerator) -> Schema {
        let one = of.subschema_for::<Known>();
        json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_a_number_or_a_list() {
        for (text, column) in [
            ("7", Column::Same(7.into())),
            ("null", Column::Same(Known::NOT)),
            ("[1,null]", Column::Each(vec![1.into(), Known::NOT])),
        ] {
            assert_eq!(serde_json::from_str::<Column>(text).unwrap(), column);
            assert_eq!(serde_json::to_string(&column).unwrap(), text);
        }
        for bad in ["\"7\"", "-1", "{}", "[[1]]", "true"] {
            assert!(serde_json::from_str::<Column>(bad).is_err(), "{bad}");
        }
    }
}
