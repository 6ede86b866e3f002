//! What a call asks for that makes a process or a thread, and where its child goes on.
//!
//! A child that has its parent's memory is made by the call's own site: on the stack that it
//! gets there is nothing of the hook's. One with memory of its own is made in the hook, on a
//! copy of this stack, whatever stack it asks for; when it is ready it leaves for that.

use super::descriptors;
use crate::arch::{self, Frame, Landing};
use crate::patch::trampoline::{site_of_end, END_BYTES, LEFT_BYTES};
use crate::sys::{self, Errno};
use crate::thread;

/// Bytes of clone3's arguments: as first published (Linux 5.3), as known here (5.7), and at
/// the most (more is E2BIG).
const FIRST_BYTES: u64 = 64;
const KNOWN_BYTES: u64 = 88;
const MOST_BYTES: u64 = 4096;
/// Words of `struct clone_args`.
const FLAGS: usize = 0;
const STACK: usize = 5;
const STACK_BYTES: usize = 6;
const TLS: usize = 7;
const WORDS: usize = (KNOWN_BYTES / 8) as usize;
/// Thread pointers from here on are refused (EPERM).
const TLS_END: u64 = 0x7fff_ffff_f000;

/// What is asked for.
#[derive(Clone, Copy)]
pub enum Asked {
    /// A process with memory of its own.
    Own(Birth),
    /// A thread, or a process that has its parent's memory.
    Shared {
        /// It has a table of descriptors of its own, and its parent waits until it has ended or execs.
        apart: bool,
    },
    /// What only the kernel knows: arguments from its future.
    Unknown,
    /// Nothing that the kernel gives: the call is as good as any other.
    Refused,
}

/// A process to be made, with memory of its own.
#[derive(Clone, Copy)]
pub struct Birth {
    frame: Frame,
    /// clone3's arguments.
    words: [u64; WORDS],
    /// Top of the child's stack; 0: a copy of its parent's.
    pub stack: u64,
    /// The child's thread pointer; `None`: its parent's.
    pub tls: Option<u64>,
    /// Whether the parent waits until the child has ended or execs (CLONE_VFORK).
    pub vfork: bool,
    /// Whether the child shares its parent's table of descriptors (CLONE_FILES).
    pub files: bool,
}

impl Asked {
    /// What `frame` asks for, which is one of fork, clone and clone3. Notes who may have this process's
    /// table of descriptors then.
    pub fn of(frame: &Frame) -> Self {
        let asked = Self::of_call(frame);
        let shares = match asked {
            Self::Own(birth) => birth.files,
            Self::Shared { apart } => !apart,
            Self::Unknown => true,
            Self::Refused => false,
        };
        if shares {
            descriptors::share();
        }
        asked
    }

    fn of_call(frame: &Frame) -> Self {
        match frame.nr as libc::c_long {
            libc::SYS_clone => Self::of_clone(frame),
            libc::SYS_clone3 => Self::of_clone3(frame),
            _ => Self::Own(Birth::new(*frame, 0, 0)),
        }
    }

    fn of_clone(frame: &Frame) -> Self {
        // The kernel takes the lower half.
        let [flags, stack, _, _, tls, _] = frame.args;
        if flags & libc::CLONE_VM as u64 != 0 {
            return Self::shared(flags);
        }
        let mut birth = Birth::new(*frame, flags, tls);
        birth.stack = stack;
        birth.frame.args[1] = 0;
        if birth.tls.is_some() {
            birth.frame.args[0] &= !(libc::CLONE_SETTLS as u64);
        }
        Self::Own(birth)
    }

    fn shared(flags: u64) -> Self {
        let vfork = libc::CLONE_VFORK as u64;
        let apart = flags & (vfork | libc::CLONE_FILES as u64) == vfork;
        Self::Shared { apart }
    }

