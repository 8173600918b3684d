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


# Functions that the glibc of the wheels has too, in another form or in another of its libraries. From 2.34 on that is so of all of
# libpthread's and libdl's.
MOVED = {"exp", "fstat", "fstat64", "log", "lstat64", "pow", "pthread_getattr_np", "pthread_sigmask", "stat", "stat64"}


@pytest.mark.parametrize("file", ["lib/libbfc.so", "lib/libbfc_preload.so", "bin/bfc"])
def test_no_function_is_newer_than_the_wheels_glibc(prefix, file):
    assert elf.functions_between(prefix / file, (2, 28), (2, 34)) <= MOVED


def test_soname_nodelete_now_and_what_is_loaded(library, root):
    abi = re.search(r"^abi = (\d+)", (root / "Cargo.toml").read_text(), re.MULTILINE)[1]
    assert not elf.dynamic(library, f"libbfc.so.{abi}")
