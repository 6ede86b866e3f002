//! What a program sees of the shim: nothing; and what is published of it is true.

#[path = "../differ.rs"]
mod differ;
#[path = "../filters.rs"]
mod filters;
#[path = "../frames.rs"]
mod frames;
#[path = "../in_force.rs"]
mod in_force;
#[path = "../loading.rs"]
mod loading;
#[path = "../newborn.rs"]
mod newborn;
#[path = "../planted.rs"]
mod planted;
#[path = "../programs.rs"]
mod programs;
#[path = "../progress.rs"]
mod progress;
#[path = "../truth.rs"]
mod truth;
