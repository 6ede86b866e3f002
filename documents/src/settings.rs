//! The settings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `regall config --json`: the settings as `regall run` with the same flags hands them on.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The version of this format.
    #[schemars(extend("const" = crate::version()))]
    pub version: u32,
    /// Each setting; the first one is REGALL, as it is in the environment.
    pub settings: Vec<Setting>,
    /// Variables in the environment that begin with `REGALL_` and are none of regall's.
    pub unknown: Vec<String>,
}

/// A setting.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Its variable.
    pub name: String,
    /// Its value; that of a default may be words for it (`none`).
    pub value: String,
    /// The source of the value.
    pub source: Source,
    /// The problem with the value, which keeps the shim off; null: there is none.
    pub wrong: Option<String>,
    /// The setting in a few words.
    pub meaning: String,
}

/// Names where a setting's value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A flag.
    Flag,
    /// The environment.
    Environment,
    /// It is off because of REGALL_CHECK.
    Check,
    /// Nobody says anything else.
    Default,
}

impl Source {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::Check => "check",
            Self::Default => "default",
        }
    }
}
