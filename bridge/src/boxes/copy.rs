//! Copies of messages' data. Most are short: what a string instruction needs to begin is longer
//! than they take.

/// Up to this many bytes are copied by moves.
const SHORT: u64 = 256;

/// From this process's own memory into a box.
///
/// # Safety
/// `len` bytes are valid to be read at `from` and to be written at `to`. Others may change what is
/// in the box at any time: whatever is read there are bytes.
#[inline]
pub unsafe fn copy_in(from: u64, to: u64, len: u64) {
    // SAFETY: by the contract above.
    unsafe { copy(from, to, len) }
}

/// From a box into this process's own memory.
///
/// # Safety
/// As [`copy_in`].
#[inline]
pub unsafe fn copy_out(from: u64, to: u64, len: u64) {
    // SAFETY: by the contract above.
    unsafe { copy(from, to, len) }
}

/// # Safety
/// As [`copy_in`].
#[inline]
unsafe fn copy(from: u64, to: u64, len: u64) {
    if len > SHORT {
        // SAFETY: by the contract above. (They may be the same box, of a sender that is its own
        // receiver, but never the same bytes.)
        unsafe { core::ptr::copy(from as *const u8, to as *mut u8, len as usize) };
        return;
    }
    let mut done = 0;
    // SAFETY: below `len` on both sides, by the contract above; nothing is said of alignment.
    unsafe {
        while len - done >= 16 {
            one::<u128>(from + done, to + done);
            done += 16;
        }
        if len - done >= 8 {
            one::<u64>(from + done, to + done);
            done += 8;
        }
        if len - done >= 4 {
            one::<u32>(from + done, to + done);
            done += 4;
        }
        while done < len {
            one::<u8>(from + done, to + done);
            done += 1;
        }
    }
}

/// # Safety
/// A `T` can be read at `from` and written at `to`, aligned or not.
#[inline]
unsafe fn one<T: Copy>(from: u64, to: u64) {
    // SAFETY: by the contract above.
    let value = unsafe { (from as *const T).read_unaligned() };
    // SAFETY: likewise.
    unsafe { (to as *mut T).write_unaligned(value) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_and_no_more() {
        let from: Vec<u8> = (0..600).map(|n| n as u8).collect();
        for len in 0..520 {
            let mut to = vec![0xee; 600];
            // SAFETY: both are longer.
            unsafe { copy_in(from.as_ptr() as u64 + 3, to.as_mut_ptr() as u64 + 5, len) };
            let end = 5 + len as usize;
            assert_eq!(to[5..end], from[3..3 + len as usize]);
            assert!(
                to[..5].iter().chain(&to[end..]).all(|b| *b == 0xee),
                "{len}"
            );
        }
    }
}
