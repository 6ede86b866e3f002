//! A copy of which the owner of the memory is told: the bytes, then a message in its box.

use crate::boxes::message::Kind;
use crate::peer::Peer;
use crate::transfer::{transfer, Outcome, Way};
use crate::vector::Segment;

/// As [`transfer`], and then tells the peer of it, with `tag`. Nothing is copied if its box has no
/// room for that, and nothing is told if not everything was copied. Errors as [`transfer`]'s, and
/// those of [`crate::boxes::outbox::Outbox::send`].
///
/// What is told is published by a release operation after the last byte was copied: whoever has
/// taken the message sees the bytes that were put, and may write to those that were got.
///
/// # Safety
/// As [`transfer`].
pub unsafe fn transfer_and_tell(
    peer: &Peer,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
    tag: u64,
) -> Outcome {
    let (outbox, target) = (peer.outbox(), peer.target());
    let room = match outbox.keep(&target) {
        Ok(room) => room,
        Err(e) => return Outcome::failed(e),
    };
    // SAFETY: by the contract above.
    let mut outcome = unsafe { transfer(peer, way, local, remote) };
    let kind = match way {
        Way::Put => Kind::Put,
        Way::Get => Kind::Get,
    };
    let note = outcome.result.map(|()| (kind, tag, outcome.bytes));
    let settled = outbox.settle(&target, room, note.ok());
    outcome.result = outcome.result.and(settled);
    outcome
}
