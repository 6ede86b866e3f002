//! What a program asks of an adapter by ioctl (RDMA_VERBS_IOCTL): the requests that are about
//! registrations and protection domains, and the kernel's answer to a registration.
//!
//! All of it is pure: a [`Message`] is a copy of the program's, and an answer is a list of what
//! goes where in the program's memory. What is not known by every byte is [`Request::Other`], or
//! [`Request::Registration`] if it registers something: the kernel knows better.

use crate::channel::Mr;
use crate::driver::Driver;
use crate::wire::{self, Attr, METHOD_QUERY_MR, METHOD_REG_MR, OBJECT_MR};
use core::mem::offset_of;

const OBJECT_PD: u16 = 1;
/// Objects that are made by a method, which is the first one of each.
const OBJECT_CQ: u16 = 3;
const OBJECT_QP: u16 = 4;
const OBJECT_SRQ: u16 = 5;
const OBJECT_WQ: u16 = 12;
const METHOD_CREATE: u16 = 0;
const METHOD_QP_DESTROY: u16 = 1;
/// `enum uverbs_attrs_create_qp_cmd_attr_ids`.
const CREATE_QP_HANDLE: u16 = 0;
const CREATE_QP_PD_HANDLE: u16 = 2;
const METHOD_PD_DESTROY: u16 = 0;
const METHOD_DM_MR_REG: u16 = 0;
const METHOD_MR_DESTROY: u16 = 1;
const METHOD_REG_DMABUF_MR: u16 = 4;

/// Write commands, beside [`wire::Number`].
const REREG_MR: u64 = 11;
/// Those that make objects, extended ones too.
const CREATE_AH: u64 = 5;
const ALLOC_MW: u64 = 14;
const CREATE_CQ: u64 = 18;
const CREATE_QP: u64 = 24;
const DESTROY_QP: u64 = 27;
const CREATE_SRQ: u64 = 32;
const CREATE_XSRQ: u64 = 39;
/// IB_USER_VERBS_CMD_FLAG_EXTENDED.
const EXTENDED: u64 = 0x8000_0000;

/// `enum uverbs_attrs_reg_mr_cmd_attr_ids`, of the same kernel.
const REG_MR_HANDLE: u16 = 0;
const REG_MR_PD_HANDLE: u16 = 1;
const REG_MR_IOVA: u16 = 3;
const REG_MR_ADDR: u16 = 4;
const REG_MR_LENGTH: u16 = 5;
const REG_MR_ACCESS_FLAGS: u16 = 6;
const REG_MR_RESP_LKEY: u16 = 9;
const REG_MR_RESP_RKEY: u16 = 10;

/// UVERBS_ATTR_F_VALID_OUTPUT: the kernel has written what the attribute names.
const VALID_OUTPUT: u16 = 2;

/// Attributes of a request that is looked at: none of those has more than 17.
const MOST: usize = 18;
/// Bytes of the largest command, `struct ib_uverbs_rereg_mr`.
pub const CORE: usize = 48;
/// Bytes of `struct ib_uverbs_reg_mr`, and of its answer.
const REG_MR: usize = 40;
const REG_MR_ANSWER: usize = 12;
/// Bytes of `struct ib_uverbs_destroy_qp`.
const DESTROYED_QP: usize = 16;

/// `struct ib_uverbs_ioctl_hdr`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Head {
    length: u16,
    object: u16,
    method: u16,
    count: u16,
    reserved1: u64,
    driver: u32,
    reserved2: u32,
}

/// A copy of a program's message.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Message {
    head: Head,
    attrs: [Attr; MOST],
}

/// What a message asks for. Handles are the program's words for objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Nothing that is looked at.
    Other,
    /// A context for the open file, which has none.
    Open,
    /// What the context is like that it has.
    Context,
    /// Another object than a registration is made.
    Creation,
    /// A queue pair is made in a protection domain.
    CreateQp(u32),
    /// A queue pair ends.
    DestroyQp(u32),
    /// Memory is registered in a way that only the kernel can.
    Registration,
    /// Ordinary memory is registered.
    Register(Register),
    /// A registration ends.
    Deregister(u32),
    /// A registration changes.
    Change(u32),
    /// What a registration is like.
    Query(u32),
    /// A protection domain ends.
    DeallocPd(u32),
}

/// Ordinary memory that is to be registered, under its own addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Register {
    /// Handle of the protection domain.
    pub pd: u32,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// `enum ib_uverbs_access_flags`.
    pub access: u32,
}

