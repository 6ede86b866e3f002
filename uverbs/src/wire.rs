//! How commands get into the kernel: the uverbs interface, bytes and numbers.
//!
//! Everything here is a *write command*: a structure in, a structure out, each
//! followed by what the device's driver adds. They were made for write(2)
//! (`Documentation/infiniband/user_verbs.rst`, `<rdma/ib_user_verbs.h>`); since
//! Linux 4.20 the same ones go by ioctl, as UVERBS_METHOD_INVOKE_WRITE
//! (`<rdma/ib_user_ioctl_cmds.h>`), with one exception, [`get_context`]. libibverbs prefers the latter where it is,
//! and so do we: write(2) is EACCES after a change of credentials (the kernel's
//! `ib_safe_file_access`), and a descriptor that was closed behind our back and is
//! now an ordinary file would be written to.

use core::mem::offset_of;
use regall_sys::{file, Errno, Result};

mod structures;

pub use structures::*;

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
pub const VERBS_IOCTL: u32 = 0xc018_1b01;

/// `enum ib_uverbs_write_cmds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Number {
    GetContext = 0,
    QueryDevice = 1,
    AllocPd = 3,
    DeallocPd = 4,
    RegMr = 9,
    DeregMr = 13,
    /// IB_USER_VERBS_EX_CMD_QUERY_DEVICE with IB_USER_VERBS_CMD_FLAG_EXTENDED.
    QueryDeviceEx = 0x8000_0001,
}

pub(crate) const OBJECT_DEVICE: u16 = 0;
pub(crate) const OBJECT_MR: u16 = 7;
pub(crate) const METHOD_QUERY_MR: u16 = 3;
/// UVERBS_METHOD_REG_MR, of Linux 6.17. No header of Debian's has it yet.
pub(crate) const METHOD_REG_MR: u16 = 5;
pub(crate) const METHOD_INVOKE_WRITE: u16 = 0;
pub(crate) const METHOD_GET_CONTEXT: u16 = 3;
pub(crate) const METHOD_QUERY_CONTEXT: u16 = 4;
pub(crate) const ATTR_CORE_IN: u16 = 0;
pub(crate) const ATTR_CORE_OUT: u16 = 1;
pub(crate) const ATTR_WRITE_CMD: u16 = 2;
pub(crate) const ATTR_DRIVER_IN: u16 = 0x1000;
pub(crate) const ATTR_DRIVER_OUT: u16 = 0x1001;
/// UVERBS_ATTR_F_MANDATORY: a kernel that doesn't know it must refuse.
pub(crate) const MANDATORY: u16 = 1;

/// Attributes of the largest command.
const ATTRS: usize = 5;

/// `struct ib_uverbs_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Attr {
    pub id: u16,
    pub len: u16,
    pub flags: u16,
    pub reserved: u16,
    pub data: u64,
}

impl Attr {
    /// `len` bytes at `at`, for the kernel to read; up to 8 travel in the attribute.
    fn input(id: u16, at: *const u8, len: usize) -> Option<Self> {
        if len == 0 {
            return None;
        }
        let mut data = at as u64;
        if len <= size_of::<u64>() {
            let mut inline = [0u8; 8];
            // SAFETY: `at` is inside a `Request`, with `len` bytes of it behind.
            unsafe { core::ptr::copy_nonoverlapping(at, inline.as_mut_ptr(), len) };
            data = u64::from_ne_bytes(inline);
        }
        Self::of(id, len, data)
    }

    /// `len` bytes at `at`, for the kernel to fill.
    fn output(id: u16, at: *mut u8, len: usize) -> Option<Self> {
        if len == 0 {
            return None;
        }
        Self::of(id, len, at as u64)
    }

    fn of(id: u16, len: usize, data: u64) -> Option<Self> {
        Some(Self {
            id,
            len: u16::try_from(len).ok()?,
            flags: MANDATORY,
            reserved: 0,
            data,
        })
    }
}

/// `struct ib_uverbs_ioctl_hdr` and the attributes behind it.
#[repr(C)]
struct Message {
    length: u16,
    object: u16,
    method: u16,
    count: u16,
    reserved1: u64,
    driver: u32,
    reserved2: u32,
    attrs: [Attr; ATTRS],
}

