//! The parts of a box that make no system call.

#[path = "../../bridge/src/boxes/copy.rs"]
mod copy;
#[path = "../../bridge/src/boxes/layout.rs"]
pub mod layout;
#[path = "../../bridge/src/boxes/mailbox.rs"]
pub mod mailbox;
#[path = "../../bridge/src/boxes/message.rs"]
pub mod message;
#[path = "../../bridge/src/boxes/ring.rs"]
pub mod ring;
#[path = "../../bridge/src/boxes/summary.rs"]
pub mod summary;
