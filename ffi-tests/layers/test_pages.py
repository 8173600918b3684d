"""What pages say of the sources: the files that ARCHITECTURE.md names, and the environment variables."""

import pathlib
import re

import pytest

from imports import PARSER, TESTS_ONLY

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = {"src", "crates", "xtask", "tests", "ffi-tests", "include", "python", "docs", "benches"}
# Documented with the others, and not the library's: the bfc command reads them.
OF_THE_COMMAND = {"BFC_LIBRARY", "BFC_PRELOAD_LIBRARY"}


def missing(page, root=ROOT):
    """Names in inline code like `src/pool/slot` and `tests/conformance_*.rs` of which nothing is there."""
    names = [name for name in page.split("`")[1::2] if "/" in name and name.split("/")[0] in FOLDERS and not re.search(r"\s", name)]
    return [name for name in names if not list(root.glob(name)) and not list(root.glob(f"{name}.rs"))]


def read_variables(source):
    """The variables that a source asks for, by a C string; not what is for tests only."""
    found, waiting, attributes = set(), [PARSER.parse(source).root_node], []
    while waiting:
        node = waiting.pop()
        if node.type in ("string_literal", "raw_string_literal"):
            found |= set(re.findall(r'^c"(BFC_\w+)"$', node.text.decode()))
        for child in node.children:
            if child.type == "attribute_item":
                attributes.append(child.text.decode())
            elif not child.type.endswith("comment"):
                if not any(TESTS_ONLY.match(attribute) for attribute in attributes):
                    waiting.append(child)
                attributes = []
    return found


def rows(page):
    """The variables that have a row in a table."""
    return re.findall(r"^\| `(BFC_\w+)` \|", page, re.MULTILINE)


def test_the_files_that_the_page_on_architecture_names_are_there():
    assert not missing((ROOT / "ARCHITECTURE.md").read_text())


def test_the_documented_variables_are_those_that_are_read():
    sources = [*ROOT.glob("src/**/*.rs"), *ROOT.glob("crates/preload/src/**/*.rs")]
    read = set().union(*(read_variables(path.read_bytes()) for path in sources))
    assert len(read) > 10, "has the way in which the sources read them changed?"
    documented = rows((ROOT / "docs/environment.md").read_text())
    assert len(set(documented)) == len(documented)
    assert set(documented) == read | OF_THE_COMMAND


def test_a_name_of_nothing_is_found():
    assert not missing("`src/pool/slot`, `xtask/src/main.rs`, `tests/conformance_*.rs`, `src/lib`, `a/b`, `ls src/x`, `docs/`")
    assert missing("see `src/options.rs`, `tests/nothing_*.rs`, `docs/absent/`") == ["src/options.rs", "tests/nothing_*.rs", "docs/absent/"]


@pytest.mark.parametrize(
    "source, variables",
    [
        ('fn f() { env(c"BFC_LOG") }', {"BFC_LOG"}),
        ('fn f() { env("BFC_LOG"); say("set BFC_GC"); }', set()),
        ('// c"BFC_LOG"\n/* c"BFC_GC" */', set()),
        ('#[cfg(test)]\nmod tests { fn f() { env(c"BFC_LOG") } }\nconst GC: &CStr = c"BFC_GC";', {"BFC_GC"}),
    ],
)
def test_variables_are_found_in_code_that_is_no_test(source, variables):
    assert read_variables(source.encode()) == variables


def test_rows_are_those_of_tables():
    assert rows("Set `BFC_A`.\n| name |\n|---|\n| `BFC_B` | a level |\n| `BFC_C` | see `BFC_D` |\n") == ["BFC_B", "BFC_C"]
