"""The pack, target/gpu, which `cargo xtask gpu` builds. README.md says what is in it."""

import os
import pathlib
import sys

import pytest

import programs
from programs import ROOT, SIMULATION

HERE = pathlib.Path(__file__).parent
PACK = pathlib.Path(os.environ.get("LIBBFC_TESTS_GPU_PACK", ROOT / "target/gpu"))
# What the tests of PyTorch have is used here too.
sys.path.append(str(HERE.parent / "pytorch"))


@pytest.fixture(scope="session")
def pack():
    assert (PACK / "run").exists(), f"there is no {PACK}: run `cargo xtask test --suite gpu`"
    return PACK


@pytest.fixture(scope="session")
def saxpy(pack):
    """saxpy.cu compiled as C, with the simulated static runtime."""
    flags = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-DCUDART_MAJOR=12", "-I", ROOT / "crates/simcuda"]
    sources = ["-x", "c", HERE / "pack/interposed/saxpy.cu", "-x", "none", SIMULATION / "libcudart_static.a", "-ldl", "-lpthread"]
    command = [programs.compiler("c"), *flags, *sources, "-o"]
    return programs.built("gpu/saxpy", {HERE / "pack/interposed"}, lambda path: programs.check([*command, path]))


@pytest.fixture
def toolkit(saxpy, tmp_path):
    """A folder for PATH with stand-ins for NVIDIA's tools: an old nvcc, which does not know `native` and "compiles" saxpy, and
    a compute-sanitizer that runs a program."""
    folder = tmp_path / "toolkit"
    folder.mkdir()
    scripts = {
        "nvcc": f'case "$*" in *-arch=native*) exit 1 ;; esac\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && cp \'{saxpy}\' "$2"; shift; done\n',
        "compute-sanitizer": 'shift 4 && exec "$@"\n',
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}")
        (folder / name).chmod(0o755)
    return folder
