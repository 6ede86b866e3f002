//! `regall peek`: reads a peer's registered memory through the bridge.

use std::io::{stdout, IsTerminal, Write};
use std::ptr::NonNull;

use anyhow::{bail, Context};
use regall_bridge::cookie::circle::Circle;
use regall_bridge::cookie::Cookie;
use regall_bridge::host::Plain;
use regall_bridge::kind::Order;
use regall_bridge::peer::Peer;
use regall_bridge::transfer::{transfer, Outcome, Way};
use regall_bridge::vector::Segment;
use regall_reader::OpenError;
use regall_sys::Errno;

pub const EXIT_CODES: &str = after_help!(
    "\
A cookie for a single use is used up by this, and at most 1 MiB is read of it.

REGALL_COPY chooses the mechanisms, as in a program with the shim.

Exit code: 0 all was read; 1 refused: some of it is not registered, must not be read, or was \
unmapped meanwhile (what could be read is printed); 2 the process could not be looked at.",
    "regall peek --hex 4711 0x7f0000001000 64",
    "regall-peek"
);

/// Refused.
const REFUSED: u8 = 1;
/// Bytes that are read at a time.
const BLOCK: u64 = 1 << 20;

#[derive(clap::Args)]
#[command(override_usage = "regall peek [--raw | --hex] PID ADDR LEN
       regall peek [--raw | --hex] --cookie COOKIE OFFSET LEN")]
pub struct Args {
    /// A process, an address in it, and how many bytes; with --cookie, an offset and how many.
    /// Decimal, or hexadecimal with 0x
    #[arg(value_name = "NUMBER", value_parser = number, num_args = 2..=3, required = true)]
    numbers: Vec<u64>,
    /// Read the memory behind this cookie, from the offset on, at most to its end
    #[arg(long, value_parser = number)]
    cookie: Option<u64>,
    /// Print the bytes as they are (the default where the output is no terminal)
    #[arg(long, conflicts_with = "hex")]
    raw: bool,
    /// Print a hexadecimal dump (the default on a terminal)
    #[arg(long)]
    hex: bool,
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|e| e.to_string())
}

pub fn peek(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    expect_cuts();
    match (args.cookie, args.numbers.as_slice()) {
        (None, &[pid, addr, len]) => peek_at(args, (pid, addr, len), out),
        (Some(cookie), &[offset, len]) => peek_by(args, Cookie(cookie), offset, len, out),
        _ => bail!("PID ADDR LEN, or --cookie COOKIE OFFSET LEN"),
    }
}

/// A directory is mapped here, whose owner can cut it short at any time: what is read then is
/// SIGBUS.
fn expect_cuts() {
    extern "C" fn cut(_: i32) {
        const SAID: &[u8] = b"regall: the directory was cut short meanwhile\n";
        // SAFETY: both may be called in a handler; so many bytes are there.
        unsafe {
            libc::write(2, SAID.as_ptr().cast(), SAID.len());
            libc::_exit(2);
        }
    }
    // SAFETY: a handler of this signature, which does nothing that is not allowed in one.
    unsafe { libc::signal(libc::SIGBUS, cut as *const () as libc::sighandler_t) };
}

/// A process's memory.
fn peek_at(
    args: &Args,
    (pid, addr, len): (u64, u64, u64),
    out: &mut impl Write,
) -> anyhow::Result<u8> {
    let pid = u32::try_from(pid).context("no such process")?;
    let peer = open(pid).with_context(|| pid.to_string())?;
    // SAFETY: just opened, and closed nowhere: the process ends soon.
    let peer = unsafe { peer.as_ref() };
    let read = |local: Segment, at| {
        let there = Segment { addr: at, ..local };
        // SAFETY: the block is ours.
        unsafe { transfer(peer, Way::Get, &[local], &[there]) }
    };
    match blocks(args, (addr, len), out, read)? {
        None => Ok(0),
        Some((at, e)) => refused(pid, at, e),
    }
}

/// A region.
fn peek_by(
    args: &Args,
    cookie: Cookie,
    offset: u64,
    len: u64,
    out: &mut impl Write,
) -> anyhow::Result<u8> {
    static CIRCLE: Circle = Circle::new();
    let order = order()?;
    let read = |local: Segment, at| {
        // SAFETY: the block is ours.
        unsafe { CIRCLE.transfer(&Plain, order, Way::Get, (cookie, at), &[local]) }
    };
    let Some((at, e)) = blocks(args, (offset, len), out, read)? else {
        return Ok(0);
    };
    let why = match e.0 {
        libc::EINVAL => "there is no such cookie, or it was used up or destroyed",
        libc::EACCES => "must not be read, by its protection",
        libc::EPERM => "is somebody else's, or no mechanism may read it (see regall doctor)",
        libc::ESTALE => "its memory was unmapped or replaced, or it was destroyed meanwhile",
        libc::EFAULT => "its memory is not registered, or can't be read",
        libc::ESRCH => "its owner has ended",
        libc::EXDEV => "its owner is in another pid namespace",
        e => return Err(std::io::Error::from_raw_os_error(e).into()),
    };
    crate::output::complain(&format!("{:#x}: at {at:#x}: {why}", cookie.0));
    Ok(REFUSED)
}

