//! Numbers and words by name, and the names that there are.

use indexmap::IndexMap;
use regall_directory::layout::{Call, Counter};
use regall_directory::vocab::Reason;
use schemars::Schema;
use serde_json::{json, Value};

/// Numbers by name.
pub type Counts = IndexMap<String, u64>;

/// Words by name.
pub type Words = IndexMap<String, String>;

fn names(schema: &mut Schema, names: Value) {
    schema.insert("propertyNames".into(), names);
}

/// The calls that are tracked.
pub(crate) fn calls(schema: &mut Schema) {
    let all: Vec<_> = Call::ALL.iter().map(|c| c.word()).collect();
    names(schema, json!({ "enum": all }));
}

/// The counters.
pub(crate) fn counters(schema: &mut Schema) {
    let all: Vec<_> = Counter::ALL.iter().map(|c| c.word()).collect();
    names(schema, json!({ "enum": all }));
}

/// The states of memory.
pub(crate) fn states(schema: &mut Schema) {
    names(schema, json!({ "enum": ["registered", "excluded"] }));
}

/// The reasons for which memory is excluded.
pub(crate) fn reasons(schema: &mut Schema) {
    names(schema, json!({ "pattern": format!("^({})$", pattern()) }));
}

/// What a registrar says of memory.
pub(crate) fn columns(schema: &mut Schema) {
    names(
        schema,
        json!({ "pattern": format!("^(yes|{})$", pattern()) }),
    );
}

fn pattern() -> String {
    let all = Reason::ALL.iter().filter_map(|r| match r {
        Reason::None => None,
        Reason::Refused => Some(format!("{}:[0-9]+", r.word())),
        _ => Some(r.word().to_string()),
    });
    all.collect::<Vec<_>>().join("|")
}
