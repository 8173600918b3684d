"""What libbfc.so shows the linker and the loader."""

import re

import pytest

import elf


@pytest.fixture
def library(prefix):
    return prefix / "lib/libbfc.so"


def test_the_listed_functions_are_exported_and_no_others(library, root):
    listed = re.findall(r"^\w+", (root / "ffi-tests/symbols.txt").read_text(), re.MULTILINE)
    assert elf.exports(library) == sorted(listed), "ffi-tests/symbols.txt lists what may be visible"


def test_it_runs_with_an_old_glibc(library):
    assert not elf.too_new_glibc(library)


def test_soname_nodelete_now_and_what_is_loaded(library, root):
    abi = re.search(r"^abi = (\d+)", (root / "Cargo.toml").read_text(), re.MULTILINE)[1]
    assert not elf.dynamic(library, f"libbfc.so.{abi}")
