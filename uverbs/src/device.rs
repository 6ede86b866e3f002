//! A device that is opened here rather than by the application's libibverbs.

use super::channel::{ibdev_of, Channel};
use regall_sys::text::Text;
use regall_sys::{file, file::Fd, Errno, Result};

/// `uverbsN` that are looked at: the kernel counts from 0 and takes the lowest that is free.
const DEVICES: u32 = 256;

/// An open device with a context of its own. The kernel keeps its registrations
/// as long as anyone has the file open, children of fork too.
#[derive(Debug)]
pub struct Device {
    channel: Channel,
}

impl Device {
    /// Opens the device `name`, as `ibv_devices` and `rdma link` print it.
    /// Errors: ENODEV: there is none of that name; EACCES, ENOENT: its file in
    /// `/dev/infiniband` can't be opened or isn't there (containers); others are the
    /// driver's, EINVAL or EOPNOTSUPP where it wants something of its own.
    pub fn open(name: &[u8]) -> Result<Self> {
        let number = find(name).ok_or(Errno::NODEV)?;
        let path: Text<64> = Text::of(format_args!("/dev/infiniband/uverbs{number}"));
        let path = path.as_cstr().ok_or(Errno::NOENT)?;
        let fd = file::duplicate_high(Fd::open(path, libc::O_RDWR, 0)?.raw())?;
        let device = begin(fd, name);
        if device.is_err() {
            file::close(fd);
        }
        device
    }

    /// What commands go through.
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// Closes it. The kernel destroys everything that was made on it, unless a
    /// child has it open, too.
    pub fn close(self) {
        file::close(self.channel.fd());
    }
}

fn begin(fd: i32, name: &[u8]) -> Result<Device> {
    if ibdev_of(fd, &mut [0; 64])? != name {
        // A container's /dev may have other devices under these names.
        return Err(Errno::NODEV);
    }
    let channel = Channel::adopt(fd)?;
    channel.get_context()?;
    Ok(Device { channel })
}

/// The number of the uverbs device of that name.
fn find(name: &[u8]) -> Option<u32> {
    (0..DEVICES).find(|number| {
        let path: Text<64> = Text::of(format_args!(
            "/sys/class/infiniband_verbs/uverbs{number}/ibdev"
        ));
        let mut buf = [0; 64];
        path.as_cstr()
            .and_then(|path| file::read_small(path, &mut buf).ok())
            .is_some_and(|found| found.strip_suffix(b"\n").unwrap_or(found) == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_device_has_an_impossible_name() {
        assert_eq!(find(b"no such/device"), None);
        let error = Device::open(b"").err();
        assert_eq!(error, Some(Errno::NODEV));
    }
}
