//! What processes of a node reach of each other.

#[path = "../atomics.rs"]
mod atomics;
#[path = "../boxes.rs"]
mod boxes;
#[path = "../bridge.rs"]
mod bridge;
#[path = "../copying.rs"]
mod copying;
#[path = "../helper.rs"]
mod helper;
#[path = "../knem.rs"]
mod knem;
#[path = "../mapping.rs"]
mod mapping;
#[path = "../regions.rs"]
mod regions;
#[path = "../rights.rs"]
mod rights;
#[path = "../share.rs"]
mod share;
#[path = "../xpmem.rs"]
mod xpmem;
