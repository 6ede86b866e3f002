//! Drivers of adapters, and what each wants to hear.

use crate::wire::DriverData;

/// A kernel driver, `enum rdma_driver_id`. Unknown ones stay what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Driver(pub u32);

#[allow(missing_docs)]
impl Driver {
    pub const MLX5: Self = Self(1);
    pub const IRDMA: Self = Self(9);
    pub const RXE: Self = Self(14);
    pub const EFA: Self = Self(17);
    pub const SIW: Self = Self(18);
}

impl Driver {
    /// Numbers that are tried; the last that Linux 6.1 has is 19.
    pub(crate) const NUMBERS: core::ops::Range<u32> = 0..64;

    /// What GET_CONTEXT wants to hear. Only rxe's and siw's were tried; the others are read
    /// from `drivers/infiniband/hw/*` of Linux 6.x, and hold against what rdma-core's libraries
    /// send (`tests/soak/adapters.rs`). Drivers that are not named here want nothing.
    pub(crate) fn context_data(self) -> DriverData<'static> {
        let send: &[u32] = match self {
            // struct mlx5_ib_alloc_ucontext_req: doorbell registers, and of these
            // the low-latency ones; the counts that libmlx5 began with.
            Self::MLX5 => &[16, 4],
            // struct irdma_alloc_ucontext_req: userspace_ver 5 in the fifth byte.
            Self::IRDMA => &[0, 5, 0, 0],
            // struct efa_ibv_alloc_ucontext_cmd: that send queues have a largest batch and a
            // smallest depth is understood. No queue is made here; without these bits the
            // driver refuses (EOPNOTSUPP) where the device has such bounds.
            Self::EFA => &[3, 0],
            _ => &[],
        };
        DriverData {
            send,
            answers: true,
        }
    }

    /// What ALLOC_PD wants: nothing, but several (mlx5, irdma) fail with EFAULT or
    /// EINVAL if they can't answer.
    pub(crate) fn pd_data(self) -> DriverData<'static> {
        DriverData {
            send: &[],
            answers: true,
        }
    }

    /// What REG_MR wants to hear; all others take no data. Tried with siw.
    pub(crate) fn memory_data(self) -> DriverData<'static> {
        match self {
            // struct irdma_mem_reg_req: IRDMA_MEMREG_TYPE_MEM is 0.
            Self::IRDMA => DriverData {
                send: &[0, 0],
                answers: false,
            },
            // struct siw_ureq_reg_mr: the low byte of the key.
            Self::SIW => DriverData {
                send: &[0, 0],
                answers: true,
            },
            _ => DriverData::default(),
        }
    }
}
