//! The kernel's structures of commands and answers (`rdma/ib_user_verbs.h`).

/// `struct ib_uverbs_get_context`, `_query_device`, `_alloc_pd`: they only say
/// where the answer goes.
#[repr(C)]
pub struct Plain {
    /// Address of the answer.
    pub response: u64,
}

/// `struct ib_uverbs_get_context_resp`.
#[repr(C)]
#[derive(Default)]
pub struct ContextAnswer {
    /// A descriptor that the command opened, close-on-exec.
    pub async_fd: i32,
    /// Completion vectors.
    pub num_comp_vectors: u32,
}

/// `struct ib_uverbs_alloc_pd_resp`, and as a command `struct ib_uverbs_dealloc_pd`
/// and `struct ib_uverbs_dereg_mr`.
#[repr(C)]
#[derive(Default)]
pub struct Handle {
    /// The kernel's number for the object.
    pub handle: u32,
}

/// `struct ib_uverbs_reg_mr`.
#[repr(C)]
pub struct RegMr {
    /// Address of the answer.
    pub response: u64,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// The address that it has for the adapter; the same within its page.
    pub hca_va: u64,
    /// Of the protection domain.
    pub pd_handle: u32,
    /// `enum ib_uverbs_access_flags`.
    pub access_flags: u32,
}

/// `struct ib_uverbs_reg_mr_resp`.
#[repr(C)]
#[derive(Default)]
pub struct RegMrAnswer {
    /// The kernel's number for it.
    pub mr_handle: u32,
    /// Key for local access.
    pub lkey: u32,
    /// Key for remote access.
    pub rkey: u32,
}

/// `struct ib_uverbs_query_device_resp`.
#[repr(C)]
#[derive(Default)]
#[allow(missing_docs)]
pub struct DeviceAnswer {
    pub fw_ver: u64,
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub qp_to_cqe: [u32; 7],
    pub max_mr: u32,
    pub max_pd: u32,
    pub rd_atom: [u32; 5],
    pub atomic_cap: u32,
    pub ee_to_srq_sge: [u32; 14],
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
    pub reserved: [u8; 4],
}

/// `struct ib_uverbs_ex_query_device`.
#[repr(C)]
#[derive(Default)]
pub struct QueryDeviceEx {
    comp_mask: u32,
    reserved: u32,
}

/// The first part of `struct ib_uverbs_ex_query_device_resp`; the kernel fills
/// what there is room for.
#[repr(C)]
#[derive(Default)]
#[allow(missing_docs)]
pub struct DeviceAnswerEx {
    pub base: DeviceAnswer,
    pub comp_mask: u32,
    /// Bytes that the kernel filled.
    pub response_length: u32,
    pub odp_general: u64,
    pub odp_rc: u32,
    pub odp_uc: u32,
    pub odp_ud: u32,
    pub odp_reserved: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::headers::{check, layout};

    #[test]
    fn commands_are_as_in_the_headers() {
        let mut all = Vec::new();
        for name in ["get_context", "query_device", "alloc_pd"] {
            let c = format!("struct ib_uverbs_{name}");
            all.push(format!("sizeof({c}) == {}", size_of::<Plain>()));
            all.push(format!("offsetof({c}, response) == 0"));
        }
        let handle = size_of::<Handle>();
        for name in ["alloc_pd_resp", "dealloc_pd", "dereg_mr"] {
            all.push(format!("sizeof(struct ib_uverbs_{name}) == {handle}"));
        }
        all.extend(layout!(
            "struct ib_uverbs_get_context_resp",
            ContextAnswer,
            Some(size_of::<ContextAnswer>()),
            async_fd,
            num_comp_vectors
        ));
        all.extend(layout!(
            "struct ib_uverbs_reg_mr",
            RegMr,
            Some(size_of::<RegMr>()),
            response,
            start,
            length,
            hca_va,
            pd_handle,
            access_flags
        ));
        all.extend(layout!(
            "struct ib_uverbs_reg_mr_resp",
            RegMrAnswer,
            Some(size_of::<RegMrAnswer>()),
            mr_handle,
            lkey,
            rkey
        ));
        check("rdma/ib_user_verbs.h", &all);
    }

    #[test]
    fn answers_about_devices_are_as_in_the_headers() {
        let mut all = layout!(
            "struct ib_uverbs_query_device_resp",
            DeviceAnswer,
            Some(size_of::<DeviceAnswer>()),
            max_mr_size,
            page_size_cap,
            vendor_id,
            max_mr,
            max_pd,
            atomic_cap,
            max_pkeys,
            phys_port_cnt
        );
        all.extend(layout!(
            "struct ib_uverbs_ex_query_device",
            QueryDeviceEx,
            Some(size_of::<QueryDeviceEx>()),
            comp_mask,
            reserved
        ));
        all.extend(
            layout!("struct ib_uverbs_ex_query_device_resp", DeviceAnswerEx, None,
            base, comp_mask, response_length,
            odp_general as "odp_caps.general_caps",
            odp_rc as "odp_caps.per_transport_caps.rc_odp_caps"),
        );
        let end = size_of::<DeviceAnswerEx>();
        all.push(format!(
            "offsetof(struct ib_uverbs_ex_query_device_resp, timestamp_mask) == {end}"
        ));
        check("rdma/ib_user_verbs.h", &all);
    }
}
