//! Operations on words of the owner's memory, for peers that have it not mapped.

use super::{wait_for, Owner};
use crate::word::Operation;
use regall_sys::{Errno, Result};

/// Carries out an operation on a word in the owner's entry `id`, while the peer still `waits` for
/// that.
pub(super) fn operate(
    owner: &dyn Owner,
    operation: &Operation,
    id: u64,
    waits: impl Fn() -> bool,
) -> Result<u64> {
    let (addr, bytes, write) = (operation.addr, operation.width.bytes(), operation.writes());
    let is_good = || owner.entry(addr, id, write, false).map(drop);
    is_good()?;
    wait_for(addr, bytes, write);
    // The wait may have been long: see `Job::copy`.
    is_good()?;
    if !owner.goes_on() || !waits() {
        return Err(Errno::PERM);
    }
    let before = owner.operate(operation)?;
    // If the word was in this entry before and after, it was that one which was changed.
    is_good()?;
    Ok(before)
}
