//! A program's request, and what the kernel has said to one like it.

use super::copy::Stack;
use crate::arch::Frame;
use crate::uverbs::requests::{Message, CORE};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// A program's request.
pub struct Asked<'a> {
    pub frame: &'a Frame,
    /// Where most of it lies.
    pub stack: Stack,
    /// A copy of its message.
    pub message: Message,
    /// What the message names, likewise.
    pub core: [u8; CORE],
}

/// What the kernel has said once, yes or no.
pub struct Answered(AtomicU8);

impl Answered {
    const NO: u8 = 1;
    const YES: u8 = 2;

    pub const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    pub fn or_ask(&self, ask: impl FnOnce() -> bool) -> bool {
        match self.0.load(Relaxed) {
            Self::NO => false,
            Self::YES => true,
            _ => {
                let yes = ask();
                self.0
                    .store(if yes { Self::YES } else { Self::NO }, Relaxed);
                yes
            }
        }
    }
}

impl Asked<'_> {
    /// The descriptor that it came by.
    pub const fn fd(&self) -> i32 {
        self.frame.args[0] as i32
    }

    /// Where its message is.
    pub const fn at(&self) -> u64 {
        self.frame.args[2]
    }
}
