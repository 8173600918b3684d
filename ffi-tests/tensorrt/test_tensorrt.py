"""libbfc's allocator for TensorRT against NVIDIA's headers, called as TensorRT calls it, on the simulated driver. TensorRT
itself is not there. See README.md."""

import os
import pathlib
import subprocess
import sysconfig

import pytest

from pages import Page
from programs import LIB, PREFIX, SIMULATION, check, compiled, compiler, run

HERE = pathlib.Path(__file__).parent
CUDA = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia/cu13/include"
# The crate carries the headers; nothing else of it is used.
CRATE, FOLDER = "trtx-sys@0.9.1", "trtx-sys-0.9.1+rtx1.7"
VERSIONS = ["TRT-Enterprise-11.4", "TRT-RTX-1.3", "TRT-RTX-1.4", "TRT-RTX-1.5", "TRT-RTX-1.6", "TRT-RTX-1.7"]
NEWEST = VERSIONS[0]
# TensorRT's own library is not compiled for default streams of threads, whatever the program is.
DEFINES = [[], ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"]]


def headers():
    """The folder with the headers of each version. `cargo info` unpacks a crate without those that it depends on."""
    sources = pathlib.Path(os.environ.get("CARGO_HOME") or pathlib.Path.home() / ".cargo") / "registry/src"
    find = lambda: next(sources.glob(f"*/{FOLDER}/TensorRT-Headers"), None)
    if find() is None:
        done = subprocess.run(["cargo", "info", "--registry=crates-io", CRATE], cwd="/", capture_output=True, text=True)
        if find() is None:
            pytest.skip(f"cargo could not fetch {CRATE}: {done.stderr}", allow_module_level=True)
    return find()


HEADERS = headers()


def flags(version):
    found = "-std=c++17 -O1 -g -Wall -Wextra -Wpedantic -Werror -pthread".split()
    return [*found, "-I", PREFIX / "include", "-isystem", HEADERS / version, "-isystem", CUDA]


def program(defines):
    libraries = ["-L", LIB, "-l:libbfc.so", "-L", SIMULATION, "-l:libcudart.so.13", "-l:libcuda.so.1"]
    return compiled(f"tensorrt/allocator{''.join(defines)}", [HERE / "allocator.cpp"], [*flags(NEWEST), *defines], libraries)


def test_all_versions_are_looked_at():
    assert sorted(path.name for path in HEADERS.iterdir() if (path / "NvInferRuntime.h").exists()) == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_the_adapter_compiles(version):
    check([compiler("cpp"), *flags(version), "-fsyntax-only", HERE / "allocator.cpp"])


@pytest.mark.parametrize("version", VERSIONS)
def test_the_code_of_the_page_compiles(version):
    # It is compiled, not run: there is nothing of TensorRT to run it with.
    page = Page("tensorrt")
    check([compiler("cpp"), *flags(version), "-fsyntax-only", page.file("cpp-1")])
    page.ran("cpp-1")


CASES = [pytest.param(defines, case, id=case + "".join(defines)) for defines in DEFINES for case in run(program(defines)).split()]


@pytest.mark.parametrize("defines, case", CASES)
def test_case(defines, case):
    run(program(defines), case)


@pytest.mark.parametrize("defines", DEFINES)
def test_a_leak_is_found(defines):
    status, said = run(program(defines), "threads", "leak", status=None)
    assert status != 0 and "ended == BFC_OK" in said
