//! What regall tells programs: the JSON documents, as types.
//!
//! One thing has one name in all of them. The JSON Schemas that are installed are made of
//! these types. Whoever changes the meaning of a name, or takes one away, counts
//! [`VERSION`] up.

mod checked;
mod merged;
mod process;
mod rows;
mod settings;
mod verdict;
mod words;

pub use checked::{Check, Checked, Checks, Fault, Registration, Severity, Stack, StackFrame};
pub use merged::{Column, Kind, Known, Merged};
pub use process::{Bytes, Live, Process, Rates, Sites, Top};
pub use rows::{
    Alike, Cure, Different, Doctor, Figure, Finding, Maps, Measure, Region, Report, Row, Unlike,
};
pub use settings::{Config, Setting, Source};
pub use verdict::{Gap, Outcome, User, Verified, Verify, Wrong};
pub use words::{Counts, Words};

use schemars::{JsonSchema, Schema};

/// What `version` says in every document.
pub const VERSION: u32 = 1;

/// The version of a document, which can't be another one.
pub(crate) fn version() -> u32 {
    VERSION
}

/// The schema of a document.
fn schema<T: JsonSchema>() -> Schema {
    schemars::schema_for!(T)
}

/// Each kind of document: its name, and its schema.
pub fn schemas() -> [(&'static str, Schema); 9] {
    [
        ("process", schema::<Process>()),
        ("top", schema::<Top>()),
        ("verify", schema::<Verify>()),
        ("report", schema::<Report>()),
        ("merged", schema::<Merged>()),
        ("doctor", schema::<Doctor>()),
        ("config", schema::<Config>()),
        ("maps", schema::<Maps>()),
        ("check", schema::<Check>()),
    ]
}
