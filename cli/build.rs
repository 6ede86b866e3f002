//! What `regall --version` says.

include!("../stamp.rs");

fn main() {
    stamp("..");
}
