//! The `regall` command, and its settings.

#[path = "../doctor.rs"]
mod doctor;
#[path = "../hostile.rs"]
mod hostile;
#[path = "../merge.rs"]
mod merge;
#[path = "../monitoring.rs"]
mod monitoring;
#[path = "../outputs.rs"]
mod outputs;
#[path = "../report.rs"]
mod report;
#[path = "../root.rs"]
mod root;
#[path = "../settings.rs"]
mod settings;
#[path = "../silent.rs"]
mod silent;
#[path = "../taken.rs"]
mod taken;
#[path = "../top.rs"]
mod top;
