//! Every way to write an import, each in a small crate that has no other.

use std::collections::BTreeMap;

use super::ModuleGraph;

/// The imports of a crate that has `lib.rs` with these declarations and these files, as `from:line -> to`.
fn imports(root: &str, files: &[(&str, &str)]) -> Vec<String> {
    let mut texts: BTreeMap<_, _> =
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    texts.insert("lib.rs".to_owned(), root.to_owned());
    let graph = ModuleGraph::of("src", &texts).expect("sources that parse");
    assert_eq!(graph.not_understood, [""; 0]);
    let short = |path: &str| path["src/".len()..].to_owned();
    let mut found: Vec<_> = graph
        .imports
        .iter()
        .map(|import| format!("{}:{} -> {}", short(&import.from), import.line, short(&import.to)))
        .collect();
    found.dedup();
    found
}

/// The imports of src/a.rs with this text, beside modules that define what it may name.
fn of(text: &str) -> Vec<String> {
    imports(
        "mod a; mod b; mod c; #[macro_use] mod macros;",
        &[
            ("a.rs", text),
            (
                "b/mod.rs",
                "pub mod inner; pub use self::inner::Passed; pub struct B; pub enum E { X } pub fn f() {}",
            ),
            ("b/inner.rs", "pub struct Passed; pub struct Own; pub trait T {} pub const N: u8 = 1;"),
            ("c.rs", "pub struct C; pub fn g() {} macro_rules! c_macro { () => {} } pub(crate) use c_macro;"),
            ("macros.rs", "macro_rules! textual { () => {} }"),
        ],
    )
    .into_iter()
    .filter(|import| import.starts_with("a.rs"))
    .collect()
}

#[test]
fn uses_are_followed_to_the_file_that_defines_the_name() {
    assert_eq!(of("use crate::c::C;"), ["a.rs:1 -> c.rs"]);
    assert_eq!(of("\nuse super::c::{self, C as D};"), ["a.rs:2 -> c.rs"]);
    assert_eq!(of("use super::c;"), ["a.rs:1 -> c.rs"]);
    assert_eq!(
        of("use crate::{\n    c::{C},\n    b::inner::{Own, T},\n};"),
        ["a.rs:2 -> c.rs", "a.rs:3 -> b/inner.rs"]
    );
    assert_eq!(of("pub(crate) use crate::c::C;"), ["a.rs:1 -> c.rs"]);
    assert_eq!(of("use crate::b::E::X;"), ["a.rs:1 -> b/mod.rs"]);
    assert_eq!(of("use crate::b::E::*;"), ["a.rs:1 -> b/mod.rs"]);
    assert_eq!(of("fn f() {\n    use crate::c::C;\n}"), ["a.rs:2 -> c.rs"]);
    assert_eq!(of("#[cfg(unix)] use crate::c::C;"), ["a.rs:1 -> c.rs"]);
}

#[test]
fn before_another_name_a_module_is_meant_and_not_a_function_of_its_name() {
    let files = [
        ("hand_out.rs", "pub fn hand_out() {} pub fn turn() {}"),
        ("check.rs", "use super::hand_out::turn;"),
    ];
    let root = "mod check; mod hand_out; pub use self::hand_out::hand_out;";
    assert_eq!(imports(root, &files), ["check.rs:1 -> hand_out.rs", "lib.rs:1 -> hand_out.rs"]);
}

#[test]
fn inline_paths_are_imports() {
    for text in [
        "fn f() { super::c::g() }",
        "fn f() -> crate::c::C { todo!() }",
        "struct S(Vec<crate::c::C>);",
        "impl super::c::C {}",
        "const N: usize = size_of::<crate::c::C>();",
        "fn f(x: u8) { match x { crate::c::C => {} } }",
        "fn f() { let x = <crate::c::C>::default(); }",
        "type A = <super::c::C as Clone>::Out;",
        "static F: fn() = self::super::c::g;",
        "mod deep { fn f() { super::super::c::g() } }",
        "mod deep { mod er { use super::super::super::c::C; } }",
        "fn f<T>() where crate::c::C: Clone {}",
    ] {
        assert_eq!(of(text), ["a.rs:1 -> c.rs"], "{text}");
    }
    assert_eq!(of("impl crate::b::inner::T for u8 {}"), ["a.rs:1 -> b/inner.rs"]);
    assert_eq!(of("fn f() { x[crate::b::inner::N] }"), ["a.rs:1 -> b/inner.rs"]);
}

