//! Text in fixed buffers: paths for the kernel and lines for the log, without
//! an allocator.

use core::ffi::CStr;
use core::fmt::{self, Write};

/// Up to `N` bytes of text. What does not fit is cut off and remembered as such.
pub struct Text<const N: usize> {
    bytes: [u8; N],
    used: usize,
    cut: bool,
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Text<N> {
    /// An empty text.
    pub const fn new() -> Self {
        Self {
            bytes: [0; N],
            used: 0,
            cut: false,
        }
    }

    /// Formatted, e.g. `Text::<64>::of(format_args!("/proc/{pid}/stat"))`.
    pub fn of(args: fmt::Arguments) -> Self {
        let mut text = Self::new();
        let _ = text.write_fmt(args);
        text
    }

    /// The bytes of the text.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or(&[])
    }

    /// As a path for a system call; `None` if it was cut or holds a NUL.
    pub fn as_cstr(&self) -> Option<&CStr> {
        if self.cut || self.used >= N {
            return None;
        }
        CStr::from_bytes_with_nul(self.bytes.get(..=self.used)?).ok()
    }

    /// Adds bytes.
    pub fn push(&mut self, more: &[u8]) {
        // One byte stays zero: the NUL of `as_cstr`.
        let room = N.saturating_sub(self.used + 1);
        let n = more.len().min(room);
        self.cut |= n < more.len();
        if let (Some(to), Some(from)) =
            (self.bytes.get_mut(self.used..self.used + n), more.get(..n))
        {
            to.copy_from_slice(from);
            self.used += n;
        }
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.bytes = [0; N];
        self.used = 0;
        self.cut = false;
    }

    /// Whether something did not fit.
    pub fn was_cut(&self) -> bool {
        self.cut
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.push(s.as_bytes());
        Ok(())
    }
}

/// Prints bytes that should be text; what is not ASCII stands as `?`.
pub struct Lossy<'a>(pub &'a [u8]);

impl fmt::Display for Lossy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &b in self.0 {
            f.write_char(if (32..127).contains(&b) {
                char::from(b)
            } else {
                '?'
            })?;
        }
        Ok(())
    }
}

/// Prints bytes as the inside of a JSON string.
pub struct JsonText<'a>(pub &'a [u8]);

impl fmt::Display for JsonText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &b in self.0 {
            match b {
                b'"' | b'\\' => write!(f, "\\{}", char::from(b))?,
                32..127 => f.write_char(char::from(b))?,
                _ => write!(f, "\\u{:04x}", b)?,
            }
        }
        Ok(())
    }
}

/// A decimal number, nothing else around it.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |n, &b| {
        let digit = b.checked_sub(b'0').filter(|d| *d < 10)?;
        n.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// The number that `text` is in hexadecimal digits, the last 16 of them.
pub fn hex(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |n, b| {
        Some(n << 4 | u64::from((*b as char).to_digit(16)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_does_not_fit_is_no_path() {
        assert_eq!(
            Text::<8>::of(format_args!("/a/{}", 17)).as_cstr(),
            Some(c"/a/17")
        );
        let long = Text::<8>::of(format_args!("/a/{}", 12345));
        assert!(long.was_cut() && long.as_cstr().is_none());
        assert!(Text::<8>::of(format_args!("a\0b")).as_cstr().is_none());
    }

    #[test]
    fn numbers_are_digits_only() {
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(number(b"18446744073709551616"), None);
        for bad in ["", "-1", "1 ", "0x1", "1k"] {
            assert_eq!(number(bad.as_bytes()), None, "{bad}");
        }
    }
}