/// A few bytes that the kernel writes into the program's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Write {
    /// The first one's address.
    pub at: u64,
    bytes: [u8; REG_MR_ANSWER],
    many: u8,
}

impl Write {
    fn of(at: u64, bytes: &[u8]) -> Self {
        let mut write = Self {
            at,
            ..Self::default()
        };
        for (to, from) in write.bytes.iter_mut().zip(bytes) {
            *to = *from;
            write.many += 1;
        }
        write
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.many)).unwrap_or(&[])
    }
}

/// The writes of one answer.
pub type Answer = [Option<Write>; 8];

impl Message {
    /// Bytes of the head.
    pub const HEAD: usize = size_of::<Head>();

    /// Where the head goes, and behind it the attributes.
    pub fn place(&mut self) -> *mut u8 {
        (&raw mut *self).cast()
    }

    /// Bytes of the attributes behind a head that is there. `None`: nothing of it is looked at, or
    /// the kernel refuses such a head.
    pub fn rest(&self) -> Option<usize> {
        let head = &self.head;
        let bytes = usize::from(head.count) * size_of::<Attr>();
        let known = matches!(
            (head.object, head.method),
            (
                wire::OBJECT_DEVICE,
                wire::METHOD_INVOKE_WRITE | wire::METHOD_GET_CONTEXT | wire::METHOD_QUERY_CONTEXT
            ) | (OBJECT_PD, METHOD_PD_DESTROY)
                | (OBJECT_QP, METHOD_CREATE | METHOD_QP_DESTROY)
                | (
                    OBJECT_MR,
                    METHOD_DM_MR_REG
                        | METHOD_MR_DESTROY
                        | METHOD_QUERY_MR
                        | METHOD_REG_DMABUF_MR
                        | METHOD_REG_MR
                )
        );
        let whole = usize::from(head.length) == Self::HEAD + bytes;
        let taken = whole && head.reserved1 == 0 && head.reserved2 == 0;
        (known && taken && usize::from(head.count) <= MOST).then_some(bytes)
    }

    /// Returns whether a head that is there makes an object of which no more is looked at.
    pub fn creates_by_method(&self) -> bool {
        let head = &self.head;
        let object = matches!(head.object, OBJECT_CQ | OBJECT_QP | OBJECT_SRQ | OBJECT_WQ);
        object && head.method == METHOD_CREATE
    }

    /// The driver that it is for.
    pub fn driver(&self) -> Driver {
        Driver(self.head.driver)
    }

    /// Whether it registers by UVERBS_METHOD_REG_MR, which older kernels do not know.
    pub fn is_by_method(&self) -> bool {
        self.is(OBJECT_MR, METHOD_REG_MR)
    }

    /// Its attributes.
    fn attrs(&self) -> &[Attr] {
        self.attrs
            .get(..usize::from(self.head.count))
            .unwrap_or(&[])
    }

    /// The only attribute `id`, and its place. `None`: there is none, or more than one.
    fn only(&self, id: u16) -> Option<(usize, &Attr)> {
        let mut found = self.attrs().iter().enumerate().filter(|(_, a)| a.id == id);
        found.next().filter(|_| found.next().is_none())
    }

    /// What the only attribute `id` holds itself, if that is `len` bytes.
    fn held(&self, id: u16, len: usize) -> Option<u64> {
        let attr = self.only(id)?.1;
        (usize::from(attr.len) == len && attr.reserved == 0).then(|| match len {
            4 => u64::from(attr.data as u32),
            _ => attr.data,
        })
    }

    /// An object's handle, in the only attribute `id`.
    fn object(&self, id: u16) -> Option<u32> {
        u32::try_from(self.held(id, 0)?).ok()
    }

    /// Where `len` bytes go that the kernel writes for the only attribute `id`.
    fn output(&self, id: u16, len: usize) -> Option<(usize, &Attr)> {
        let fits = |a: &Attr| usize::from(a.len) == len && a.reserved == 0;
        self.only(id).filter(|(_, attr)| fits(attr))
    }

    /// Where the kernel puts the handle of the queue pair that the message, which is at `at`, makes.
    pub fn handle_of_qp(&self, at: u64) -> Option<u64> {
        let (n, _) = self.only(CREATE_QP_HANDLE)?;
        Some(field(at, n, offset_of!(Attr, data)))
    }

    fn is(&self, object: u16, method: u16) -> bool {
        (self.head.object, self.head.method) == (object, method)
    }

