//! How a trampoline ends: from there an arrival goes back to its site.

/// Bytes that are overwritten at a site: `jmp rel32`.
pub const JUMP_BYTES: usize = 5;
/// `lea rsp, [rsp + 136]`: where the entry stub returns to.
pub const LEAVE: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x88, 0, 0, 0];
/// Bytes of stack that [`LEAVE`] leaves behind: the red zone and the address for unwinders.
pub const LEFT_BYTES: u64 = 136;
/// Bytes of `syscall`.
pub const SYSCALL_BYTES: u64 = 2;
/// Bytes of a trampoline's end, from where the entry stub returns to.
pub const END_BYTES: usize = LEAVE.len() + JUMP_BYTES;

/// The site of the trampoline whose end, `end`, stands at `at`.
pub fn site_of_end(at: u64, end: &[u8; END_BYTES]) -> Option<u64> {
    let jump = end.strip_prefix(&LEAVE)?;
    let distance = jump.strip_prefix(&[0xe9])?.first_chunk()?;
    at.checked_add(END_BYTES as u64)?
        .checked_add_signed(i64::from(i32::from_le_bytes(*distance)))?
        .checked_sub(SYSCALL_BYTES)
}
