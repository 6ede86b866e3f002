//! Questions to the kernel's subsystems (netlink(7)) that are answered at once.

use crate::entry::call;
use crate::errno::{Errno, Result};
use crate::file::Fd;

/// Sends `question` to the kernel by netlink `protocol`, and has the answer in `answer`; its
/// bytes. Errors: EPROTONOSUPPORT where the kernel has no such protocol; EAGAIN where no answer
/// is there when the question has been sent.
pub fn ask(protocol: i32, question: &[u8], answer: &mut [u8]) -> Result<usize> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    let socket = call!(libc::SYS_socket, libc::AF_NETLINK, kind, protocol)?;
    let socket = Fd::owned(socket as i32);
    // A socket that is bound and connected to nobody talks to the kernel.
    call!(
        libc::SYS_sendto,
        socket.raw(),
        question.as_ptr(),
        question.len(),
        0,
        0,
        0
    )?;
    let received = call!(
        libc::SYS_recvfrom,
        socket.raw(),
        answer.as_mut_ptr(),
        answer.len(),
        libc::MSG_DONTWAIT,
        0,
        0
    )?;
    match received as usize {
        0 => Err(Errno::AGAIN),
        bytes => Ok(bytes.min(answer.len())),
    }
}
