//! The plan of regall's sources, checked against the sources.
//!
//! [`source`] parses every module of a crate, without building it: what it defines and which
//! paths it names. [`resolve`] follows each path, through imports and re-exports, to the module
//! that defines what it names. [`graph`] draws the arrows between siblings and finds cycles.
//! [`table`] reads from ARCHITECTURE.md who may import whom. [`kernel`] finds system calls that
//! are made elsewhere than in `sys`.
//!
//! What is compiled for tests alone (`#[cfg(test)]`) does not count. Methods are called without
//! naming their module, so only the paths that a module writes down are arrows.

pub mod graph;
pub mod house;
pub mod kernel;
pub mod resolve;
pub mod source;
pub mod table;