    /// Whether each attribute is one of `known`, and plain.
    fn has_only(&self, known: &[u16]) -> bool {
        self.attrs()
            .iter()
            .all(|a| known.contains(&a.id) && a.flags & !wire::MANDATORY == 0 && a.reserved == 0)
    }

    fn write_command(&self) -> Option<u64> {
        let invokes = self.is(wire::OBJECT_DEVICE, wire::METHOD_INVOKE_WRITE);
        invokes.then(|| self.held(wire::ATTR_WRITE_CMD, 8))?
    }

    /// Where the rest of the command is, and how many bytes, if it is one that has to be read for
    /// [`Message::request`].
    pub fn core(&self) -> Option<(u64, usize)> {
        let len = match self.write_command()? {
            n if n == wire::Number::RegMr as u64 => REG_MR,
            REREG_MR => CORE,
            DESTROY_QP => DESTROYED_QP,
            _ => return None,
        };
        let attr = self.only(wire::ATTR_CORE_IN)?.1;
        (usize::from(attr.len) == len && attr.reserved == 0).then_some((attr.data, len))
    }

    /// What is asked for; `core` is what [`Message::core`] names, zeroes without.
    pub fn request(&self, core: &[u8; CORE]) -> Request {
        match (self.head.object, self.head.method) {
            (wire::OBJECT_DEVICE, wire::METHOD_INVOKE_WRITE) => self.by_write_command(core),
            (wire::OBJECT_DEVICE, wire::METHOD_GET_CONTEXT) => Request::Open,
            (wire::OBJECT_DEVICE, _) => Request::Context,
            (OBJECT_PD, _) => self.object(0).map_or(Request::Other, Request::DeallocPd),
            (OBJECT_QP, METHOD_CREATE) => self
                .object(CREATE_QP_PD_HANDLE)
                .map_or(Request::Creation, Request::CreateQp),
            (OBJECT_QP, _) => self.object(0).map_or(Request::Other, Request::DestroyQp),
            (_, METHOD_MR_DESTROY) => self.object(0).map_or(Request::Other, Request::Deregister),
            (_, METHOD_QUERY_MR) => self.object(0).map_or(Request::Other, Request::Query),
            (_, METHOD_REG_MR) => self
                .registered_by_method()
                .map_or(Request::Registration, Request::Register),
            _ => Request::Registration,
        }
    }

    fn by_write_command(&self, core: &[u8; CORE]) -> Request {
        const GET_CONTEXT: u64 = wire::Number::GetContext as u64;
        const DEALLOC_PD: u64 = wire::Number::DeallocPd as u64;
        const REG_MR: u64 = wire::Number::RegMr as u64;
        const DEREG_MR: u64 = wire::Number::DeregMr as u64;
        const ALLOC_PD: u64 = wire::Number::AllocPd as u64;
        let handle = || self.held(wire::ATTR_CORE_IN, 4).map(|h| h as u32);
        match self.write_command() {
            Some(GET_CONTEXT) => Request::Open,
            Some(DEALLOC_PD) => handle().map_or(Request::Other, Request::DeallocPd),
            Some(DEREG_MR) => handle().map_or(Request::Other, Request::Deregister),
            Some(REREG_MR) if self.core().is_some() => Request::Change(word(core, 8)),
            Some(DESTROY_QP) if self.core().is_some() => Request::DestroyQp(word(core, 8)),
            Some(REG_MR) => self
                .registered_by_write(core)
                .map_or(Request::Registration, Request::Register),
            Some(ALLOC_PD | CREATE_AH | ALLOC_MW | CREATE_SRQ | CREATE_XSRQ) => Request::Creation,
            Some(n) if matches!(n & !EXTENDED, CREATE_CQ | CREATE_QP) => Request::Creation,
            _ => Request::Other,
        }
    }

    fn registered_by_write(&self, core: &[u8; CORE]) -> Option<Register> {
        const KNOWN: [u16; 5] = [
            wire::ATTR_CORE_IN,
            wire::ATTR_CORE_OUT,
            wire::ATTR_WRITE_CMD,
            wire::ATTR_DRIVER_IN,
            wire::ATTR_DRIVER_OUT,
        ];
        self.core()?;
        self.output(wire::ATTR_CORE_OUT, REG_MR_ANSWER)?;
        let register = Register {
            start: long(core, offset_of!(wire::RegMr, start)),
            length: long(core, offset_of!(wire::RegMr, length)),
            pd: word(core, offset_of!(wire::RegMr, pd_handle)),
            access: word(core, offset_of!(wire::RegMr, access_flags)),
        };
        let iova = long(core, offset_of!(wire::RegMr, hca_va));
        let known = self.has_only(&KNOWN) && self.is_ordinary();
        (known && iova == register.start).then_some(register)
    }

