//! What the library calls itself, for `strings` and for the statistics.

/// `regall 0.1.0 (1234567890ab)`: the version, and the commit that it was built from.
pub const NAME: &str = concat!("regall ", env!("REGALL_VERSION"));

/// The same as a C string in a section that the linker keeps, in one piece.
#[used]
#[unsafe(link_section = ".regall.version")]
static TEXT: [u8; NAME.len() + 1] = text();

const fn text() -> [u8; NAME.len() + 1] {
    let mut all = [0; NAME.len() + 1];
    let mut n = 0;
    while n < NAME.len() {
        all[n] = NAME.as_bytes()[n];
        n += 1;
    }
    all
}
