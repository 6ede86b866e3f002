//! Link-time properties of libregall.so, and what it calls itself.

include!("stamp.rs");

fn main() {
    stamp(".");
    beside();
    frame_pointers();
    // Run before every other constructor, while libc's text is still as it was
    // shipped: UCX and Open MPI patch function entries in theirs.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Code that is patched jumps into it for as long as the process lives: dlclose of the last
    // handle, by a program that uses the C interface by dlopen, must leave it where it is.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // All relocations are done before the constructor runs: no lazy binding on
    // the hook path, where ld.so's lock may be held by the caller.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    // An undefined symbol would kill every program at load time; refuse it here.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    // The text's segment begins at a page of the file: libunwind finds a module's unwind
    // information from another process (strace -k) by that alone.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,separate-code");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--as-needed");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libregall.so");
}

/// With std in the graph there is a panic handler already, and the library does nothing: it is
/// built to be checked (`cargo clippy --all-targets`), not to be used.
fn beside() {
    if std::env::var("DEP_REGALL_BESIDE_STD").is_ok_and(|std| std == "true") {
        println!("cargo::rustc-cfg=std_beside");
        println!(
            "cargo::warning=built beside packages with std, libregall.so does nothing: \
             build the one to use without tests (--all-targets)"
        );
    }
}

/// RUSTFLAGS in the environment takes the place of .cargo/config.toml's flags, without a word.
fn frame_pointers() {
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let wanted = |flag: &str| flag.contains("force-frame-pointers");
    if !flags.split('\x1f').any(wanted) {
        println!(
            "cargo:warning=built without -Cforce-frame-pointers=yes: profilers that follow \
             frame pointers lose the shim's callers (RUSTFLAGS replaces what .cargo/config.toml \
             says: add it there)"
        );
    }
}