    fn registered_by_method(&self) -> Option<Register> {
        const KNOWN: [u16; 10] = [
            REG_MR_HANDLE,
            REG_MR_PD_HANDLE,
            REG_MR_IOVA,
            REG_MR_ADDR,
            REG_MR_LENGTH,
            REG_MR_ACCESS_FLAGS,
            REG_MR_RESP_LKEY,
            REG_MR_RESP_RKEY,
            wire::ATTR_DRIVER_IN,
            wire::ATTR_DRIVER_OUT,
        ];
        self.held(REG_MR_HANDLE, 0)?;
        self.output(REG_MR_RESP_LKEY, 4)?;
        self.output(REG_MR_RESP_RKEY, 4)?;
        let access = self.held(REG_MR_ACCESS_FLAGS, 4);
        let access = access.or_else(|| self.held(REG_MR_ACCESS_FLAGS, 8))?;
        let register = Register {
            pd: self.object(REG_MR_PD_HANDLE)?,
            start: self.held(REG_MR_ADDR, 8)?,
            length: self.held(REG_MR_LENGTH, 8)?,
            access: u32::try_from(access).ok()?,
        };
        let iova = self.held(REG_MR_IOVA, 8)?;
        let known = self.has_only(&KNOWN) && self.is_ordinary();
        (known && iova == register.start).then_some(register)
    }

    /// Whether what the driver's library adds says no more than that the memory is ordinary.
    fn is_ordinary(&self) -> bool {
        let there = |id| self.attrs().iter().any(|a| a.id == id);
        let (sent, answered) = (there(wire::ATTR_DRIVER_IN), there(wire::ATTR_DRIVER_OUT));
        match (self.driver(), sent, answered) {
            (_, false, false) => true,
            // struct irdma_mem_reg_req: IRDMA_MEMREG_TYPE_MEM is 0, rings have other types.
            (Driver::IRDMA, true, false) => self.held(wire::ATTR_DRIVER_IN, 8) == Some(0),
            // struct siw_ureq_reg_mr: the low byte of the key, which is the kernel's to choose.
            (Driver::SIW, true, true) => {
                let sent = self.held(wire::ATTR_DRIVER_IN, 8);
                let answered = self.output(wire::ATTR_DRIVER_OUT, 8);
                sent.is_some_and(|s| s <= 0xff) && answered.is_some()
            }
            _ => false,
        }
    }

    /// What the kernel writes when it has carried out [`Request::Register`] of this message, which
    /// is at `at`, and calls the region `handle`: in the kernel's order.
    pub fn answer(&self, at: u64, handle: u32, mr: &Mr) -> Answer {
        let mut answer = Answer::default();
        let mut places = answer.iter_mut();
        let mut put = |write| {
            if let Some(place) = places.next() {
                *place = Some(write);
            }
        };
        let flagged = |n: usize, attr: &Attr| {
            let flags = attr.flags | VALID_OUTPUT;
            Write::of(field(at, n, offset_of!(Attr, flags)), &flags.to_ne_bytes())
        };
        let (lkey, rkey) = (mr.lkey.to_ne_bytes(), mr.rkey.to_ne_bytes());
        if self.is_by_method() {
            if let Some((n, _)) = self.only(REG_MR_HANDLE) {
                let id = u64::from(handle).to_ne_bytes();
                put(Write::of(field(at, n, offset_of!(Attr, data)), &id));
            }
            for (id, key) in [(REG_MR_RESP_LKEY, lkey), (REG_MR_RESP_RKEY, rkey)] {
                if let Some((n, attr)) = self.only(id) {
                    put(Write::of(attr.data, &key));
                    put(flagged(n, attr));
                }
            }
        } else if let Some((n, attr)) = self.only(wire::ATTR_CORE_OUT) {
            let mut all = [0; REG_MR_ANSWER];
            let parts = [handle.to_ne_bytes(), lkey, rkey];
            for (to, from) in all.iter_mut().zip(parts.iter().flatten()) {
                *to = *from;
            }
            put(Write::of(attr.data, &all));
            put(flagged(n, attr));
        }
        // siw's alone is answered to: struct siw_uresp_reg_mr, the key.
        if let Some((n, attr)) = self.only(wire::ATTR_DRIVER_OUT) {
            put(Write::of(attr.data, &u64::from(mr.lkey).to_ne_bytes()));
            put(flagged(n, attr));
        }
        answer
    }

