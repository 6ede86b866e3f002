//! The C interface to atomic operations on words of a peer's memory.

use super::entry::error;
use crate::intercept::strict;
use crate::sys::Errno;
use core::ffi::c_int;
use regall_bridge::operate::operate;
use regall_bridge::peer::Peer;
use regall_bridge::word::{Act, Operation, Width};

/// Carries it out; what was there, or an error of regall.h.
///
/// # Safety
/// `peer` is NULL or an open peer.
unsafe fn on(peer: *const Peer, operation: &Operation) -> Result<u64, c_int> {
    // SAFETY: by the contract above.
    let peer = unsafe { peer.as_ref() }.ok_or_else(|| error(Errno::INVAL))?;
    let _pass = strict::pass();
    operate(peer, operation).map_err(error)
}

/// Tells the caller what was there.
macro_rules! told {
    ($done:expr, $to:ident, $int:ident) => {
        match $done {
            Ok(before) => {
                if !$to.is_null() {
                    // SAFETY: by the contract above.
                    unsafe { $to.write(before as $int) };
                }
                0
            }
            Err(e) => e,
        }
    };
}

macro_rules! words {
    ($int:ident, $width:ident: $add:ident, $compare_swap:ident, $swap:ident, $load:ident, $store:ident) => {
        /// See regall.h.
        ///
        /// # Safety
        /// `peer` is NULL or an open peer; `before` is NULL or valid for writing.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $add(
            peer: *const Peer,
            addr: u64,
            operand: $int,
            before: *mut $int,
        ) -> c_int {
            let operation = Operation {
                act: Act::Add,
                width: Width::$width,
                addr,
                operand: operand.into(),
                expected: 0,
            };
            // SAFETY: by the contract above.
            told!(unsafe { on(peer, &operation) }, before, $int)
        }

        /// See regall.h.
        ///
        /// # Safety
        /// As of the function that adds.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $compare_swap(
            peer: *const Peer,
            addr: u64,
            expected: $int,
            desired: $int,
            before: *mut $int,
        ) -> c_int {
            let operation = Operation {
                act: Act::CompareSwap,
                width: Width::$width,
                addr,
                operand: desired.into(),
                expected: expected.into(),
            };
            // SAFETY: by the contract above.
            told!(unsafe { on(peer, &operation) }, before, $int)
        }

        /// See regall.h.
        ///
        /// # Safety
        /// As of the function that adds.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $swap(
            peer: *const Peer,
            addr: u64,
            value: $int,
            before: *mut $int,
        ) -> c_int {
            let operation = Operation {
                act: Act::Swap,
                width: Width::$width,
                addr,
                operand: value.into(),
                expected: 0,
            };
            // SAFETY: by the contract above.
            told!(unsafe { on(peer, &operation) }, before, $int)
        }

        /// See regall.h.
        ///
        /// # Safety
        /// As of the function that adds.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $load(peer: *const Peer, addr: u64, value: *mut $int) -> c_int {
            if value.is_null() {
                return error(Errno::INVAL);
            }
            let operation = Operation {
                act: Act::Load,
                width: Width::$width,
                addr,
                operand: 0,
                expected: 0,
            };
            // SAFETY: by the contract above.
            told!(unsafe { on(peer, &operation) }, value, $int)
        }

        /// See regall.h.
        ///
        /// # Safety
        /// `peer` is NULL or an open peer.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $store(peer: *const Peer, addr: u64, value: $int) -> c_int {
            let operation = Operation {
                act: Act::Store,
                width: Width::$width,
                addr,
                operand: value.into(),
                expected: 0,
            };
            // SAFETY: by the contract above.
            unsafe { on(peer, &operation) }.map_or_else(|e| e, |_| 0)
        }
    };
}

words!(u32, Four: regall_fetch_add32, regall_compare_swap32, regall_swap32, regall_load32, regall_store32);
words!(u64, Eight: regall_fetch_add64, regall_compare_swap64, regall_swap64, regall_load64, regall_store64);
