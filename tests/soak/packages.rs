//! What packagers get: the source archive, recipes, and what was built on other releases of
//! Debian; and a program on the crate ibverbs. In `make soak` alone: it takes minutes, and a
//! network.

use std::path::Path;
use std::process::Command;

use regall_tests::soak::{is_short, tried, Row};
use regall_tests::{build, skip};

const PART: &str = "packages";

#[test]
fn recipes() {
    if is_short() {
        return;
    }
    let row = Row::begin(PART, "rpm and Spack");
    tried(row, &mut Command::new(build::script("check-packaging")));
}

#[test]
fn releases_of_debian() {
    if is_short() {
        return;
    }
    for release in ["bullseye", "bookworm", "trixie", "sid"] {
        let row = Row::begin(PART, release);
        tried(
            row,
            Command::new(build::script("try-releases")).arg(release),
        );
    }
}

/// A Rust program that registers memory of its own by the crate ibverbs gets it from the shim's
/// regions, without a system call, and behaves as without the shim.
#[test]
fn a_program_on_the_crate_ibverbs() {
    if is_short() {
        return;
    }
    let row = Row::begin(PART, "a program on the crate ibverbs");
    let script = r#"set -e
        for tool in cmake qemu-system-x86_64; do
            command -v "$tool" >/dev/null || { echo "there is no $tool"; exit 77; }
        done
        built=$CARGO_TARGET_DIR/ibverbs
        # bindgen has libclang and not clang's own headers.
        BINDGEN_EXTRA_CLANG_ARGS=-I$(gcc -print-file-name=include) CARGO_TARGET_DIR=$built \
            cargo build --quiet --release --locked --manifest-path tests/ibverbs/Cargo.toml
        out=$(mktemp -d); trap 'rm -rf "$out"' EXIT
        scripts/rdma-vm --timeout 300 --out "$out" bash -c '
            set -e
            "$1" >"$RDMA_VM_OUT/plain"
            "$0" run --stats-file "$RDMA_VM_OUT/counters" -- "$1" >"$RDMA_VM_OUT/shim"
        ' "$CARGO_TARGET_DIR/release/regall" "$built/release/verbs-program"
        cmp "$out/plain" "$out/shim"
        grep -c bytes "$out/plain"
        grep -oE '"(served|passed)": ?[0-9]+' "$out/counters""#;
    let said = tried(row, Command::new("bash").args(["-c", script]));
    if let Some(said) = said {
        let said: String = said.split_whitespace().collect();
        assert_eq!(said, "3\"served\":3\"passed\":0");
    }
}

/// The same bytes twice, and it builds and installs where there is no network.
#[test]
fn source_archive() {
    if is_short() {
        return;
    }
    if !Path::new(build::root()).join(".git").exists() {
        return skip("this is no checkout");
    }
    let row = Row::begin(PART, "make dist, built without a network");
    let script = r#"set -e
        work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
        archive=$(scripts/make-dist); cp "$archive" "$work/first"
        cmp "$(scripts/make-dist)" "$work/first"
        tar -xf "$work/first" -C "$work"; cd "$work"/regall-*
        unset CARGO_TARGET_DIR
        CARGO_HOME=$work/cargo unshare -n make -s build >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
        make -s install PREFIX=/opt/regall DESTDIR="$work/root"
        "$work/root/opt/regall/bin/regall" run -- grep -q libregall /proc/self/maps
        "$work/root/opt/regall/bin/regall" --version"#;
    tried(row, Command::new("bash").args(["-c", script]));
}
