"""Every way to write an import, each in a small crate that has no other."""

import pytest

from imports import Crate
from python_imports import Package

BESIDE = {
    "lib.rs": "mod a; mod b; mod c; #[macro_use] mod macros;",
    "b/mod.rs": "pub mod inner; pub use self::inner::Passed; pub struct B; pub enum E { X } pub fn f() {}",
    "b/inner.rs": "pub struct Passed; pub struct Own; pub trait T {} pub const N: u8 = 1;",
    "c.rs": "pub struct C; pub fn g() {} macro_rules! c_macro { () => {} } pub(crate) use c_macro;",
    "macros.rs": "macro_rules! textual { () => {} }",
}


def imports(files):
    crate = Crate("", "src", files)
    assert not crate.not_understood
    short = lambda path: path.removeprefix("src/")
    return list(dict.fromkeys(f"{short(found.source)}:{found.line} -> {short(found.target)}" for found in crate.imports()))


def of(text):
    """The imports of src/a.rs with this text, beside modules that define what it may name."""
    return [found for found in imports(BESIDE | {"a.rs": text}) if found.startswith("a.rs")]


USES = {
    "use crate::c::C;": ["a.rs:1 -> c.rs"],
    "\nuse super::c::{self, C as D};": ["a.rs:2 -> c.rs"],
    "use super::c;": ["a.rs:1 -> c.rs"],
    "use crate::{\n    c::{C},\n    b::inner::{Own, T},\n};": ["a.rs:1 -> b/inner.rs", "a.rs:1 -> c.rs"],
    "pub(crate) use crate::c::C;": ["a.rs:1 -> c.rs"],
    "use crate::b::E::X;": ["a.rs:1 -> b/mod.rs"],
    "use crate::b::E::*;": ["a.rs:1 -> b/mod.rs"],
    "fn f() {\n    use crate::c::C;\n}": ["a.rs:2 -> c.rs"],
    "#[cfg(unix)] use crate::c::C;": ["a.rs:1 -> c.rs"],
    "#[cfg(not(test))] use crate::c::C;": ["a.rs:1 -> c.rs"],
    '#[cfg(any(test, feature = "x"))] use crate::c::C;': ["a.rs:1 -> c.rs"],
    # A path that begins with an imported module is followed.
    "use crate::b;\nfn f() { b::inner::N }": ["a.rs:1 -> b/mod.rs", "a.rs:2 -> b/inner.rs"],
    "use crate as root;\nfn f() { root::c::g() }": ["a.rs:2 -> c.rs"],
    "use crate::b::inner as i;\nuse i::Own;": ["a.rs:1 -> b/inner.rs", "a.rs:2 -> b/inner.rs"],
    # A name that is passed on leads to both files.
    "use crate::b::Passed;": ["a.rs:1 -> b/inner.rs", "a.rs:1 -> b/mod.rs"],
    # Globs lead to the module, and to what is used of it.
    "use crate::b::*;": ["a.rs:1 -> b/mod.rs"],
    "use crate::b::*;\nfn f() -> Passed {}": ["a.rs:1 -> b/mod.rs", "a.rs:2 -> b/inner.rs"],
    "use crate::b::*;\nfn f() { log!(N, Passed) }": ["a.rs:1 -> b/mod.rs", "a.rs:2 -> b/inner.rs"],
    "mod deep { use super::*; fn f() { C; } }\nuse crate::c::C;": ["a.rs:2 -> c.rs"],
    # What a macro makes up is in its module.
    "use crate::c::Generated;": ["a.rs:1 -> c.rs"],
    "fn f() { crate::b::inner::generated::x() }": ["a.rs:1 -> b/inner.rs"],
    "fn f() { textual!() }": ["a.rs:1 -> macros.rs"],
    "fn f() { other!(textual!()) }": ["a.rs:1 -> macros.rs"],
    "impl crate::b::inner::T for u8 {}": ["a.rs:1 -> b/inner.rs"],
    "fn f() { x[crate::b::inner::N] }": ["a.rs:1 -> b/inner.rs"],
}


@pytest.mark.parametrize("text", USES)
def test_uses_are_followed_to_the_file_that_defines_the_name(text):
    assert of(text) == USES[text]


@pytest.mark.parametrize(
    "text",
    [
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
        'fn f() { println!("{}", crate::c::g()) }',
        "fn f() { vec![0; super::c::g()] }",
        "macro_rules! own { ($x:expr) => { $crate::c::g($x) } }",
        "macro_rules! own { () => { super::c::g() } }",
        "fn f() { crate::c::c_macro!() }",
        "use crate::c::c_macro;",
        "macro_rules! own { ($x:ident) => { mod $x { use super::*; super::super::c::g() } } }",
    ],
)
def test_inline_paths_and_the_tokens_of_macros_are_imports(text):
    assert of(text) == ["a.rs:1 -> c.rs"]


