"""What the files of the installed tree say: no place, and one version."""

import os
import re

import pytest

from build import PROBE, VERSION, compile, run


def test_no_file_names_the_place_where_it_was_installed(prefix):
    files = [path for path in prefix.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [path for path in files if str(prefix).encode() in path.read_bytes()]
    assert not [path for path in prefix.rglob("*") if path.is_symlink() and os.path.isabs(os.readlink(path))]


@pytest.mark.parametrize(
    "file, pattern",
    [
        ("include/bfc.h", r"#define BFC_VERSION_MAJOR (\d+)\n#define BFC_VERSION_MINOR (\d+)\n#define BFC_VERSION_PATCH (\d+)\n"),
        ("lib/pkgconfig/bfc.pc", r"^Version: (\d+)\.(\d+)\.(\d+)$"),
        ("lib/cmake/bfc/bfcConfigVersion.cmake", r'^set\(PACKAGE_VERSION "(\d+)\.(\d+)\.(\d+)"\)$'),
    ],
    ids=["bfc.h", "bfc.pc", "bfcConfigVersion.cmake"],
)
def test_one_version_in_files(prefix, file, pattern):
    found = re.search(pattern, (prefix / file).read_text(), re.MULTILINE)
    assert ".".join(found.groups()) == VERSION


# Functions of bfc.h that bfc.hpp calls by another one.
SPELLED_OTHERWISE = {"bfc_alloc_freed_before": "request::freed_before, with bfc_alloc_ex"}


def not_in_cpp(header, parts):
    functions = set(re.findall(r"^(?:bfc_status_t|size_t|const char \*) ?(bfc_\w+)\(", header, re.MULTILINE))
    called = set(re.findall(r"\b(bfc_\w+)\b(?=\)?\(|, ec\))", parts))
    return functions - called - set(SPELLED_OTHERWISE)


def test_every_function_of_the_c_header_has_a_form_in_cpp(prefix):
    include = prefix / "include"
    names = re.findall(r'^#include "(bfc/\w+\.hpp)"', (include / "bfc.hpp").read_text(), re.MULTILINE)
    header, parts = (include / "bfc.h").read_text(), [(include / name).read_text() for name in names]
    assert "bfc_alloc_async" in header and not not_in_cpp(header, "\n".join(parts))


def test_a_function_that_cpp_lacks_is_found():
    header = "bfc_status_t bfc_a(int32_t device);\nconst char *bfc_b(void);\nbfc_status_t bfc_c(\n"
    assert not_in_cpp(header, "bfc_a(x) (bfc_c)(y) bfc_b") == {"bfc_b"}


def test_one_version_in_a_program_and_in_the_library(prefix, tmp_path):
    lib = prefix / "lib"
    program = compile(PROBE, tmp_path / "probe", [f"-I{prefix}/include", f"-L{lib}", "-lbfc"])
    assert run(program, LD_LIBRARY_PATH=lib).split() == [VERSION, VERSION]


def test_the_archives_system_libraries_are_named(prefix, tmp_path):
    # Asked of rustc with an empty crate: what is needed is the standard library's doing.
    (tmp_path / "empty.rs").write_text("//! Nothing.\n")
    rustc = [os.environ.get("RUSTC") or "rustc", "--crate-type=staticlib", "--print=native-static-libs"]
    said = run(*rustc, "--out-dir", tmp_path, tmp_path / "empty.rs")
    # The compiler driver links the unwinder that fits.
    needed = set(re.search(r"native-static-libs: (.*)", said)[1].replace("-l", "").split()) - {"gcc_s"}
    in_pkg_config = re.search(r"^Libs\.private: (.*)", (prefix / "lib/pkgconfig/bfc.pc").read_text(), re.MULTILINE)[1]
    in_cmake = re.search(r'INTERFACE_LINK_LIBRARIES "(.*)"', (prefix / "lib/cmake/bfc/bfcTargets.cmake").read_text())[1]
    assert needed and needed <= set(in_pkg_config.replace("-l", "").split()) and needed <= set(in_cmake.split(";"))