impl Message {
    fn new(driver: u32, method: u16, attrs: [Option<Attr>; ATTRS]) -> Self {
        let mut message = Self {
            length: offset_of!(Self, attrs) as u16,
            object: OBJECT_DEVICE,
            method,
            count: 0,
            reserved1: 0,
            driver,
            reserved2: 0,
            attrs: [Attr::default(); ATTRS],
        };
        let given = attrs.into_iter().flatten();
        for (slot, attr) in message.attrs.iter_mut().zip(given) {
            *slot = attr;
            message.count += 1;
            message.length += size_of::<Attr>() as u16;
        }
        message
    }

    fn send(&mut self, fd: i32) -> Result<()> {
        // SAFETY: a message of that interface, whose attributes were made of memory that is as
        // long as they say, and is borrowed by the caller.
        unsafe { file::borrow(fd).ioctl(VERBS_IOCTL.into(), &raw mut *self) }.map(drop)
    }
}

/// Words of driver data that can go along: the largest is irdma's GET_CONTEXT.
const DRIVER_IN: usize = 4;
/// Words of driver data that may come back: the largest is mlx5's GET_CONTEXT,
/// about 100 bytes. Drivers give what there is room for.
const DRIVER_OUT: usize = 64;

/// A command with room in front for write(2)'s header (`struct ib_uverbs_cmd_hdr`).
#[repr(C)]
pub struct Request<Q> {
    command: u32,
    in_words: u16,
    out_words: u16,
    core: Q,
    driver: [u32; DRIVER_IN],
}

impl<Q> Request<Q> {
    fn new(command: u32, core: Q, data: DriverData) -> Self {
        let mut driver = [0; DRIVER_IN];
        for (to, from) in driver.iter_mut().zip(data.send) {
            *to = *from;
        }
        Self {
            command,
            in_words: 0,
            out_words: 0,
            core,
            driver,
        }
    }
}

/// A command's answer.
#[repr(C)]
pub struct Answer<A> {
    /// The kernel's part.
    pub core: A,
    driver: [u32; DRIVER_OUT],
}

impl<A> Answer<A> {
    /// An empty one around `core`.
    pub fn new(core: A) -> Self {
        Self {
            core,
            driver: [0; DRIVER_OUT],
        }
    }

    /// Where it is: what the first field of a command says for write(2).
    pub fn address(&mut self) -> u64 {
        &raw mut *self as u64
    }
}

/// What a device's driver has said in libibverbs' provider, here for it: some
/// drivers refuse commands that come without their data.
#[derive(Clone, Copy, Default)]
pub struct DriverData<'a> {
    /// Words to send, at most 4.
    pub send: &'a [u32],
    /// Whether there is an answer; it is not looked at.
    pub answers: bool,
}

impl DriverData<'_> {
    /// How many bytes go along, and how many may come back.
    fn bytes(&self) -> (usize, usize) {
        let words = if self.answers { DRIVER_OUT } else { 0 };
        let sent = self.send.len().min(DRIVER_IN);
        (sent * size_of::<u32>(), words * size_of::<u32>())
    }
}

/// How commands get in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By ioctl, which wants the driver's number (`enum rdma_driver_id`).
    Ioctl {
        /// The number.
        driver: u32,
    },
    /// By write(2), on kernels before 4.20, to this device number only.
    Write {
        /// `st_rdev`.
        device: u64,
    },
}

/// Has the command carried out. `core` must be one of the structures below, the
/// one that goes with `number`, and `answer` its answer.
/// Errors: the kernel's; EBADF if the descriptor is no longer what it was.
pub fn perform<Q, A>(
    way: Way,
    fd: i32,
    number: Number,
    core: Q,
    answer: &mut Answer<A>,
    data: DriverData,
) -> Result<()> {
    if let Some(errno) = faults::due() {
        return Err(errno);
    }
    let mut request = Request::new(number as u32, core, data);
    let (sent, room) = data.bytes();
    match way {
        Way::Ioctl { driver } => invoke(driver, fd, &request, sent, answer, room),
        Way::Write { device } => write(device, fd, &mut request, sent, answer, room),
    }
}

/// For tests: request number REGALL_FAIL_REQUEST, counted from 1, is not made and fails.
pub mod faults {
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use regall_sys::Errno;

    static MADE: AtomicU64 = AtomicU64::new(0);
    static FAIL: AtomicU64 = AtomicU64::new(0);
    static ERRNO: AtomicU64 = AtomicU64::new(libc::ENOMEM as u64);

    /// Request `n` shall fail with `errno`.
    pub fn arm(n: u64, errno: u64) {
        FAIL.store(n, Relaxed);
        ERRNO.store(errno, Relaxed);
    }

