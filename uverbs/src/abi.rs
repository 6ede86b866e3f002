//! The structures that libibverbs shares with programs, as far as they are looked
//! at here. Source: `<infiniband/verbs.h>`, unchanged since libibverbs 1.0 (they
//! can't change: programs reach into them through inline functions).
//!
//! The tests hold them against the installed headers by compiling assertions made
//! of this file's own offsets, so no number is written down twice. The package
//! ibverbs-sys would do the same, at the price of cmake, libclang and 36 s.

use super::channel::{MrHandle, PdHandle};
use core::ffi::c_void;

/// Function pointers at the start of a context, most of them only placeholders.
const CONTEXT_OPS: usize = 32;
/// Where `post_srq_recv` stands among them.
pub const POST_SRQ_RECV: usize = 20;
/// `post_send`.
pub const POST_SEND: usize = 25;
/// `post_recv`.
pub const POST_RECV: usize = 26;

/// `struct ibv_context`: an open device.
#[repr(C)]
pub struct Context {
    /// `struct ibv_device`.
    pub device: *mut c_void,
    /// `struct ibv_context_ops`.
    pub ops: [*mut c_void; CONTEXT_OPS],
    /// The descriptor of `/dev/infiniband/uverbsN` that commands go to.
    pub cmd_fd: i32,
    /// The descriptor that asynchronous events come from.
    pub async_fd: i32,
    /// Completion vectors.
    pub num_comp_vectors: i32,
    /// libibverbs' own.
    pub mutex: libc::pthread_mutex_t,
    /// All ones where this is the tail of a `struct verbs_context`.
    pub abi_compat: *mut c_void,
}

/// `struct ibv_pd`: a protection domain.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pd {
    /// The device that it is of.
    pub context: *mut Context,
    /// The kernel's number for it, per `cmd_fd`.
    pub handle: PdHandle,
}

/// `struct ibv_mr`: registered memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mr {
    /// The device.
    pub context: *mut Context,
    /// The protection domain.
    pub pd: *mut Pd,
    /// First byte.
    pub addr: *mut c_void,
    /// Bytes.
    pub length: usize,
    /// The kernel's number for it, per `cmd_fd`.
    pub handle: MrHandle,
    /// Key for local access.
    pub lkey: u32,
    /// Key for remote access.
    pub rkey: u32,
}

/// `struct verbs_mr`: what providers take a `struct ibv_mr` for (`bind_mw` of
/// mlx5 reads `access`). Source: rdma-core's private `libibverbs/driver.h`, since
/// version 19 (2018); no header is installed that a test could hold it against,
/// so it is looked at in memory that the library filled.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VerbsMr {
    /// The public part.
    pub mr: Mr,
    /// `enum ibv_mr_type`; 0: ordinary memory.
    pub kind: u32,
    /// The access flags that it was registered with.
    pub access: i32,
}

/// `struct ibv_mw`: a memory window.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mw {
    /// The device.
    pub context: *mut Context,
    /// The protection domain.
    pub pd: *mut Pd,
    /// Key for remote access.
    pub rkey: u32,
    /// The kernel's number for it, per `cmd_fd`.
    pub handle: u32,
    /// 1 or 2.
    pub kind: u32,
}

/// The descriptor of an open device that commands go to; `None` for NULL, and for
/// a context without one (-1: mlx5 over VFIO, where no kernel is in between).
///
/// # Safety
/// `context` is NULL or a `struct ibv_context *` that was not closed.
pub unsafe fn fd_of(context: *const c_void) -> Option<i32> {
    // SAFETY: by the contract above.
    let context = unsafe { context.cast::<Context>().as_ref() }?;
    (context.cmd_fd >= 0).then_some(context.cmd_fd)
}

/// The kernel's number for a protection domain; `None` for NULL.
///
/// # Safety
/// `pd` is NULL or a `struct ibv_pd *` that was not deallocated.
pub unsafe fn handle_of(pd: *const c_void) -> Option<PdHandle> {
    // SAFETY: by the contract above.
    unsafe { pd.cast::<Pd>().as_ref() }.map(|pd| pd.handle)
}