    fn of_clone3(frame: &Frame) -> Self {
        let [at, bytes, ..] = frame.args;
        let last = at.wrapping_add(bytes).wrapping_sub(8);
        if !(FIRST_BYTES..=MOST_BYTES).contains(&bytes) || last < at {
            return Self::Refused;
        }
        match [at, last].map(sys::can_read) {
            [Some(true), Some(true)] => (),
            [Some(false), _] | [_, Some(false)] => return Self::Refused,
            _ => return Self::Unknown,
        }
        let mut words = [0u64; WORDS];
        let known = bytes.min(KNOWN_BYTES) as usize;
        let to = words.as_mut_ptr().cast::<u8>();
        // SAFETY: as many bytes fit, and the kernel has just read the first and the last of
        // what they come from, which is a page at the most.
        unsafe { core::ptr::copy_nonoverlapping(at as *const u8, to, known) };
        if words[FLAGS] & libc::CLONE_VM as u64 != 0 {
            return Self::shared(words[FLAGS]);
        }
        if bytes > KNOWN_BYTES {
            return Self::Unknown;
        }
        let (stack, room) = (words[STACK], words[STACK_BYTES]);
        let top = stack.checked_add(room).filter(|top| *top < 1 << 63);
        let (Some(top), true) = (top, (stack == 0) == (room == 0)) else {
            return Self::Refused;
        };
        let mut birth = Birth::new(*frame, words[FLAGS], words[TLS]);
        birth.stack = top;
        (words[STACK], words[STACK_BYTES]) = (0, 0);
        if birth.tls.is_some() {
            words[FLAGS] &= !(libc::CLONE_SETTLS as u64);
        }
        birth.words = words;
        Self::Own(birth)
    }
}

impl Birth {
    fn new(frame: Frame, flags: u64, tls: u64) -> Self {
        let sets = flags & libc::CLONE_SETTLS as u64 != 0 && tls < TLS_END;
        Self {
            frame,
            words: [0; WORDS],
            stack: 0,
            tls: sets.then_some(tls),
            vfork: flags & libc::CLONE_VFORK as u64 != 0,
            files: flags & libc::CLONE_FILES as u64 != 0,
        }
    }

    /// Whether the child goes on elsewhere than on a copy of its parent's stack.
    pub fn moves(&self) -> bool {
        self.stack != 0 || self.tls.is_some()
    }

    /// The call that makes the child on a copy of this stack, as `make` makes it.
    pub fn call<R>(&self, make: impl FnOnce(&Frame) -> R) -> R {
        let mut frame = self.frame;
        if frame.nr == libc::SYS_clone3 as u64 {
            frame.args[0] = self.words.as_ptr() as u64;
        }
        make(&frame)
    }

    /// In the child: leaves for where it is to be.
    ///
    /// # Safety
    /// As of [`arch::land`].
    pub unsafe fn land(&self, frame: *mut Frame) -> ! {
        // SAFETY: by the contract above.
        let mut back = unsafe { arch::way_back(frame) };
        if self.stack != 0 {
            // The trampoline leaves so much of the stack behind.
            back.stack = self.stack.wrapping_sub(LEFT_BYTES);
        }
        back.tls = self.tls;
        thread::current().timing.set(false);
        // SAFETY: by the contract above.
        unsafe { arch::land(frame, 0, back) }
    }
}

