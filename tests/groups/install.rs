//! What is installed, and what people read.

#[path = "../containers.rs"]
mod containers;
#[path = "../documents.rs"]
mod documents;
#[path = "../examples.rs"]
mod examples;
#[path = "../installing.rs"]
mod installing;
#[path = "../modules.rs"]
mod modules;
#[path = "../packaging.rs"]
mod packaging;
#[path = "../pages.rs"]
mod pages;
