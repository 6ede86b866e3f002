//! Which open file each descriptor of the program's was when it was looked at, and by which descriptor
//! of ours that can be seen. Read and written without the lock; a number may stand for another file
//! by now, so nobody goes by it without asking the kernel.

use crate::registrar::hca::files::FileId;
use crate::registrar::hca::Device;
use crate::sys::file;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Descriptors that are remembered.
const MANY: usize = 64;
/// Which file each was: the descriptor + 1, shifted left by 32, and the file.
static KNOWN: [AtomicU64; MANY] = [const { AtomicU64::new(0) }; MANY];
/// The descriptor of ours, at the same place: the file, shifted left by 32, and the descriptor + 1.
/// No two domains have one number for theirs, in whatever table.
static OWN: [AtomicU64; MANY] = [const { AtomicU64::new(0) }; MANY];

fn at(rows: &'static [AtomicU64; MANY], fd: i32) -> &'static AtomicU64 {
    // Never out of bounds.
    rows.get(fd as u32 as usize % MANY).unwrap_or(&rows[0])
}

/// The open file behind `fd` when it was last looked at: it may be another one now.
pub fn believed(fd: i32) -> Option<FileId> {
    let row = at(&KNOWN, fd).load(Relaxed);
    let same = row >> 32 == u64::from(fd as u32) + 1;
    same.then(|| FileId::from_raw(row as u32))
}

/// The descriptor of ours by which `fd` was seen to be `file`.
pub fn own_of(fd: i32, file: FileId) -> Option<i32> {
    let own = at(&OWN, fd).load(Relaxed);
    let same = own >> 32 == u64::from(file.get()) && own as u32 != 0;
    same.then(|| (own as u32).wrapping_sub(1) as i32)
}

/// `fd` is `file`, as descriptor `own` of ours is.
pub fn remember(fd: i32, file: FileId, own: Option<i32>) {
    let file = u64::from(file.get());
    let own = own.map_or(0, |own| file << 32 | (u64::from(own as u32) + 1));
    at(&OWN, fd).store(own, Relaxed);
    at(&KNOWN, fd).store((u64::from(fd as u32) + 1) << 32 | file, Relaxed);
}

/// The numbers by which the program has come to `file`.
pub fn numbers_of(file: FileId) -> impl Iterator<Item = i32> {
    let rows = KNOWN.iter().map(|row| row.load(Relaxed));
    let rows = rows.filter(move |row| *row as u32 == file.get());
    rows.map(|row| (row >> 32).wrapping_sub(1) as i32)
}

/// Nothing is known of number `fd` any more.
pub fn forget_number(fd: i32) {
    at(&KNOWN, fd).store(0, Relaxed);
}

/// No number is known to be `file` any more.
pub fn forget(file: FileId) {
    let rows = KNOWN
        .iter()
        .filter(|row| row.load(Relaxed) as u32 == file.get());
    rows.for_each(|row| row.store(0, Relaxed));
}

/// No number is known.
pub fn clear() {
    KNOWN.iter().for_each(|row| row.store(0, Relaxed));
}

/// Closes our own descriptor of a device, if it has one that may be ours still. Nothing is compared
/// with it any more.
pub fn close_own(device: Device) {
    let own = device.channel.fd();
    let same = |row: &&AtomicU64| row.load(Relaxed) as u32 == (own as u32).wrapping_add(1);
    OWN.iter()
        .filter(same)
        .for_each(|row| row.store(0, Relaxed));
    if device.may_be_own() {
        file::close(own);
    }
}