#[test]
fn a_path_that_begins_with_an_imported_module_is_followed() {
    assert_eq!(of("use crate::b;\nfn f() { b::inner::N }"), ["a.rs:1 -> b/mod.rs", "a.rs:2 -> b/inner.rs"]);
    assert_eq!(of("use crate as root;\nfn f() { root::c::g() }"), ["a.rs:2 -> c.rs"]);
    assert_eq!(
        of("use crate::b::inner as i;\nuse i::Own;"),
        ["a.rs:1 -> b/inner.rs", "a.rs:2 -> b/inner.rs"]
    );
}

#[test]
fn a_name_that_is_passed_on_leads_to_both_files() {
    assert_eq!(of("use crate::b::Passed;"), ["a.rs:1 -> b/inner.rs", "a.rs:1 -> b/mod.rs"]);
    let chain = imports(
        "mod a; mod b; mod c; pub use c::C;",
        &[
            ("a.rs", "fn f() -> crate::C {}"),
            ("b.rs", "pub use crate::a::*; pub use missing::Foreign;"),
            ("c.rs", "pub struct C; use crate::b::{f, Foreign};"),
        ],
    );
    assert_eq!(
        chain,
        [
            "a.rs:1 -> c.rs",
            "a.rs:1 -> lib.rs",
            "b.rs:1 -> a.rs",
            "c.rs:1 -> a.rs",
            "c.rs:1 -> b.rs",
            "lib.rs:1 -> c.rs",
        ]
    );
}

#[test]
fn globs_lead_to_the_module_and_to_what_is_used_of_it() {
    assert_eq!(of("use crate::b::*;"), ["a.rs:1 -> b/mod.rs"]);
    assert_eq!(of("use crate::b::*;\nfn f() -> Passed {}"), ["a.rs:1 -> b/mod.rs", "a.rs:2 -> b/inner.rs"]);
    assert_eq!(
        of("use crate::b::*;\nfn f() { log!(N, Passed) }"),
        ["a.rs:1 -> b/mod.rs", "a.rs:2 -> b/inner.rs"]
    );
    assert_eq!(of("mod deep { use super::*; fn f() { C; } }\nuse crate::c::C;"), ["a.rs:2 -> c.rs"]);
    let child = imports(
        "mod room;",
        &[
            ("room/mod.rs", "mod child; use child::f; struct Own;"),
            ("room/child.rs", "use super::*;\npub fn f() -> Own {}"),
        ],
    );
    assert_eq!(child, ["room/child.rs:1 -> room/mod.rs", "room/mod.rs:1 -> room/child.rs",]);
}

#[test]
fn macros_and_their_tokens_are_imports() {
    for text in [
        "fn f() { println!(\"{}\", crate::c::g()) }",
        "fn f() { vec![0; super::c::g()] }",
        "anything! { use crate::{c::C, c::X}; }",
        "macro_rules! own { ($x:expr) => { $crate::c::g($x) } }",
        "macro_rules! own { () => { super::c::g() } }",
        "use crate::c;\nown!(c::g, other);",
        "fn f() { crate::c::c_macro!() }",
        "use crate::c::c_macro;",
    ] {
        assert_eq!(
            of(text).last().map(|import| &import[import.find("->").expect("an arrow")..]),
            Some("-> c.rs"),
            "{text}"
        );
    }
    let within = "macro_rules! own { ($x:ident) => { mod $x { use super::*; super::super::c::g() } } }";
    assert_eq!(of(within), ["a.rs:1 -> c.rs"]);
    assert_eq!(of("fn f() { textual!() }"), ["a.rs:1 -> macros.rs"]);
    assert_eq!(of("fn f() { other!(textual!()) }"), ["a.rs:1 -> macros.rs"]);
    let parent = imports(
        "mod p;",
        &[("p.rs", "macro_rules! of_parent { () => {} } mod a;"), ("p/a.rs", "of_parent!();")],
    );
    assert_eq!(parent, ["p/a.rs:1 -> p.rs"]);
    let exported = imports(
        "mod a; mod b;",
        &[("a.rs", "crate::exported!();"), ("b.rs", "#[macro_export] macro_rules! exported { () => {} }")],
    );
    assert_eq!(exported, ["a.rs:1 -> b.rs"]);
}