@pytest.mark.parametrize(
    "text",
    [
        "use std::mem; use ::c::C; fn f() { mem::swap(c::g()); ::b::f() }",
        "mod c { pub fn g() {} } fn f() { c::g(); self::c::g(); Self::b::f() }",
        '// crate::c::C\n/// [`crate::c::C`]\nfn f() { "crate::c::C" }',
        "pub(in crate::c) struct S;",
        "pub(crate) struct S; fn f(c: u8) { c.g(x.c); c; log!(c, x.c, 'c) }",
        "use crate::a::X;",
        # Code for tests only.
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
    ],
)
def test_other_crates_own_names_words_and_tests_are_no_imports(text):
    assert of(text) == []


CRATES = [
    (
        {"lib.rs": "mod a; mod b; mod c; pub use c::C;", "a.rs": "fn f() -> crate::C {}"}
        | {"b.rs": "pub use crate::a::*; pub use missing::Foreign;", "c.rs": "pub struct C; use crate::b::{f, Foreign};"},
        "a.rs:1 -> c.rs, a.rs:1 -> lib.rs, b.rs:1 -> a.rs, c.rs:1 -> a.rs, c.rs:1 -> b.rs, lib.rs:1 -> c.rs",
    ),
    (
        {"lib.rs": "mod room;", "room/mod.rs": "mod child; use child::f; struct Own;", "room/child.rs": "use super::*;\npub fn f() -> Own {}"},
        "room/child.rs:1 -> room/mod.rs, room/mod.rs:1 -> room/child.rs",
    ),
    # Before another name a module is meant, and not a function of its name.
    (
        {"lib.rs": "mod check; mod hand_out; pub use self::hand_out::hand_out;"}
        | {"hand_out.rs": "pub fn hand_out() {} pub fn turn() {}", "check.rs": "use super::hand_out::turn;"},
        "check.rs:1 -> hand_out.rs, lib.rs:1 -> hand_out.rs",
    ),
    ({"lib.rs": "mod p;", "p.rs": "macro_rules! of_parent { () => {} } mod a;", "p/a.rs": "of_parent!();"}, "p/a.rs:1 -> p.rs"),
    (
        {"lib.rs": "mod a; mod b;", "a.rs": "crate::exported!();", "b.rs": "#[macro_export] macro_rules! exported { () => {} }"},
        "a.rs:1 -> b.rs",
    ),
    ({"lib.rs": "mod a; mod b;", "a.rs": "pub use crate::b::*;", "b.rs": "pub use crate::a::*; use crate::a::X;"}, "a.rs:1 -> b.rs, b.rs:1 -> a.rs"),
    (
        {"lib.rs": "mod a; mod inline { mod nested; }", "a.rs": "mod b; use b::c::C;", "a/b/mod.rs": "pub mod c;"}
        | {"a/b/c.rs": "use crate::inline::nested::N; pub struct C;", "inline/nested.rs": "use crate::a;"},
        "a.rs:1 -> a/b/c.rs, a/b/c.rs:1 -> inline/nested.rs, inline/nested.rs:1 -> a.rs",
    ),
    (
        {"lib.rs": "mod a; mod b;", "a.rs": "#[cfg(test)]\nmod a_tests;", "a/a_tests.rs": "use crate::b::B;", "b.rs": "use crate::a::A;"},
        "b.rs:1 -> a.rs",
    ),
    ({"lib.rs": "mod a; mod c;", "a.rs": "anything! { use crate::{c::C, c::X}; }", "c.rs": ""}, "a.rs:1 -> c.rs"),
]


@pytest.mark.parametrize("files, expected", CRATES)
def test_names_are_resolved_as_rust_does(files, expected):
    assert ", ".join(imports(files)) == expected


@pytest.mark.parametrize("text", ["fn {", "mod absent;", 'include!("b.in");'])
def test_what_is_not_understood_is_said(text):
    assert Crate("", "src", {"lib.rs": text}).not_understood


def test_a_folder_without_a_root_is_no_crate():
    with pytest.raises(ValueError):
        Crate("", "src", {"other.rs": ""})


@pytest.mark.parametrize(
    "path, text, target",
    [
        ("a.py", "from . import b", "b.py"),
        ("a.py", "from .b import B", "b.py"),
        ("a.py", "\n\nimport bfc.b as other", "b.py"),
        ("a.py", "def f():\n    from bfc.b import B", "b.py"),
        ("a.py", "if TYPE_CHECKING:\n    from bfc import b", "b.py"),
        ("a.py", "import bfc", "__init__.py"),
        ("a.py", "from . import B", "__init__.py"),
        ("a.py", "from .deep import B", "deep/__init__.py"),
        ("a.py", "import os, bfcs.b; from os import b; from . import a", None),
        ("__init__.py", "from .a import b", "a.py"),
        ("deep/__init__.py", "from . import c", "deep/c.py"),
        ("deep/c.py", "from .. import b", "b.py"),
        ("deep/c.py", "from ..b import c", "b.py"),
        ("deep/c.py", "from . import B", "deep/__init__.py"),
    ],
)
def test_imports_of_python_are_followed_to_the_file(path, text, target):
    files = dict.fromkeys(["__init__.py", "a.py", "b.py", "deep/__init__.py", "deep/c.py"], "")
    found = [found.target for found in Package("", "src/bfc", files | {path: text}).imports()]
    assert found == ([f"src/bfc/{target}"] if target else [])