    /// Whether it is this request, and how it fails.
    pub fn due() -> Option<Errno> {
        if !cfg!(feature = "planted") {
            return None;
        }
        let n = MADE.fetch_add(1, Relaxed) + 1;
        (n == FAIL.load(Relaxed)).then(|| Errno(ERRNO.load(Relaxed) as i32))
    }
}

fn invoke<Q, A>(
    driver: u32,
    fd: i32,
    request: &Request<Q>,
    sent: usize,
    answer: &mut Answer<A>,
    room: usize,
) -> Result<()> {
    let core = (&raw const request.core).cast::<u8>();
    let reply = (&raw mut answer.core).cast::<u8>();
    let extra = (&raw const request.driver).cast::<u8>();
    let place = (&raw mut answer.driver).cast::<u8>();
    let attrs = [
        Attr::of(ATTR_WRITE_CMD, size_of::<u64>(), request.command.into()),
        Attr::input(ATTR_CORE_IN, core, size_of::<Q>()),
        Attr::output(ATTR_CORE_OUT, reply, size_of::<A>()),
        Attr::input(ATTR_DRIVER_IN, extra, sent),
        Attr::output(ATTR_DRIVER_OUT, place, room),
    ];
    Message::new(driver, METHOD_INVOKE_WRITE, attrs).send(fd)
}

fn write<Q, A>(
    device: u64,
    fd: i32,
    request: &mut Request<Q>,
    sent: usize,
    answer: &mut Answer<A>,
    room: usize,
) -> Result<()> {
    if file::stat_fd(fd)?.rdev != device {
        return Err(Errno::BADF);
    }
    let bytes = offset_of!(Request<Q>, driver) + sent;
    request.in_words = (bytes / size_of::<u32>()) as u16;
    request.out_words = ((size_of::<A>() + room) / size_of::<u32>()) as u16;
    let _ = answer;
    // SAFETY: the device is the one that takes such a command, which names the answer.
    unsafe { file::borrow(fd).write_command(&raw const *request, bytes) }
}

/// Gets an open file its context. This one has an ioctl of its own since Linux 5.6,
/// which, unlike the write command, opens no descriptor for events. It must be used
/// where it is: from 6.15 on the kernel takes the attribute that says which write
/// command it is for one of GET_CONTEXT's (both have number 2), an array of
/// descriptors, and the command fails with EBADF.
pub fn get_context(driver: u32, fd: i32, data: DriverData) -> Result<()> {
    let request = Request::new(0, (), data);
    let mut answer = Answer::new(());
    let (sent, room) = data.bytes();
    let extra = (&raw const request.driver).cast::<u8>();
    let place = (&raw mut answer.driver).cast::<u8>();
    let attrs = [
        Attr::input(ATTR_DRIVER_IN, extra, sent),
        Attr::output(ATTR_DRIVER_OUT, place, room),
        None,
        None,
        None,
    ];
    Message::new(driver, METHOD_GET_CONTEXT, attrs).send(fd)
}

/// What the kernel says to an empty command by ioctl from a driver of this number:
/// EINVAL: it is not the device's; ENOSPC: it is, and commands can come this way;
/// EPROTONOSUPPORT: it is, and they can't; ENOTTY: no such ioctl at all.
pub fn greet(fd: i32, driver: u32) -> Errno {
    let number = Number::QueryDevice as u64;
    let which = Attr::of(ATTR_WRITE_CMD, size_of::<u64>(), number);
    let attrs = [which, None, None, None, None];
    match Message::new(driver, METHOD_INVOKE_WRITE, attrs).send(fd) {
        Ok(()) => Errno(0),
        Err(e) => e,
    }
}

/// Whether the kernel knows UVERBS_METHOD_QUERY_CONTEXT (Linux 5.9). It is asked
/// without the arguments that it would need, so it does nothing.
pub fn knows_query_context(fd: i32, driver: u32) -> bool {
    let none = [None; ATTRS];
    Message::new(driver, METHOD_QUERY_CONTEXT, none).send(fd) != Err(PROTONOSUPPORT)
}

/// Whether the kernel knows UVERBS_METHOD_REG_MR (Linux 6.17), likewise.
pub fn knows_reg_mr(fd: i32, driver: u32) -> bool {
    let mut message = Message::new(driver, METHOD_REG_MR, [None; ATTRS]);
    message.object = OBJECT_MR;
    message.send(fd) == Err(Errno::INVAL)
}

