//! An open device, and registrations through it.

use crate::driver::Driver;
use crate::wire::{self, perform, Answer, DriverData, Number, Way};
use regall_directory::planted;
use regall_directory::vocab::Access;
use regall_sys::text::Text;
use regall_sys::{file, Errno, Result};

/// The kernel's number for registered memory, on one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct MrHandle(pub u32);

/// The kernel's number for a protection domain, on one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct PdHandle(pub u32);

/// Registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mr {
    /// The kernel's number for it, on this channel.
    pub handle: MrHandle,
    /// Key for local access.
    pub lkey: u32,
    /// Key for remote access.
    pub rkey: u32,
}

/// What a device can do, in its own words (`ibv_query_device_ex(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Registrations at a time, of all processes together.
    pub max_mr: u32,
    /// Bytes of one registration.
    pub max_mr_size: u64,
    /// Page sizes, a bit each.
    pub page_size_cap: u64,
    /// Protection domains at a time.
    pub max_pd: u32,
    /// `enum ibv_odp_general_cap_bits`.
    pub odp_general: u64,
    /// `enum ibv_odp_transport_cap_bits` of reliable connections.
    pub odp_rc: u32,
}

impl Limits {
    /// Explicit on-demand paging: [`Access::ON_DEMAND`].
    pub fn odp(&self) -> bool {
        self.odp_general & 1 != 0
    }

    /// Implicit on-demand paging: one registration for all memory there will be,
    /// [`Channel::reg_mr`] of (0, u64::MAX).
    pub fn implicit_odp(&self) -> bool {
        self.odp() && self.odp_general & 2 != 0
    }
}

/// An open uverbs device, and how it is talked to. Does not own its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    fd: i32,
    /// The device's number.
    device: u64,
    way: Way,
    optional: bool,
}

impl Channel {
    /// Finds out how to talk to the open device `fd`: one ioctl for each driver
    /// number up to the right one (14 for rxe). Nothing is changed by it.
    /// Errors: ENOTTY if it is no uverbs device, ENODEV for a driver that is not
    /// known by any number here.
    pub fn adopt(fd: i32) -> Result<Self> {
        for number in Driver::NUMBERS {
            match wire::greet(fd, number) {
                Errno::INVAL => (),
                wire::PROTONOSUPPORT | wire::NOTTY => return Self::by_write(fd),
                wire::NOSPC => {
                    return Ok(Self {
                        fd,
                        device: file::stat_fd(fd)?.rdev,
                        way: Way::Ioctl { driver: number },
                        optional: wire::knows_query_context(fd, number),
                    })
                }
                other => return Err(other),
            }
        }
        Err(Errno::NODEV)
    }

    /// The same for kernels before 4.20, and for tests: by write(2). What is not a
    /// uverbs device for certain must never be written to.
    /// Errors: ENOTTY.
    pub fn by_write(fd: i32) -> Result<Self> {
        ibdev_of(fd, &mut [0; 64]).map_err(|_| wire::NOTTY)?;
        let device = file::stat_fd(fd)?.rdev;
        Ok(Self {
            fd,
            device,
            way: Way::Write { device },
            optional: false,
        })
    }

    /// The device's number, as `st_rdev` has it.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// The same device by another descriptor.
    pub fn by(&self, fd: i32) -> Self {
        Self { fd, ..*self }
    }

    /// The descriptor.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// The device's driver; 0 where it can't be told.
    pub fn driver(&self) -> Driver {
        match self.way {
            Way::Ioctl { driver } => Driver(driver),
            Way::Write { .. } => Driver(0),
        }
    }

    /// Gets a file that was just opened its context, without which nothing else
    /// works on it. Errors: EINVAL if it has one.
    pub(crate) fn get_context(&self) -> Result<()> {
        let data = self.driver().context_data();
        if let Way::Ioctl { driver } = self.way {
            match wire::get_context(driver, self.fd, data) {
                Err(wire::PROTONOSUPPORT) => (),
                other => return other,
            }
        }
        let mut answer = Answer::new(wire::ContextAnswer {
            async_fd: -1,
            num_comp_vectors: 0,
        });
        let core = wire::Plain {
            response: answer.address(),
        };
        let number = Number::GetContext;
        perform(self.way, self.fd, number, core, &mut answer, data)?;
        // Nobody will read events of a context that has no queues.
        file::close(answer.core.async_fd);
        Ok(())
    }

