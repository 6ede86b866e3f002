//! Planted cycles, each drawn in another way, and planted system calls are found; what is none
//! is not.

use regall_walls::graph::{self, Cycle};
use regall_walls::kernel;
use regall_walls::resolve::World;
use regall_walls::source;
use std::fs;

/// The cycles of a crate `a` with these files, beside a crate `b` with one module.
fn cycles(files: &[(&str, &str)]) -> Vec<Cycle> {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    put("b/lib.rs", "pub mod one { pub struct Thing; }");
    files
        .iter()
        .for_each(|(name, text)| put(&format!("a/{name}"), text));
    let read = |name| source::read(name, &folder.path().join(name).join("lib.rs")).unwrap();
    graph::cycles(&World::new(vec![read("a"), read("b")]).arrows())
}

/// Whether `one` and `two`, of which the second names the first, make a cycle if the first says
/// `text`.
fn planted(text: &str) -> bool {
    let found = cycles(&[
        (
            "lib.rs",
            "mod one; mod two; mod three; mod four; pub use two::Thing as Told;",
        ),
        ("one.rs", text),
        (
            "two.rs",
            "use crate::one; pub struct Thing; pub fn f() -> u8 { one::X }",
        ),
        ("three.rs", "pub use crate::two::Thing;"),
        ("four.rs", "pub mod below { pub struct Deep; }"),
    ]);
    let Some(cycle) = found.first() else {
        return false;
    };
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(cycle.members.contains("one") && cycle.members.contains("two"));
    true
}

#[test]
fn an_import_closes_a_cycle() {
    assert!(planted("use crate::two::Thing;"));
    assert!(planted("use super::two::{self, Thing as T};"));
    assert!(planted("use crate::two::*;"));
    assert!(planted("fn f() { use crate::two; }"));
}

#[test]
fn a_path_closes_a_cycle() {
    assert!(planted("fn f() -> crate::two::Thing { loop {} }"));
    assert!(planted("fn f() { super::two::f(); }"));
    assert!(planted("impl From<u8> for crate::two::Thing {}"));
    assert!(planted("mod deep { fn f() { super::super::two::f(); } }"));
}

#[test]
fn a_macro_closes_a_cycle() {
    assert!(planted("fn f() { assert!(1 == crate::two::f()); }"));
    assert!(planted("macro_rules! m { () => { $crate::two::f() } }"));
    assert!(planted("thing! { use crate::{two::f, three}; }"));
}

#[test]
fn a_re_export_closes_a_cycle() {
    assert!(planted("use crate::Told;"));
    assert!(planted("use crate::three::Thing;"));
    assert!(planted("use super::*; fn f(_: Told) { Told::x() }"));
}

#[test]
fn what_names_nobody_closes_none() {
    assert!(!planted("pub const X: u8 = 0;"));
    assert!(!planted("use b::one::Thing; use std::two;"));
    assert!(!planted("#[cfg(test)] mod tests { use crate::two::f; }"));
    assert!(!planted("#[cfg(all(test, unix))] use crate::two::f;"));
    assert!(!planted("enum E { Two } fn f() -> E { E::Two }"));
    assert!(!planted("pub use crate::four::below::Deep;"));
    // A method that is called like a module, and a variable.
    assert!(!planted(
        "fn f(two: u8) { two.two(); let two = 1; g!(two) }"
    ));
    assert!(planted("#[cfg(not(test))] use crate::two::f;"));
}

#[test]
fn folders_are_judged_within_and_as_one() {
    let inner = |x: &str, y: &str| {
        cycles(&[
            ("lib.rs", "mod folder; mod other;"),
            ("folder/mod.rs", "mod x; mod y; pub struct Shared;"),
            ("folder/x.rs", x),
            ("folder/y.rs", y),
            ("other.rs", "use crate::folder::Shared;"),
        ])
    };
    // A child may name its folder's own items, if they name no child.
    assert_eq!(inner("use super::Shared;", "use super::x;"), []);
    let found = inner("use super::y;", "use super::x;");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].parent.module, ["folder"]);
    let found = inner("", "use crate::other;");
    assert_eq!(found.len(), 1);
    assert!(found[0].parent.module.is_empty());
    let from: Vec<_> = found[0].arrows.iter().map(|d| &*d.from).collect();
    assert_eq!(from, ["folder", "other"]);
}