/// Whether the kernel knows UVERBS_METHOD_QUERY_MR, and what peers' addresses begin with there
/// (UVERBS_ATTR_QUERY_MR_RESP_IOVA), likewise.
pub fn knows_query_mr(fd: i32, driver: u32) -> bool {
    const IOVA: u16 = 4;
    let mut iova = 0u64;
    let place = Attr::output(IOVA, (&raw mut iova).cast(), size_of::<u64>());
    let mut message = Message::new(driver, METHOD_QUERY_MR, [place, None, None, None, None]);
    message.object = OBJECT_MR;
    message.send(fd) == Err(Errno::INVAL)
}

/// The kernel has the ioctl interface, but not this method.
pub const PROTONOSUPPORT: Errno = Errno::PROTONOSUPPORT;
/// The errno of a descriptor that has no such ioctl.
pub const NOTTY: Errno = Errno::NOTTY;
/// A command that is too short.
pub const NOSPC: Errno = Errno::NOSPC;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::headers::{check, layout};

    #[test]
    fn the_ioctl_is_as_in_the_headers() {
        let header = layout!("struct ib_uverbs_ioctl_hdr", Message, None,
            length, object as "object_id", method as "method_id", count as "num_attrs",
            reserved1, driver as "driver_id", reserved2);
        let attr = layout!("struct ib_uverbs_attr", Attr, Some(size_of::<Attr>()),
            id as "attr_id", len, flags, reserved as "attr_data", data);
        let mut all = header;
        all.extend(attr);
        all.push(format!("RDMA_VERBS_IOCTL == {VERBS_IOCTL}u"));
        all.push(format!("UVERBS_ATTR_F_MANDATORY == {MANDATORY}"));
        check("rdma/rdma_user_ioctl_cmds.h", &all);
    }

    #[test]
    fn numbers_are_as_in_the_headers() {
        let numbers = [
            ("UVERBS_OBJECT_DEVICE", OBJECT_DEVICE),
            ("UVERBS_METHOD_INVOKE_WRITE", METHOD_INVOKE_WRITE),
            ("UVERBS_METHOD_GET_CONTEXT", METHOD_GET_CONTEXT),
            ("UVERBS_METHOD_QUERY_CONTEXT", METHOD_QUERY_CONTEXT),
            ("UVERBS_ATTR_CORE_IN", ATTR_CORE_IN),
            ("UVERBS_ATTR_CORE_OUT", ATTR_CORE_OUT),
            ("UVERBS_ATTR_WRITE_CMD", ATTR_WRITE_CMD),
            ("UVERBS_ATTR_UHW_IN", ATTR_DRIVER_IN),
            ("UVERBS_ATTR_UHW_OUT", ATTR_DRIVER_OUT),
        ];
        let all: Vec<_> = numbers
            .iter()
            .map(|(name, n)| format!("{name} == {n}"))
            .collect();
        check("rdma/ib_user_ioctl_cmds.h", &all);
    }

    #[test]
    fn commands_are_as_in_the_headers() {
        let ex = "IB_USER_VERBS_EX_CMD_QUERY_DEVICE | IB_USER_VERBS_CMD_FLAG_EXTENDED";
        let mut all: Vec<_> = [
            ("IB_USER_VERBS_CMD_GET_CONTEXT", Number::GetContext),
            ("IB_USER_VERBS_CMD_QUERY_DEVICE", Number::QueryDevice),
            ("IB_USER_VERBS_CMD_ALLOC_PD", Number::AllocPd),
            ("IB_USER_VERBS_CMD_DEALLOC_PD", Number::DeallocPd),
            ("IB_USER_VERBS_CMD_REG_MR", Number::RegMr),
            ("IB_USER_VERBS_CMD_DEREG_MR", Number::DeregMr),
            (ex, Number::QueryDeviceEx),
        ]
        .iter()
        .map(|(name, number)| format!("({name}) == {}u", *number as u32))
        .collect();
        all.extend(layout!(
            "struct ib_uverbs_cmd_hdr",
            Request<RegMr>,
            None,
            command,
            in_words,
            out_words
        ));
        check("rdma/ib_user_verbs.h", &all);
        assert_eq!(offset_of!(Request<RegMr>, core), 8);
        assert_eq!(offset_of!(Request<Handle>, driver), 12);
        assert_eq!(offset_of!(Answer<RegMrAnswer>, driver), 12);
    }
}
