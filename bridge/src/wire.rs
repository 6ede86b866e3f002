//! What a peer and a helper say to each other: messages of a fixed size, each way one.
//! Neither trusts the other.

use regall_sys::text::Text;
use regall_sys::{Errno, Result};

/// Bytes that are copied at a time, through one of [`SLOTS`] parts of the bounce buffer.
pub const CHUNK: u64 = 128 << 10;
/// Chunks under way at a time: while one side copies one, the other side copies another.
pub const SLOTS: u64 = 4;
/// Bytes of the bounce buffer: memory of the helper's, which it makes for each peer. A helper takes
/// no descriptor from anybody: to close a file of somebody else's may wait for somebody else, and
/// may end what the owner has registered by such a file (a message queue, an XPMEM segment).
pub const BOUNCE: u64 = CHUNK * SLOTS;

/// First word of every message; the last digit is the version.
pub const MAGIC: u32 = 0x7267_6802;

/// What a peer asks for: [`Request::what`].
pub const HELLO: u32 = 1;
/// From the owner's memory into the bounce buffer.
pub const GET: u32 = 2;
/// From the bounce buffer into the owner's memory.
pub const PUT: u32 = 3;
/// The file behind a shared mapping.
pub const DESCRIPTOR: u32 = 4;
// (5 to 7 were about regions of other users.)
/// As [`GET`] and [`PUT`], as process_vm_readv and process_vm_writev have it: the memory need
/// not be registered, unless the owner has opted it out.
pub const ATTACH_GET: u32 = 8;
/// See [`ATTACH_GET`].
pub const ATTACH_PUT: u32 = 9;
/// The file of the owner's box.
pub const BOX_FILE: u32 = 10;
/// The pipe by which the owner is woken, to be written to.
pub const BOX_EVENT: u32 = 11;
/// A peer's message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Request {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`HELLO`], which comes first, and whose answer has the bounce buffer's descriptor;
    /// [`GET`]; [`PUT`]; [`DESCRIPTOR`]; or another of these.
    pub what: u32,
    /// Counts requests; the answer has the same.
    pub number: u64,
    /// The directory's image that the peer has read ([`HELLO`]).
    pub image: u64,
    /// Address in the owner's memory.
    pub addr: u64,
    /// Bytes; of the bounce buffer ([`HELLO`]).
    pub len: u64,
    /// Number of the entry that holds `addr`, in the owner's ledger.
    pub id: u64,
    /// Where in the bounce buffer.
    pub offset: u64,
    /// 0.
    pub reserved: u64,
}

/// What the helper answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Answer {
    /// [`MAGIC`].
    pub magic: u32,
    /// 0 or an errno.
    pub errno: u32,
    /// The number of the request.
    pub number: u64,
    /// Bytes that were copied; of a [`DESCRIPTOR`], where in the file the address is.
    pub bytes: u64,
    /// 0.
    pub reserved: u64,
}

/// Bytes of a [`Request`].
pub const REQUEST: usize = 64;
/// Bytes of an [`Answer`].
pub const ANSWER: usize = 32;

const _: () = assert!(size_of::<Request>() == REQUEST && size_of::<Answer>() == ANSWER);

impl Request {
    /// One of nothing but its kind.
    pub fn new(what: u32) -> Self {
        Self {
            magic: MAGIC,
            what,
            number: 0,
            image: 0,
            addr: 0,
            len: 0,
            id: 0,
            offset: 0,
            reserved: 0,
        }
    }

    /// The message as it is sent.
    pub fn to_bytes(self) -> [u8; REQUEST] {
        // SAFETY: integers without padding, of the same size.
        unsafe { core::mem::transmute(self) }
    }

    /// From what has come. EPROTO: it is no request.
    pub fn from_bytes(bytes: [u8; REQUEST]) -> Result<Self> {
        // SAFETY: integers without padding: any bytes are some.
        let it: Self = unsafe { core::mem::transmute(bytes) };
        let good = it.magic == MAGIC && it.reserved == 0;
        good.then_some(it).ok_or(Errno::PROTO)
    }
}

impl Answer {
    /// The message as it is sent.
    pub fn to_bytes(self) -> [u8; ANSWER] {
        // SAFETY: as in `Request`.
        unsafe { core::mem::transmute(self) }
    }

    /// From what has come. EPROTO: it is no answer.
    pub fn from_bytes(bytes: [u8; ANSWER]) -> Result<Self> {
        // SAFETY: as in `Request`.
        let it: Self = unsafe { core::mem::transmute(bytes) };
        let good = it.magic == MAGIC && it.reserved == 0 && it.errno < 4096;
        good.then_some(it).ok_or(Errno::PROTO)
    }
}

/// Where a helper listens, for a directory named `name` in the folder `folder`.
pub fn socket_path(folder: &[u8], name: &[u8]) -> Text<108> {
    let mut path = Text::new();
    for part in [folder, b"/", name, b".", SOCKET.as_bytes()] {
        path.push(part);
    }
    path
}

/// What the name of a helper's socket ends in.
pub const SOCKET: &str = "sock";
