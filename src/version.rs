//! What the library calls itself, for `strings` and for the statistics.

/// `regall 0.1.0 (1234567890ab)`: the version, and the commit that it was built from.
const NAME: &str = concat!("regall ", env!("REGALL_VERSION"));

/// The version and the commit, for the statistics.
pub fn name() -> &'static str {
    // Not `NAME`: that would be there once more, among other texts and without an end.
    let text = TEXT.get(1..NAME.len() + 1).unwrap_or(&[]);
    core::str::from_utf8(text).unwrap_or("")
}

/// The name in a section that the linker keeps, in one piece: between two NULs, so that
/// `strings` finds it whatever stands around it.
#[used]
#[unsafe(link_section = ".regall.version")]
static TEXT: [u8; NAME.len() + 2] = text();

const fn text() -> [u8; NAME.len() + 2] {
    let mut all = [0; NAME.len() + 2];
    let mut n = 0;
    while n < NAME.len() {
        all[n + 1] = NAME.as_bytes()[n];
        n += 1;
    }
    all
}
