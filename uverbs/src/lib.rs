//! Registration through the kernel's uverbs interface: memory (MR), protection
//! domains (PD), and what a device can do. No allocation, no lock, no libibverbs;
//! less than 1 KiB of stack.
//!
//! A [`Channel`] is an open `/dev/infiniband/uverbsN`: one that the application's
//! libibverbs opened ([`Channel::adopt`], with the descriptor from
//! [`abi::fd_of`]), or our own ([`device::Device::open`]). Handles are
//! numbers that mean something to the same open file only, and to the kernel they
//! are all alike: what we register in the application's PD goes with its context,
//! and its `ibv_dealloc_pd` says EBUSY as long as something of ours is in it.
//!
//! A child of fork shares the open file: what it deregisters by an inherited handle
//! is gone for its parent (seen on 6.1 and 7.2). So it must forget every channel and
//! handle, and close a device of ours, which would otherwise keep the parent's
//! memory pinned beyond the parent's end.
//!
//! Errors are the kernel's, by ioctl and by write(2) alike; what they were seen to
//! mean is said at the functions.
#![cfg_attr(not(test), no_std)]

pub mod abi;
mod channel;
pub mod device;
mod driver;
pub mod fork;
#[cfg(test)]
mod guest;
pub mod requests;
pub mod wire;

pub use channel::{ibdev_of, Channel, Limits, Mr, MrHandle, PdHandle};
pub use driver::Driver;