/// Goes back to the site of the arrival `frame`, which makes the call itself. ENOSYS, which
/// libc knows what to do with: there is no such site.
pub fn at_its_site(frame: &mut Frame) -> i64 {
    let frame = core::ptr::from_mut(frame);
    let thread = thread::current();
    if thread.frame.get() != frame {
        return -i64::from(Errno::NOSYS.0);
    }
    // SAFETY: it is the arrival that is being handled.
    let back = unsafe { arch::way_back(frame) };
    // SAFETY: the rest of the trampoline, which stays as long as somebody returns to it.
    let end = unsafe { (back.target as *const [u8; END_BYTES]).read() };
    let Some(site) = site_of_end(back.target, &end) else {
        return -i64::from(Errno::NOSYS.0);
    };
    let landing = Landing {
        target: site,
        stack: back.stack + LEFT_BYTES,
        tls: None,
    };
    thread.timing.set(false);
    // SAFETY: as above; who calls this has nothing left to drop, and `nr` is the number that
    // the site is reached with.
    unsafe { arch::land(frame, (*frame).nr as i64, landing) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(asked: Asked) -> Birth {
        match asked {
            Asked::Own(birth) => birth,
            _ => panic!("not a process of its own"),
        }
    }

    fn clone(flags: i32, stack: u64) -> Asked {
        let args = [flags as u64, stack, 3, 4, 5, 0];
        Asked::of(&Frame {
            nr: libc::SYS_clone as u64,
            args,
        })
    }

    fn clone3(words: &[u64], bytes: u64) -> Asked {
        Asked::of(&Frame {
            nr: libc::SYS_clone3 as u64,
            args: [words.as_ptr() as u64, bytes, 0, 0, 0, 0],
        })
    }

    #[test]
    fn a_stack_and_a_thread_pointer_are_for_the_child_alone() {
        let birth = own(clone(libc::CLONE_SETTLS | libc::CLONE_PARENT | 17, 4096));
        assert_eq!(
            (birth.stack, birth.tls, birth.vfork),
            (4096, Some(5), false)
        );
        birth.call(|f| assert_eq!(f.args, [libc::CLONE_PARENT as u64 | 17, 0, 3, 4, 5, 0]));
        assert!(birth.moves() && !own(clone(17, 0)).moves());
        assert!(own(clone(libc::CLONE_VFORK, 0)).vfork);
        assert!(matches!(clone(libc::CLONE_VM, 4096), Asked::Shared { .. }));
    }

    /// Who makes a thread shares its table; who makes a process does not, unless that is asked for.
    #[test]
    fn who_may_have_the_table_of_descriptors_is_noted() {
        use libc::{CLONE_FILES, CLONE_THREAD, CLONE_VFORK, CLONE_VM};
        for (flags, shares) in [
            (17, false),
            (CLONE_VM | CLONE_VFORK, false),
            (CLONE_FILES, true),
            (CLONE_VM | CLONE_VFORK | CLONE_FILES, true),
            (CLONE_VM | CLONE_THREAD | CLONE_FILES, true),
            // It shares what is remembered of numbers.
            (CLONE_VM, true),
        ] {
            descriptors::child(false);
            clone(flags, 4096);
            assert_eq!(descriptors::are_shared(), shares, "{flags:#x}");
            descriptors::child(false);
            clone3(&[flags as u64, 0, 0, 0, 17, 0, 0, 0], 64);
            assert_eq!(descriptors::are_shared(), shares, "{flags:#x}");
        }
    }

    #[test]
    fn clone3_is_read_as_the_kernel_reads_it() {
        let flags = (libc::CLONE_SETTLS | libc::CLONE_VFORK) as u64;
        let words = [flags, 1, 2, 3, 17, 4096, 512, 77, 8, 9, 10, 0];
        let birth = own(clone3(&words, 88));
        assert_eq!((birth.stack, birth.tls), (4608, Some(77)));
        birth.call(|f| {
            // SAFETY: where the arguments are as long as `call` runs.
            let given = unsafe { *(f.args[0] as *const [u64; WORDS]) };
            let vfork = libc::CLONE_VFORK as u64;
            assert_eq!(given, [vfork, 1, 2, 3, 17, 0, 0, 77, 8, 9, 10]);
            assert_eq!(f.args[1], 88);
        });
        assert!(matches!(clone3(&words, 63), Asked::Refused));
        assert!(matches!(clone3(&words, 4097), Asked::Refused));
        assert!(matches!(clone3(&words, 96), Asked::Unknown));
        let half = [0, 0, 0, 0, 17, 0, 512, 0];
        assert!(matches!(clone3(&half, 64), Asked::Refused));
        let shared = [libc::CLONE_VM as u64, 0, 0, 0, 0, 0, 0, 0];
        assert!(matches!(clone3(&shared, 64), Asked::Shared { .. }));
        let nowhere = Frame {
            nr: libc::SYS_clone3 as u64,
            args: [8, 88, 0, 0, 0, 0],
        };
        assert!(matches!(Asked::of(&nowhere), Asked::Refused));
    }
}
