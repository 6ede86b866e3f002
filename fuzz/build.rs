//! The shim's version, which its own build script tells it.
fn main() {
    println!("cargo:rustc-env=REGALL_VERSION=fuzz");
    println!("cargo:rerun-if-changed=build.rs");
}