/// The device that a protection domain is of: a `struct ibv_context *`, NULL for NULL.
///
/// # Safety
/// As [`handle_of`]'s.
pub unsafe fn context_of(pd: *const c_void) -> *const c_void {
    // SAFETY: by the contract above.
    unsafe { pd.cast::<Pd>().as_ref() }.map_or(core::ptr::null(), |pd| pd.context.cast())
}

#[cfg(test)]
pub(super) mod headers {
    //! Assertions of this crate's offsets, compiled with the system's headers.

    use std::io::Write;
    use std::process::{Command, Stdio};

    /// Compiles `asserts` (C expressions) after `#include <header>`; says so and
    /// goes on where there is no compiler or no such header.
    pub fn check(header: &str, asserts: &[String]) {
        let mut source = format!("#include <stddef.h>\n#include <{header}>\n");
        if !compiles(&source) {
            println!("skipped: no C compiler, or no <{header}>");
            return;
        }
        for assert in asserts {
            source.push_str(&format!("_Static_assert({assert}, \"as in Rust\");\n"));
        }
        assert!(compiles(&source), "<{header}> differs:\n{source}");
    }

    fn compiles(source: &str) -> bool {
        let Ok(mut child) = Command::new("cc")
            .args(["-std=gnu11", "-fsyntax-only", "-x", "c", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
        else {
            return false;
        };
        let mut stdin = child.stdin.take().expect("piped");
        let _ = stdin.write_all(source.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().expect("a child of ours");
        print!("{}", String::from_utf8_lossy(&output.stderr));
        output.status.success()
    }

    /// The size of `$rust` and the offset and size of each field, as C expressions.
    macro_rules! layout {
        ($c:literal, $rust:ty, $size:expr, $($field:ident $(as $theirs:literal)?),*) => {{
            let size: Option<usize> = $size;
            let mut all = Vec::new();
            if let Some(size) = size {
                all.push(format!("sizeof({}) == {size}", $c));
            }
            $({
                let name = [$($theirs,)? stringify!($field)][0];
                let at = core::mem::offset_of!($rust, $field);
                let bytes = $crate::abi::headers::bytes_of(|s: &$rust| &raw const s.$field);
                all.push(format!("offsetof({}, {name}) == {at}", $c));
                all.push(format!("sizeof((({} *)0)->{name}) == {bytes}", $c));
            })*
            all
        }};
    }
    pub(crate) use layout;

    /// The size of the field that `_of` points at.
    pub fn bytes_of<S, F>(_of: fn(&S) -> *const F) -> usize {
        size_of::<F>()
    }
}

#[cfg(test)]
mod tests {
    use super::headers::{check, layout};
    use super::*;

    #[test]
    fn public_structures_are_as_in_verbs_h() {
        let mut all = layout!(
            "struct ibv_context",
            Context,
            Some(size_of::<Context>()),
            device,
            ops,
            cmd_fd,
            async_fd,
            num_comp_vectors,
            mutex,
            abi_compat
        );
        all.extend(layout!(
            "struct ibv_pd",
            Pd,
            Some(size_of::<Pd>()),
            context,
            handle
        ));
        all.extend(layout!(
            "struct ibv_mr",
            Mr,
            Some(size_of::<Mr>()),
            context,
            pd,
            addr,
            length,
            handle,
            lkey,
            rkey
        ));
        all.extend(layout!(
            "struct ibv_mw",
            Mw,
            Some(size_of::<Mw>()),
            context,
            pd,
            rkey,
            handle,
            kind as "type"
        ));
        for (name, place) in [
            ("post_srq_recv", POST_SRQ_RECV),
            ("post_send", POST_SEND),
            ("post_recv", POST_RECV),
        ] {
            let at = core::mem::offset_of!(Context, ops) + place * size_of::<*mut c_void>();
            all.push(format!("offsetof(struct ibv_context, ops.{name}) == {at}"));
        }
        check("infiniband/verbs.h", &all);
    }

    #[test]
    fn nothing_comes_of_null() {
        // SAFETY: NULL is allowed.
        unsafe {
            assert_eq!(fd_of(core::ptr::null()), None);
            assert_eq!(handle_of(core::ptr::null()), None);
            assert!(context_of(core::ptr::null()).is_null());
        }
    }
}
