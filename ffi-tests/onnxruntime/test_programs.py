"""Programs in C++ with the real ONNX Runtime, and the functions of its CUDA provider called as it calls them, on the
simulated driver. See README.md."""

import os
import pathlib
import shutil
import sysconfig

import pytest

import headers
from conftest import built_model
from pages import Page
from programs import LIB, PREFIX, ROOT, compiled, environment, run

HERE = pathlib.Path(__file__).parent
(LIBRARY,) = pathlib.Path(sysconfig.get_path("purelib")).glob("onnxruntime/capi/libonnxruntime.so*")
FLAGS = "-std=c++17 -O1 -g -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -pthread -D_GNU_SOURCE".split()
# heap.cpp replaces the C library's functions, even for libraries that are loaded later.
FLAGS += ["-rdynamic", "-I", PREFIX / "include"]
LINKS = [f"-L{LIB}", "-lbfc", f"-Wl,-rpath,{LIB}", "-ldl"]
# The headers that can be had here, by the number of the API; the newest has all there is.
NEWEST, OLDEST = "29", "21"
HEADERS = headers.found(pathlib.Path(os.environ["LIBBFC_TESTS_CACHE"]) / "onnxruntime-headers")


def program(name, sources, version=None):
    # A system folder: warnings of their headers are not ours.
    more = ["-isystem", HEADERS[version]] if version else []
    return compiled(f"onnxruntime/{name}{version or ''}", [HERE / source for source in sources], [*FLAGS, *more], LINKS)


PROGRAMS = {"external": [["external.cpp"], [None]], "model": [["model.cpp", "heap.cpp"], [NEWEST, OLDEST]], "calls": [["calls.cpp"], [NEWEST, OLDEST]]}


def all_cases():
    for name, (sources, versions) in PROGRAMS.items():
        for version in versions:
            if version and isinstance(HEADERS[version], Exception):
                why = f"ONNX Runtime's headers of API {version}: {HEADERS[version]}"
                yield pytest.param(None, None, [], id=f"{name}{version}", marks=pytest.mark.skip(reason=why))
                continue
            found = run(program(name, sources, version), "--list").split()
            assert len(found) > 3, found
            arguments = [LIBRARY, built_model()] if version else []
            yield from (pytest.param(program(name, sources, version), case, arguments, id=f"{name}{version or ''}-{case}") for case in found)


@pytest.mark.parametrize("program, case, arguments", all_cases())
def test_case(program, case, arguments):
    run(program, *arguments, case)


@pytest.fixture
def newest():
    if isinstance(HEADERS[NEWEST], Exception):
        Page("onnxruntime").ran("cpp-1")
        pytest.skip(f"ONNX Runtime's headers of API {NEWEST}: {HEADERS[NEWEST]}")
    return HEADERS[NEWEST]


def test_the_shims_header_has_the_tables_of_onnx_runtimes(newest):
    def tables(name, folder):
        return run(compiled(f"onnxruntime/abi-{name}", [HERE / "abi.cpp"], [*FLAGS, "-isystem", folder], LINKS)).splitlines()

    theirs, ours = tables("theirs", newest), tables("ours", ROOT / "python/src/bfc/shims/onnxruntime")
    assert theirs == ours and len(theirs) > 50


def test_the_program_of_the_page(newest, tmp_path):
    page = Page("onnxruntime")
    # Its SONAME is not the name of the wheel's file.
    shutil.copy(LIBRARY, tmp_path / "libonnxruntime.so.1")
    made = compiled("onnxruntime/page", [page.file("cpp-1")], [*FLAGS, "-isystem", newest], [*LINKS, LIBRARY])
    said = run(made, built_model(), env=environment(LD_LIBRARY_PATH=tmp_path))
    assert "*" in said, "it shows no pool in use"
    page.ran("cpp-1")
