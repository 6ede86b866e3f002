//! Empty: the build script alone matters.
#![no_std]
