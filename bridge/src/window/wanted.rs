//! Requests for memory of a peer's: its extent, and the way by which it is mapped here.

use super::source::FileId;
use crate::link::Link;
use crate::lock::Lock;
use crate::xpmem;

/// Windows of one peer, at the most.
pub const WINDOWS: usize = 64;
/// Bytes of them, at the most. (Addresses: the memory is the owner's.)
pub const BYTES: u64 = 2 << 30;
/// A mapping larger than this is attached in pieces of so many bytes.
pub const WINDOW: u64 = 64 << 20;

/// By which way memory is mapped here.
#[derive(Clone, Copy)]
pub enum By<'a> {
    /// The file that it is of; where /proc does not say which that is, the peer's helper may.
    File(Option<&'a Lock<Link>>),
    /// The XPMEM driver, with leave to attach the peer's memory.
    Xpmem(&'a xpmem::Access),
}

/// How a window is had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum How {
    /// Not at all.
    #[default]
    Free = 0,
    /// Mapped from a file.
    Mapped = 1,
    /// A System V segment, attached.
    Segment = 2,
    /// Attached by the XPMEM driver.
    Xpmem = 3,
    /// Not mapped: a descriptor to read from.
    Open = 4,
}

/// Names what a window is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The file; for XPMEM the generation of the entry that it was attached for.
    pub file: FileId,
    /// First byte, there; for XPMEM the peer's address.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Describes what somebody wants to get at.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// By which way.
    pub by: By<'a>,
    /// The peer's address.
    pub addr: u64,
    /// Bytes that he is about to copy.
    pub bytes: u64,
    /// To write there.
    pub write: bool,
    /// Even if it does not pay.
    pub eager: bool,
    /// Mapped, or not at all.
    pub mapped: bool,
}
