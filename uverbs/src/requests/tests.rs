use super::*;
use crate::abi::headers::{check, layout};
use crate::MrHandle;

const AT: u64 = 0x7000_0000;
const RXE: u32 = 14;

/// An attribute as a program writes it.
fn attr(id: u16, len: u16, data: u64) -> Attr {
    let flags = wire::MANDATORY;
    Attr {
        id,
        len,
        flags,
        reserved: 0,
        data,
    }
}

fn message(object: u16, method: u16, driver: u32, attrs: &[Attr]) -> Message {
    let head = Head {
        length: (24 + 16 * attrs.len()) as u16,
        object,
        method,
        count: attrs.len() as u16,
        reserved1: 0,
        driver,
        reserved2: 0,
    };
    let mut message = Message {
        head,
        ..Message::default()
    };
    message.attrs[..attrs.len()].copy_from_slice(attrs);
    message
}

/// The attributes of REG_MR as libibverbs sends them.
fn reg_mr() -> Vec<Attr> {
    vec![
        attr(wire::ATTR_WRITE_CMD, 8, 9),
        attr(wire::ATTR_CORE_IN, 40, 0x1000),
        attr(wire::ATTR_CORE_OUT, 12, 0x2000),
    ]
}

/// A `struct ib_uverbs_reg_mr`.
fn core(start: u64, length: u64, iova: u64, pd: u32, access: u32) -> [u8; CORE] {
    let mut bytes = [0; CORE];
    let words = [
        0x2000,
        start,
        length,
        iova,
        u64::from(access) << 32 | u64::from(pd),
    ];
    for (n, word) in words.iter().enumerate() {
        bytes[n * 8..n * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn invoke(attrs: &[Attr]) -> Message {
    message(0, 0, RXE, attrs)
}

const MEMORY: Register = Register {
    pd: 3,
    start: 0x10_0000,
    length: 0x2345,
    access: 7,
};

fn plain() -> [u8; CORE] {
    core(MEMORY.start, MEMORY.length, MEMORY.start, 3, 7)
}

#[test]
fn layouts_and_numbers_are_as_in_the_headers() {
    let mut all = layout!("struct ib_uverbs_ioctl_hdr", Head, Some(Message::HEAD),
        length, object as "object_id", method as "method_id", count as "num_attrs",
        reserved1, driver as "driver_id", reserved2);
    all.push(format!("UVERBS_ATTR_F_VALID_OUTPUT == {VALID_OUTPUT}"));
    check("rdma/rdma_user_ioctl_cmds.h", &all);
    let all = [
        ("UVERBS_OBJECT_PD", OBJECT_PD),
        ("UVERBS_OBJECT_MR", OBJECT_MR),
        ("UVERBS_OBJECT_CQ", OBJECT_CQ),
        ("UVERBS_OBJECT_QP", OBJECT_QP),
        ("UVERBS_OBJECT_SRQ", OBJECT_SRQ),
        ("UVERBS_OBJECT_WQ", OBJECT_WQ),
        ("UVERBS_METHOD_CQ_CREATE", METHOD_CREATE),
        ("UVERBS_METHOD_QP_CREATE", METHOD_CREATE),
        ("UVERBS_METHOD_SRQ_CREATE", METHOD_CREATE),
        ("UVERBS_METHOD_WQ_CREATE", METHOD_CREATE),
        ("UVERBS_METHOD_QP_DESTROY", METHOD_QP_DESTROY),
        ("UVERBS_ATTR_CREATE_QP_HANDLE", CREATE_QP_HANDLE),
        ("UVERBS_ATTR_CREATE_QP_PD_HANDLE", CREATE_QP_PD_HANDLE),
        ("UVERBS_ATTR_DESTROY_QP_HANDLE", 0),
        ("UVERBS_METHOD_PD_DESTROY", METHOD_PD_DESTROY),
        ("UVERBS_METHOD_DM_MR_REG", METHOD_DM_MR_REG),
        ("UVERBS_METHOD_MR_DESTROY", METHOD_MR_DESTROY),
        ("UVERBS_METHOD_QUERY_MR", METHOD_QUERY_MR),
        ("UVERBS_METHOD_REG_DMABUF_MR", METHOD_REG_DMABUF_MR),
        ("UVERBS_METHOD_REG_DMABUF_MR + 1", METHOD_REG_MR),
        ("UVERBS_ATTR_DESTROY_PD_HANDLE", 0),
        ("UVERBS_ATTR_DESTROY_MR_HANDLE", 0),
        ("UVERBS_ATTR_QUERY_MR_HANDLE", 0),
        ("UVERBS_ATTR_QUERY_MR_RESP_LKEY", 1),
        ("UVERBS_ATTR_QUERY_MR_RESP_RKEY", 2),
        ("UVERBS_ATTR_QUERY_MR_RESP_LENGTH", 3),
        ("UVERBS_ATTR_QUERY_MR_RESP_IOVA", 4),
    ];
    let all = all.map(|(name, n)| format!("{name} == {n}"));
    check("rdma/ib_user_ioctl_cmds.h", &all);
    check(
        "rdma/ib_user_verbs.h",
        &[
            format!("IB_USER_VERBS_CMD_REREG_MR == {REREG_MR}"),
            format!("IB_USER_VERBS_CMD_CREATE_AH == {CREATE_AH}"),
            format!("IB_USER_VERBS_CMD_ALLOC_MW == {ALLOC_MW}"),
            format!("IB_USER_VERBS_CMD_CREATE_CQ == {CREATE_CQ}"),
            format!("IB_USER_VERBS_CMD_CREATE_QP == {CREATE_QP}"),
            format!("IB_USER_VERBS_CMD_DESTROY_QP == {DESTROY_QP}"),
            format!("sizeof(struct ib_uverbs_destroy_qp) == {DESTROYED_QP}"),
            "offsetof(struct ib_uverbs_destroy_qp, qp_handle) == 8".into(),
            format!("IB_USER_VERBS_CMD_CREATE_SRQ == {CREATE_SRQ}"),
            format!("IB_USER_VERBS_CMD_CREATE_XSRQ == {CREATE_XSRQ}"),
            format!("IB_USER_VERBS_CMD_FLAG_EXTENDED == {EXTENDED}"),
            format!("sizeof(struct ib_uverbs_reg_mr) == {REG_MR}"),
            format!("sizeof(struct ib_uverbs_reg_mr_resp) == {REG_MR_ANSWER}"),
            format!("sizeof(struct ib_uverbs_rereg_mr) == {CORE}"),
            "offsetof(struct ib_uverbs_rereg_mr, mr_handle) == 8".into(),
        ],
    );
}

#[test]
fn a_head_that_the_kernel_refuses_is_not_looked_at() {
    let good = invoke(&reg_mr());
    assert_eq!(good.rest(), Some(48));
    let changed = |f: fn(&mut Head)| {
        let mut bad = good;
        f(&mut bad.head);
        bad.rest()
    };
    assert_eq!(changed(|h| h.length += 1), None);
    assert_eq!(changed(|h| h.count += 1), None);
    assert_eq!(changed(|h| h.reserved1 = 1), None);
    assert_eq!(changed(|h| h.reserved2 = 1), None);
    assert_eq!(changed(|h| h.object = 3), None);
    assert_eq!(changed(|h| h.method = 5), None);
    let many = |n: u16| (n, 24 + 16 * n);
    let most = MOST as u16;
    let changed = |n| {
        let mut other = good;
        (other.head.count, other.head.length) = many(n);
        other.rest()
    };
    assert!(changed(most).is_some() && changed(most + 1).is_none());
}

#[test]
fn memory_is_registered_by_the_write_command() {
    let message = invoke(&reg_mr());
    assert_eq!(message.core(), Some((0x1000, 40)));
    assert_eq!(message.request(&plain()), Request::Register(MEMORY));
    assert_eq!(message.driver(), Driver::RXE);
    // Another address for peers.
    let shifted = core(MEMORY.start, MEMORY.length, 0x20_0000, 3, 7);
    assert_eq!(message.request(&shifted), Request::Registration);
}

#[test]
fn what_is_not_known_of_a_registration_is_the_kernels() {
    let is_passed = |change: &dyn Fn(&mut Vec<Attr>)| {
        let mut attrs = reg_mr();
        change(&mut attrs);
        invoke(&attrs).request(&plain()) == Request::Registration
    };
    assert!(!is_passed(&|_| ()));
    assert!(is_passed(&|a| a[1].len = 48));
    assert!(is_passed(&|a| a[2].len = 16));
    assert!(is_passed(&|a| a[2].len = 8));
    assert!(is_passed(&|a| a[2].reserved = 1));
    assert!(is_passed(&|a| a[1].flags = 4));
    assert!(is_passed(&|a| a.truncate(2)));
    assert!(is_passed(&|a| a.push(attr(7, 0, 0))));
    assert!(is_passed(&|a| {
        let twice = a[1];
        a.push(twice);
    }));
    assert!(is_passed(&|a| a.push(attr(wire::ATTR_DRIVER_IN, 8, 0))));
    assert!(is_passed(&|a| a.push(attr(
        wire::ATTR_DRIVER_OUT,
        8,
        0x3000
    ))));
    // A command that is named twice, or by fewer bytes, is nobody's.
    let mut attrs = reg_mr();
    attrs[0].len = 4;
    assert_eq!(invoke(&attrs).request(&plain()), Request::Other);
    attrs[0] = attr(wire::ATTR_WRITE_CMD, 8, 2);
    assert_eq!(invoke(&attrs).request(&plain()), Request::Other);
}

#[test]
fn driver_data_that_say_ordinary_memory_are_known() {
    let with = |driver: Driver, sent: u64, answered: bool| {
        let mut attrs = reg_mr();
        attrs.push(attr(wire::ATTR_DRIVER_IN, 8, sent));
        if answered {
            attrs.push(attr(wire::ATTR_DRIVER_OUT, 8, 0x3000));
        }
        message(0, 0, driver.0, &attrs).request(&plain()) == Request::Register(MEMORY)
    };
    assert!(with(Driver::IRDMA, 0, false));
    // IRDMA_MEMREG_TYPE_QP, IRDMA_MEMREG_TYPE_CQ, and pages of rings.
    assert!(!with(Driver::IRDMA, 1, false));
    assert!(!with(Driver::IRDMA, 2, false));
    assert!(!with(Driver::IRDMA, 1 << 16, false));
    assert!(!with(Driver::IRDMA, 0, true));
    assert!(with(Driver::SIW, 0x5a, true));
    assert!(!with(Driver::SIW, 0x15a, true));
    assert!(!with(Driver::SIW, 0x5a, false));
    assert!(!with(Driver::MLX5, 0, false));
}

/// The attributes of UVERBS_METHOD_REG_MR.
fn by_method() -> Vec<Attr> {
    vec![
        attr(REG_MR_HANDLE, 0, 0),
        attr(REG_MR_RESP_LKEY, 4, 0x2000),
        attr(REG_MR_RESP_RKEY, 4, 0x2004),
        attr(REG_MR_PD_HANDLE, 0, 3),
        attr(REG_MR_IOVA, 8, MEMORY.start),
        attr(REG_MR_LENGTH, 8, MEMORY.length),
        attr(REG_MR_ADDR, 8, MEMORY.start),
        attr(REG_MR_ACCESS_FLAGS, 4, 7),
    ]
}

#[test]
fn memory_is_registered_by_a_method_of_its_own() {
    let of = |attrs: &[Attr]| message(OBJECT_MR, METHOD_REG_MR, RXE, attrs).request(&[0; CORE]);
    assert_eq!(of(&by_method()), Request::Register(MEMORY));
    let mut wide = by_method();
    wide[7].len = 8;
    assert_eq!(of(&wide), Request::Register(MEMORY));
    let is_passed = |change: &dyn Fn(&mut Vec<Attr>)| {
        let mut attrs = by_method();
        change(&mut attrs);
        of(&attrs) == Request::Registration
    };
    for n in 0..by_method().len() {
        assert!(is_passed(&|a| _ = a.remove(n)), "without {n}");
    }
    assert!(is_passed(&|a| a[4].data += 0x1000));
    assert!(is_passed(&|a| (a[7].len, a[7].data) = (8, 1 << 32)));
    // A handle for DMA; a file and its offset.
    for id in [2, 7, 8] {
        assert!(is_passed(&|a| a.push(attr(id, 0, 1))), "with {id}");
    }
    // Device memory and dmabufs have methods of their own.
    for method in [METHOD_DM_MR_REG, METHOD_REG_DMABUF_MR] {
        let other = message(OBJECT_MR, method, RXE, &by_method());
        assert_eq!(other.request(&[0; CORE]), Request::Registration);
    }
}

const KEYS: Mr = Mr {
    handle: MrHandle(5),
    lkey: 0x0102_0304,
    rkey: 0x0506_0708,
};
const OURS: u32 = 0x8000_0009;

/// What is written where.
fn written(answer: &Answer) -> Vec<(u64, Vec<u8>)> {
    let all = answer.iter().flatten();
    all.map(|w| (w.at, w.bytes().to_vec())).collect()
}

#[test]
fn the_write_command_is_answered_as_by_the_kernel() {
    let answer = invoke(&reg_mr()).answer(AT, OURS, &KEYS);
    let core = vec![9, 0, 0, 0x80, 4, 3, 2, 1, 8, 7, 6, 5];
    // The flags of the third attribute.
    let expected = vec![(0x2000, core.clone()), (AT + 24 + 32 + 4, vec![3, 0])];
    assert_eq!(written(&answer), expected);
    let mut attrs = reg_mr();
    attrs.push(attr(wire::ATTR_DRIVER_IN, 8, 1));
    attrs.push(attr(wire::ATTR_DRIVER_OUT, 8, 0x3000));
    let siw = message(0, 0, Driver::SIW.0, &attrs).answer(AT, OURS, &KEYS);
    let more = [
        (0x3000, vec![4, 3, 2, 1, 0, 0, 0, 0]),
        (AT + 24 + 64 + 4, vec![3, 0]),
    ];
    assert_eq!(written(&siw), [expected, more.to_vec()].concat());
}

#[test]
fn the_method_is_answered_as_by_the_kernel() {
    let message = message(OBJECT_MR, METHOD_REG_MR, RXE, &by_method());
    let expected = [
        (AT + 24 + 8, vec![9, 0, 0, 0x80, 0, 0, 0, 0]),
        (0x2000, vec![4, 3, 2, 1]),
        (AT + 24 + 16 + 4, vec![3, 0]),
        (0x2004, vec![8, 7, 6, 5]),
        (AT + 24 + 32 + 4, vec![3, 0]),
    ];
    assert_eq!(written(&message.answer(AT, OURS, &KEYS)), expected);
}

#[test]
fn a_region_is_described_as_by_the_kernel() {
    let mut attrs = vec![
        attr(0, 0, OURS.into()),
        attr(1, 4, 0x2000),
        attr(2, 4, 0x2004),
        attr(3, 8, 0x2008),
        attr(4, 8, 0x2010),
    ];
    let described = |attrs: &[Attr]| {
        let message = message(OBJECT_MR, METHOD_QUERY_MR, RXE, attrs);
        let answer = message.described(AT, &KEYS, 0x3000, 0x7000);
        answer.map(|answer| written(&answer))
    };
    let flags = |n: u64| (AT + 24 + 16 * n + 4, vec![3, 0]);
    let expected = vec![
        (0x2000, vec![4, 3, 2, 1]),
        flags(1),
        (0x2004, vec![8, 7, 6, 5]),
        flags(2),
        (0x2008, vec![0, 0x30, 0, 0, 0, 0, 0, 0]),
        flags(3),
        (0x2010, vec![0, 0x70, 0, 0, 0, 0, 0, 0]),
        flags(4),
    ];
    assert_eq!(described(&attrs), Some(expected.clone()));
    // Older libraries do not ask for the last one.
    assert_eq!(described(&attrs[..4]), Some(expected[..6].to_vec()));
    // The kernel knows what follows from anything else.
    assert_eq!(described(&attrs[..3]), None);
    attrs.push(attr(5, 8, 0x2018));
    assert_eq!(described(&attrs), None);
    attrs[5] = attr(1, 4, 0x2018);
    assert_eq!(described(&attrs), None);
    attrs[4].len = 4;
    assert_eq!(described(&attrs[..5]), None);
}

#[test]
fn objects_are_named_in_both_ways() {
    let none = [0; CORE];
    let by = |cmd: u64| {
        let attrs = [
            attr(wire::ATTR_CORE_IN, 4, u64::from(OURS)),
            attr(wire::ATTR_WRITE_CMD, 8, cmd),
        ];
        invoke(&attrs)
    };
    assert_eq!(by(13).request(&none), Request::Deregister(OURS));
    assert_eq!(by(4).request(&none), Request::DeallocPd(OURS));
    assert_eq!(by(0).request(&none), Request::Open);
    let of = |object, method| {
        let attrs = [
            attr(0, 0, u64::from(OURS)),
            attr(1, 4, 0x2000),
            attr(2, 4, 0x2004),
        ];
        message(object, method, RXE, &attrs)
    };
    let destroy = of(OBJECT_MR, METHOD_MR_DESTROY);
    assert_eq!(destroy.request(&none), Request::Deregister(OURS));
    let query = of(OBJECT_MR, METHOD_QUERY_MR);
    assert_eq!(query.request(&none), Request::Query(OURS));
    let keys = query
        .keys(&KEYS)
        .map(|w| w.map(|w| (w.at, w.bytes().to_vec())));
    let expected = [(0x2000, vec![4, 3, 2, 1]), (0x2004, vec![8, 7, 6, 5])];
    assert_eq!(keys, expected.map(Some));
    let pd = of(OBJECT_PD, METHOD_PD_DESTROY);
    assert_eq!(pd.request(&none), Request::DeallocPd(OURS));
    for (method, request) in [
        (wire::METHOD_GET_CONTEXT, Request::Open),
        (wire::METHOD_QUERY_CONTEXT, Request::Context),
    ] {
        assert_eq!(of(0, method).request(&none), request);
    }
    // A handle that is none.
    let attrs = [attr(0, 0, 1 << 32 | u64::from(OURS))];
    let wide = message(OBJECT_MR, METHOD_MR_DESTROY, RXE, &attrs);
    assert_eq!(wide.request(&none), Request::Other);
}

#[test]
fn objects_that_are_made_are_known() {
    let none = [0; CORE];
    for (command, made) in [
        (wire::Number::AllocPd as u64, true),
        (CREATE_AH, true),
        (ALLOC_MW, true),
        (CREATE_CQ, true),
        (CREATE_CQ | EXTENDED, true),
        (CREATE_QP | EXTENDED, true),
        (CREATE_SRQ, true),
        (CREATE_XSRQ, true),
        // IB_USER_VERBS_CMD_QUERY_DEVICE and _MODIFY_QP.
        (1, false),
        (26 | EXTENDED, false),
    ] {
        let message = invoke(&[attr(wire::ATTR_WRITE_CMD, 8, command)]);
        let request = message.request(&none);
        assert_eq!(request == Request::Creation, made, "{command:#x}");
        assert!(!message.creates_by_method());
    }
    for (object, method, made) in [
        (OBJECT_CQ, METHOD_CREATE, true),
        (OBJECT_SRQ, METHOD_CREATE, true),
        (OBJECT_WQ, METHOD_CREATE, true),
        (OBJECT_CQ, 1, false),
        (OBJECT_PD, METHOD_CREATE, false),
    ] {
        let message = message(object, method, RXE, &[attr(0, 0, 0); MOST]);
        assert_eq!(message.creates_by_method(), made, "{object} {method}");
    }
}

#[test]
fn queue_pairs_are_of_a_protection_domain() {
    let none = [0; CORE];
    let mut attrs = vec![attr(7, 8, 1), attr(2, 0, 5), attr(0, 0, 9)];
    let create = message(OBJECT_QP, METHOD_CREATE, RXE, &attrs);
    assert_eq!(create.request(&none), Request::CreateQp(5));
    let place = 0x1000 + Message::HEAD + 2 * size_of::<Attr>() + offset_of!(Attr, data);
    assert_eq!(create.handle_of_qp(0x1000), Some(place as u64));
    // One of XRC has none.
    attrs.remove(1);
    let create = message(OBJECT_QP, METHOD_CREATE, RXE, &attrs);
    assert_eq!(create.request(&none), Request::Creation);
    let destroy = message(OBJECT_QP, METHOD_QP_DESTROY, RXE, &attrs[1..]);
    assert_eq!(destroy.request(&none), Request::DestroyQp(9));
    let attrs = [
        attr(wire::ATTR_CORE_IN, 16, 0x1000),
        attr(wire::ATTR_WRITE_CMD, 8, DESTROY_QP),
    ];
    let mut core = none;
    core[8] = 9;
    assert_eq!(invoke(&attrs).request(&core), Request::DestroyQp(9));
}

#[test]
fn a_message_can_be_about_another_object() {
    let mut core = [0; CORE];
    let mut destroy = message(
        OBJECT_MR,
        METHOD_MR_DESTROY,
        RXE,
        &[attr(0, 0, OURS.into())],
    );
    destroy.be_about(5, &mut core);
    assert_eq!(destroy.request(&core), Request::Deregister(5));
    let attrs = [
        attr(wire::ATTR_WRITE_CMD, 8, 13),
        attr(wire::ATTR_CORE_IN, 4, OURS.into()),
    ];
    let mut dereg = invoke(&attrs);
    dereg.be_about(5, &mut core);
    assert_eq!(dereg.request(&core), Request::Deregister(5));
    let attrs = [
        attr(wire::ATTR_WRITE_CMD, 8, REREG_MR),
        attr(wire::ATTR_CORE_IN, 48, 0x1000),
        attr(wire::ATTR_CORE_OUT, 8, 0x2000),
    ];
    core[8..12].copy_from_slice(&OURS.to_le_bytes());
    core[12] = 4;
    let asked = invoke(&attrs);
    assert_eq!(asked.core(), Some((0x1000, 48)));
    assert_eq!(asked.request(&core), Request::Change(OURS));
    let mut rereg = asked;
    rereg.be_about(5, &mut core);
    assert_eq!(rereg.request(&core), Request::Change(5));
    assert_eq!(core[12], 4);
    assert_eq!(rereg.core(), Some((core.as_ptr() as u64, 48)));
    // The kernel has written an answer, and says so.
    rereg.attrs[2].flags |= VALID_OUTPUT;
    let said: Vec<_> = rereg.said(&asked, AT).collect();
    assert_eq!(said, [Write::of(AT + 24 + 32 + 4, &[3, 0])]);
}
