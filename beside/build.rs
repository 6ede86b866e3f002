//! Says to the shim's build script whether the feature is on.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let std = std::env::var_os("CARGO_FEATURE_STD").is_some();
    println!("cargo::metadata=std={std}");
}
