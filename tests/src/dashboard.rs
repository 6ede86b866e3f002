//! The dashboard for Grafana that is installed: its queries.

use serde_json::Value;

use crate::build;

/// Each query, with all jobs and all nodes chosen.
pub fn queries() -> Vec<String> {
    let file = build::root().join("cluster/monitoring/grafana.json");
    let text = std::fs::read_to_string(file).expect("the dashboard");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    let panels = all["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|p| p["targets"].as_array().expect("targets"));
    let query = |t: &Value| t["expr"].as_str().expect("a query").to_string();
    let chosen = |q: String| q.replace("$job", ".*").replace("$host", ".*");
    targets.map(query).map(chosen).collect()
}

/// The words of a query that are names: of metrics, of labels, of functions.
pub fn names(query: &str) -> Vec<&str> {
    // What stands in quotation marks is a value.
    let outside = query.split('"').step_by(2);
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = outside.flat_map(|part| part.split(move |c| !letter(c)));
    words
        .filter(|w| w.starts_with(|c: char| c.is_ascii_lowercase()))
        .collect()
}