    /// The message asks for the same of the object that the kernel calls `handle`. `core` as in
    /// [`Message::request`], which is named by the message from now on, if it is named at all.
    pub fn be_about(&mut self, handle: u32, core: &mut [u8; CORE]) {
        let by_core = self.core().is_some();
        let invokes = self.is(wire::OBJECT_DEVICE, wire::METHOD_INVOKE_WRITE);
        let id = if invokes { wire::ATTR_CORE_IN } else { 0 };
        let many = usize::from(self.head.count);
        let attr = self.attrs.iter_mut().take(many).find(|a| a.id == id);
        let Some(attr) = attr else {
            return;
        };
        if by_core {
            for (to, from) in core.iter_mut().skip(8).zip(handle.to_ne_bytes()) {
                *to = from;
            }
            attr.data = core.as_ptr() as u64;
        } else {
            attr.data = handle.into();
        }
    }

    /// What the kernel has said in this message, which is a changed copy of `asked`, a program's
    /// at `at`: which outputs it has written.
    pub fn said<'a>(&'a self, asked: &'a Self, at: u64) -> impl Iterator<Item = Write> + 'a {
        let both = self.attrs().iter().zip(asked.attrs()).enumerate();
        both.filter(|(_, (now, then))| now.flags != then.flags)
            .map(move |(n, (now, _))| {
                let place = field(at, n, offset_of!(Attr, flags));
                Write::of(place, &now.flags.to_ne_bytes())
            })
    }

    /// What the kernel writes when it is asked what a region is like, whose keys are `mr`'s and which
    /// is `length` bytes at `iova`, by this message, which is at `at`. `None`: it is asked for more.
    pub fn described(&self, at: u64, mr: &Mr, length: u64, iova: u64) -> Option<Answer> {
        // UVERBS_ATTR_QUERY_MR_HANDLE, and what follows it in order.
        const KNOWN: [u16; 5] = [0, 1, 2, 3, 4];
        if !self.is(OBJECT_MR, METHOD_QUERY_MR) || !self.has_only(&KNOWN) {
            return None;
        }
        self.held(0, 0)?;
        let (lkey, rkey) = (mr.lkey.to_ne_bytes(), mr.rkey.to_ne_bytes());
        let (length, iova) = (length.to_ne_bytes(), iova.to_ne_bytes());
        let parts: [(u16, &[u8]); 4] = [(1, &lkey), (2, &rkey), (3, &length), (4, &iova)];
        let mut answer = Answer::default();
        let mut places = answer.iter_mut();
        for (id, bytes) in parts {
            // The last one is the only one that may be left out.
            if id == 4 && !self.attrs().iter().any(|a| a.id == id) {
                break;
            }
            let (n, attr) = self.output(id, bytes.len())?;
            let flags = (attr.flags | VALID_OUTPUT).to_ne_bytes();
            *places.next()? = Some(Write::of(attr.data, bytes));
            *places.next()? = Some(Write::of(field(at, n, offset_of!(Attr, flags)), &flags));
        }
        Some(answer)
    }

    /// Where the keys of a region that is asked about go, if they do: what stands there when the
    /// kernel has answered is that of the region that it was asked about.
    pub fn keys(&self, mr: &Mr) -> [Option<Write>; 2] {
        // UVERBS_ATTR_QUERY_MR_RESP_LKEY and _RKEY.
        [(1, mr.lkey), (2, mr.rkey)].map(|(id, key)| {
            let attr = self.only(id)?.1;
            Some(Write::of(attr.data, &key.to_ne_bytes()))
        })
    }
}

/// Where the field at `offset` of attribute number `n` of the message at `at` is.
fn field(at: u64, n: usize, offset: usize) -> u64 {
    let before = Message::HEAD + n * size_of::<Attr>() + offset;
    at.wrapping_add(before as u64)
}

fn word(core: &[u8; CORE], at: usize) -> u32 {
    let bytes = core.get(at..).and_then(|b| b.first_chunk());
    bytes.map_or(0, |b| u32::from_ne_bytes(*b))
}

fn long(core: &[u8; CORE], at: usize) -> u64 {
    let bytes = core.get(at..).and_then(|b| b.first_chunk());
    bytes.map_or(0, |b| u64::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests;