    /// Allocates a protection domain; its handle.
    /// Errors: ENOMEM and what the device has for too many.
    pub fn alloc_pd(&self) -> Result<PdHandle> {
        let mut answer = Answer::new(wire::Handle::default());
        let core = wire::Plain {
            response: answer.address(),
        };
        let data = self.driver().pd_data();
        perform(self.way, self.fd, Number::AllocPd, core, &mut answer, data)?;
        Ok(PdHandle(answer.core.handle))
    }

    /// Gives a protection domain back.
    /// Errors: EBUSY while something is registered in it, ENOENT: no such PD.
    pub fn dealloc_pd(&self, pd: PdHandle) -> Result<()> {
        self.destroy(Number::DeallocPd, pd.0)
    }

    /// Registers `length` bytes at `start` in the protection domain `pd`, under
    /// their own addresses, for [`access`]. The pages are populated, pinned and
    /// counted in VmPin, unless it is ON_DEMAND. Optional flags are left out where
    /// the kernel is too old to ignore them itself (as `ibv_reg_mr_iova2` does).
    ///
    /// Errors: EFAULT: some of it is not mapped, or not with the access wanted;
    /// ENOMEM: beyond RLIMIT_MEMLOCK; EPERM: that is 0; ENOENT: no such PD; EINVAL:
    /// flags (ON_DEMAND on a device without), a range that is empty or beyond the
    /// address space, or (rxe) too many MRs; EBADF: the descriptor was closed, ENOTTY:
    /// and is another file's now.
    pub fn reg_mr(&self, pd: PdHandle, start: u64, length: u64, access: Access) -> Result<Mr> {
        let kept = if self.optional {
            access
        } else {
            access.without(Access::OPTIONAL)
        };
        let mut answer = Answer::new(wire::RegMrAnswer::default());
        let core = wire::RegMr {
            response: answer.address(),
            start,
            length,
            hca_va: start,
            pd_handle: pd.0,
            access_flags: kept.bits(),
        };
        let wanted = self.driver().memory_data();
        let data = planted!("driver-data-not-sent", DriverData::default(), wanted);
        perform(self.way, self.fd, Number::RegMr, core, &mut answer, data)?;
        Ok(Mr {
            handle: MrHandle(answer.core.mr_handle),
            lkey: answer.core.lkey,
            rkey: answer.core.rkey,
        })
    }

    /// Deregisters. The pages are unpinned when it returns.
    /// Errors: ENOENT: no such MR on this channel; EBUSY: memory windows are
    /// bound to it; EIO: the device is gone, and the registration with it.
    pub fn dereg_mr(&self, handle: MrHandle) -> Result<()> {
        self.destroy(Number::DeregMr, handle.0)
    }

    /// Whether the kernel takes this memory: registers it and lets go at once.
    /// Which kinds it takes differs by kernel (facts: read-only text, PROT_NONE,
    /// shared files), so one page of each is tried at start-up.
    /// Errors: [`Channel::reg_mr`]'s.
    pub fn try_reg(&self, pd: PdHandle, start: u64, length: u64, access: Access) -> Result<()> {
        self.dereg_mr(self.reg_mr(pd, start, length, access)?.handle)
    }

    fn destroy(&self, number: Number, handle: u32) -> Result<()> {
        let core = wire::Handle { handle };
        let data = DriverData::default();
        perform(self.way, self.fd, number, core, &mut Answer::new(()), data)
    }

    /// What the device can do. On kernels before 4.20 without word on on-demand
    /// paging.
    pub fn query_device(&self) -> Result<Limits> {
        match self.way {
            Way::Ioctl { .. } => self.query_extended(),
            Way::Write { .. } => self.query_plain(),
        }
    }

    fn query_extended(&self) -> Result<Limits> {
        let mut answer = Answer::new(wire::DeviceAnswerEx::default());
        let core = wire::QueryDeviceEx::default();
        let data = DriverData::default();
        let number = Number::QueryDeviceEx;
        perform(self.way, self.fd, number, core, &mut answer, data)?;
        let ex = &answer.core;
        let mut limits = limits_of(&ex.base);
        limits.odp_general = ex.odp_general;
        limits.odp_rc = ex.odp_rc;
        Ok(limits)
    }

    fn query_plain(&self) -> Result<Limits> {
        let mut answer = Answer::new(wire::DeviceAnswer::default());
        let core = wire::Plain {
            response: answer.address(),
        };
        let data = DriverData::default();
        let number = Number::QueryDevice;
        perform(self.way, self.fd, number, core, &mut answer, data)?;
        Ok(limits_of(&answer.core))
    }
}