/// Prints what `read` brings, block by block; where it stopped and why, if that is too early.
fn blocks(
    args: &Args,
    (first, len): (u64, u64),
    out: &mut impl Write,
    read: impl Fn(Segment, u64) -> Outcome,
) -> anyhow::Result<Option<(u64, Errno)>> {
    let hex = args.hex || !args.raw && stdout().is_terminal();
    let mut block = vec![0; len.min(BLOCK) as usize];
    let mut at = first;
    let end = first.checked_add(len).context("the addresses wrap")?;
    while at < end {
        let len = BLOCK.min(end - at);
        let local = Segment {
            addr: block.as_mut_ptr() as u64,
            len,
        };
        let got = read(local, at);
        let good = block.get(..got.bytes as usize).unwrap_or(&[]);
        match hex {
            true => dump(at, good, out)?,
            false => out.write_all(good)?,
        }
        at += got.bytes;
        if let Err(e) = got.result {
            return Ok(Some((at, e)));
        }
        // A region's end.
        if got.bytes < len {
            break;
        }
    }
    Ok(None)
}

fn order() -> anyhow::Result<Order> {
    match std::env::var("REGALL_COPY") {
        Ok(value) => Order::parse(value.as_bytes()).context("REGALL_COPY"),
        Err(_) => Ok(Order::AUTO),
    }
}

fn open(pid: u32) -> anyhow::Result<NonNull<Peer>> {
    // One that has just been forked gets a moment.
    let found = regall_reader::published_soon(pid, || regall_reader::open(pid).map(drop));
    match Peer::open(&Plain, pid, 0, 0, order()?) {
        Ok(peer) => Ok(peer),
        Err(Errno::SRCH) => bail!("no such process"),
        Err(Errno::NOENT) => bail!(found.err().unwrap_or(OpenError::Inert)),
        Err(Errno::XDEV) => {
            bail!(
                "it is in another pid namespace: ask from there, or from outside by its pid there"
            )
        }
        Err(Errno::ACCES | Errno::PERM) => {
            bail!(found.err().unwrap_or(OpenError::Foreign))
        }
        Err(Errno::NOEXEC) => bail!("its directory is corrupt, or of another version"),
        Err(e) => Err(std::io::Error::from_raw_os_error(e.0).into()),
    }
}

/// Says why nothing could be read at `at`; the exit code.
fn refused(pid: u32, at: u64, errno: Errno) -> anyhow::Result<u8> {
    let why = match errno.0 {
        libc::EFAULT => "is not registered, or can't be read",
        libc::EACCES => "must not be read, by its protection",
        libc::ESTALE => "was unmapped or replaced meanwhile",
        libc::ESRCH => bail!("{pid}: ended meanwhile"),
        libc::EPERM => bail!("{pid}: no mechanism may read it (see regall doctor)"),
        e => return Err(std::io::Error::from_raw_os_error(e).into()),
    };
    crate::output::complain(&format!("{pid}: {at:#x} {why}"));
    Ok(REFUSED)
}

/// Sixteen bytes a line: address, bytes, and what of them is printable.
fn dump(at: u64, bytes: &[u8], out: &mut impl Write) -> std::io::Result<()> {
    for (n, line) in bytes.chunks(16).enumerate() {
        write!(out, "{:012x} ", at + 16 * n as u64)?;
        for i in 0..16 {
            match line.get(i) {
                Some(byte) => write!(out, " {byte:02x}")?,
                None => write!(out, "   ")?,
            }
        }
        let text: String = line
            .iter()
            .map(|b| match b {
                32..127 => char::from(*b),
                _ => '.',
            })
            .collect();
        writeln!(out, "  |{text}|")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_is_lined_up() {
        let mut out = Vec::new();
        dump(0x1000, b"0123456789abcdef\x00z", &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "000000001000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  |0123456789abcdef|\n\
             000000001010  00 7a                                            |.z|\n"
        );
    }

    #[test]
    fn numbers_of_both_kinds() {
        assert_eq!(number("0x1f"), Ok(31));
        assert_eq!(number("31"), Ok(31));
        assert!(number("1f").is_err() && number("").is_err());
    }
}