#[test]
fn what_a_macro_makes_up_is_in_its_module() {
    assert_eq!(of("use crate::c::Generated;"), ["a.rs:1 -> c.rs"]);
    assert_eq!(of("fn f() { crate::b::inner::generated::x() }"), ["a.rs:1 -> b/inner.rs"]);
}

#[test]
fn other_crates_own_names_and_words_are_no_imports() {
    for text in [
        "use std::mem; use ::c::C; fn f() { mem::swap(c::g()); ::b::f() }",
        "mod c { pub fn g() {} } fn f() { c::g(); self::c::g(); Self::b::f() }",
        "// crate::c::C\n/// [`crate::c::C`]\nfn f() { \"crate::c::C\" }",
        "pub(in crate::c) struct S;",
        "pub(crate) struct S; fn f(c: u8) { c.g(x.c); c; log!(c, x.c, 'c) }",
        "use super::*;",
        "use crate::a::X;",
    ] {
        let found: Vec<_> = of(text).into_iter().filter(|import| !import.ends_with("lib.rs")).collect();
        assert_eq!(found, [""; 0], "{text}");
    }
}

#[test]
fn code_for_tests_only_is_left_out() {
    for text in [
        "#[cfg(test)]\nmod tests { use crate::c::C; }",
        "#[cfg(test)] use crate::c::C;",
        "#[cfg(all(test, unix))] fn f() { crate::c::g() }",
        "#[test] fn f() { crate::c::g() }",
        "impl X { #[cfg(test)] fn f() { crate::c::g() } }",
        "struct S { #[cfg(test)] x: crate::c::C }",
        "fn f() { #[cfg(test)] crate::c::g(); }",
        "fn f() { #[cfg(test)] { crate::c::g() } }",
        "fn f() { #[cfg(test)] let x = crate::c::g(); }",
        "fn f() { match x { #[cfg(test)] 1 => crate::c::g(), _ => {} } }",
    ] {
        assert_eq!(of(text), [""; 0], "{text}");
    }
    let files = [
        ("a.rs", "#[cfg(test)]\nmod a_tests;"),
        ("a/a_tests.rs", "use crate::b::B;"),
        ("b.rs", "use crate::a::A;"),
    ];
    assert_eq!(imports("mod a; mod b;", &files), ["b.rs:1 -> a.rs"]);
    assert_eq!(of("#[cfg(not(test))] use crate::c::C;"), ["a.rs:1 -> c.rs"]);
    assert_eq!(of("#[cfg(any(test, feature = \"x\"))] use crate::c::C;"), ["a.rs:1 -> c.rs"]);
}

#[test]
fn modules_are_found_where_rust_finds_them() {
    let found = imports(
        "mod a; mod inline { mod nested; } #[path = \"odd.rs\"] mod named;",
        &[
            ("a.rs", "mod b; use b::c::C;"),
            ("a/b/mod.rs", "pub mod c;"),
            ("a/b/c.rs", "use crate::inline::nested::N; pub struct C;"),
            ("inline/nested.rs", "use crate::named::O; use super::super::named::O;"),
            ("odd.rs", "use crate::a;"),
        ],
    );
    assert_eq!(
        found,
        [
            "a.rs:1 -> a/b/c.rs",
            "a/b/c.rs:1 -> inline/nested.rs",
            "inline/nested.rs:1 -> odd.rs",
            "odd.rs:1 -> a.rs",
        ]
    );
}

#[test]
fn imports_that_import_each_other_end() {
    let found = imports(
        "mod a; mod b;",
        &[("a.rs", "pub use crate::b::*;"), ("b.rs", "pub use crate::a::*; use crate::a::X;")],
    );
    assert_eq!(found, ["a.rs:1 -> b.rs", "b.rs:1 -> a.rs"]);
}

#[test]
fn what_is_no_rust_and_no_crate_is_an_error() {
    let of = |path: &str, text: &str| ModuleGraph::of("src", &[(path.to_owned(), text.to_owned())].into());
    assert!(of("lib.rs", "fn {").is_err());
    assert!(of("other.rs", "").is_err());
    assert_eq!(of("main.rs", "mod absent;").expect("it parses").not_understood.len(), 1);
}