fn limits_of(answer: &wire::DeviceAnswer) -> Limits {
    Limits {
        max_mr: answer.max_mr,
        max_mr_size: answer.max_mr_size,
        page_size_cap: answer.page_size_cap,
        max_pd: answer.max_pd,
        odp_general: 0,
        odp_rc: 0,
    }
}

/// The name (`mlx5_0`, `rxe0`) of the device that is open as `fd`.
/// Errors: ENOENT if that is not a uverbs device.
pub fn ibdev_of(fd: i32, buf: &mut [u8; 64]) -> Result<&[u8]> {
    let stat = file::stat_fd(fd)?;
    if stat.mode & libc::S_IFMT != libc::S_IFCHR {
        return Err(Errno::NOENT);
    }
    let (major, minor) = (libc::major(stat.rdev), libc::minor(stat.rdev));
    let path: Text<64> = Text::of(format_args!("/sys/dev/char/{major}:{minor}/ibdev"));
    let name = file::read_small(path.as_cstr().ok_or(Errno::NOENT)?, buf)?;
    Ok(name.strip_suffix(b"\n").unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::headers::check;

    #[test]
    fn flags_and_drivers_are_as_in_the_headers() {
        let flags = [
            ("LOCAL_WRITE", Access::LOCAL_WRITE),
            ("REMOTE_WRITE", Access::REMOTE_WRITE),
            ("REMOTE_READ", Access::REMOTE_READ),
            ("REMOTE_ATOMIC", Access::REMOTE_ATOMIC),
            ("MW_BIND", Access::MW_BIND),
            ("ZERO_BASED", Access::ZERO_BASED),
            ("ON_DEMAND", Access::ON_DEMAND),
            ("HUGETLB", Access::HUGETLB),
            ("RELAXED_ORDERING", Access::RELAXED_ORDERING),
            ("OPTIONAL_RANGE", Access::OPTIONAL),
        ];
        let drivers = [
            ("MLX5", Driver::MLX5),
            ("IRDMA", Driver::IRDMA),
            ("RXE", Driver::RXE),
            ("EFA", Driver::EFA),
            ("SIW", Driver::SIW),
        ];
        let flags = flags.map(|(name, bit)| format!("IB_UVERBS_ACCESS_{name} == {}", bit.bits()));
        let drivers = drivers.map(|(name, id)| format!("RDMA_DRIVER_{name} == {}", id.0));
        check(
            "rdma/ib_user_ioctl_verbs.h",
            &[flags.as_slice(), drivers.as_slice()].concat(),
        );
    }

    #[test]
    fn what_is_no_device_is_never_adopted() {
        use std::os::fd::AsRawFd;
        let path = std::env::temp_dir().join(format!("regall-uverbs-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        assert_eq!(Channel::adopt(file.as_raw_fd()), Err(wire::NOTTY));
        assert_eq!(Channel::by_write(file.as_raw_fd()), Err(wire::NOTTY));
        assert_eq!(file.metadata().unwrap().len(), 0);
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Channel::adopt(null.as_raw_fd()), Err(wire::NOTTY));
        assert_eq!(Channel::adopt(-1), Err(Errno::BADF));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_descriptor_that_was_replaced_is_not_written_to() {
        use std::os::fd::AsRawFd;
        let path = std::env::temp_dir().join(format!("regall-replaced-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        let channel = Channel {
            fd: file.as_raw_fd(),
            device: 0xe7c0,
            way: Way::Write { device: 0xe7c0 },
            optional: false,
        };
        let bad = Errno::BADF;
        assert_eq!(channel.alloc_pd(), Err(bad));
        assert_eq!(
            channel.reg_mr(PdHandle(0), 0x1000, 0x1000, Access::NONE),
            Err(bad)
        );
        assert_eq!(channel.dereg_mr(MrHandle(0)), Err(bad));
        assert_eq!(channel.query_device(), Err(bad));
        assert_eq!(file.metadata().unwrap().len(), 0);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn on_demand_paging_is_read_from_its_bits() {
        let mut limits = limits_of(&wire::DeviceAnswer::default());
        assert!(!limits.odp() && !limits.implicit_odp());
        limits.odp_general = 1;
        assert!(limits.odp() && !limits.implicit_odp());
        limits.odp_general = 3;
        assert!(limits.implicit_odp());
    }
}