#[test]
fn a_folders_own_file_is_a_module_in_it() {
    let with = |own: &str| {
        cycles(&[
            ("lib.rs", "mod folder;"),
            ("folder/mod.rs", own),
            ("folder/x.rs", "use super::Shared; pub struct Own;"),
        ])
    };
    assert_eq!(with("mod x; pub struct Shared;"), []);
    for child in ["fn f(_: x::Own) {}", "pub use x::Own;"] {
        let found = with(&format!("mod x; pub struct Shared; {child}"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].summary(), "a::folder 2");
        assert!(found[0].members.contains(graph::OWN_FILE));
    }
}

#[test]
fn modules_with_paths_are_found_and_others_packages_left_out() {
    let beside = "#[path = \"x86.rs\"] mod imp; mod user;";
    let files = [
        ("lib.rs", beside),
        ("x86.rs", "use crate::user;"),
        ("user.rs", "use crate::imp;"),
    ];
    assert_eq!(cycles(&files).len(), 1);
    let elsewhere = "#[path = \"../c/x86.rs\"] mod imp; mod user;";
    let files = [
        ("lib.rs", elsewhere),
        ("../c/x86.rs", "use crate::user;"),
        ("user.rs", "use crate::imp;"),
    ];
    assert_eq!(cycles(&files), []);
}

#[test]
fn system_calls_are_found() {
    let found = |text: &str| {
        let entries = kernel::entries(text).unwrap();
        entries
            .into_iter()
            .map(|(line, _)| line)
            .collect::<Vec<_>>()
    };
    assert_eq!(found("fn f() {\n sys::call!(libc::SYS_close, 3); }"), [2]);
    assert_eq!(found("fn f() -> u8 { g(call!(1).ok()) }"), [1]);
    assert_eq!(found("m! { call!(1) }"), [1]);
    assert_eq!(
        found("fn f() { unsafe { asm!(\n\"2: syscall\", in(\"rax\") 1) } }"),
        [2]
    );
    assert_eq!(found("global_asm!(r#\"\nf:\n  syscall\n  ret\"#);"), [3]);
    assert_eq!(found("fn f() { asm!(\"nop\\n\\tsyscall\") }"), [2]);
    assert_eq!(found("extern \"C\" { fn regall_enter(); }"), [1]);
    assert_eq!(found("fn f() {\n unsafe { libc::mmap(a, b) }; }"), [2]);
    assert_eq!(found("fn f() -> u8 { g(::libc::syscall(1).ok()) }"), [1]);
    assert_eq!(
        found("#[cfg(test)] mod tests { fn f() { libc::open(a); } }"),
        []
    );
    let behind = "#[cfg(test)] mod tests; #[cfg(test)] fn g() { h() } fn f() { libc::open(a); }";
    assert_eq!(found(behind), [1]);
    assert_eq!(found("#[cfg(unix)] fn f() { libc::open(a); }"), [1]);
    assert_eq!(
        found("fn f(x: libc::c_int) { g(libc::O_RDWR, libc::major(x)) }"),
        []
    );
    // Others' names, what is only said, and what only is called so.
    assert_eq!(found("each_call! { rows } // call!(1)"), []);
    assert_eq!(found("/// call!(1)\nfn f() -> &str { \"syscall\" }"), []);
    assert_eq!(
        found("global_asm!(\"regall_syscall: ret // no syscall\");"),
        []
    );
    assert_eq!(
        found("fn f(call: fn()) -> bool { call(); !(call() == ()) }"),
        []
    );
}
