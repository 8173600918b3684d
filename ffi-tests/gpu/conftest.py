"""target/gpu, which can be carried to a machine with a GPU and no Rust. README.md says what is in it."""

import json
import pathlib
import shutil
import sys

import pytest

import programs
from programs import LIB, PREFIX, ROOT, SCRATCH

HERE = pathlib.Path(__file__).parent
FOLDER = SCRATCH.parent / "gpu"
CONFORMANCE = ["conformance_cuda", "conformance_cuda_vmm"]
# What the tests of PyTorch have is used here too.
sys.path.append(str(HERE.parent / "pytorch"))


@pytest.fixture(scope="session")
def folder(shared):
    """Built once, by one of the processes that run tests."""
    mark = shared / "gpu"
    with programs.alone("gpu"):
        if not mark.exists():
            _build()
            mark.touch()
    return FOLDER


def _build():
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name in ["bin", "lib"]:
        (FOLDER / name).mkdir(parents=True)
    # The program and the SONAME are beside each other.
    (library,) = LIB.glob("libbfc.so.?")
    for file, target in [
        (library, FOLDER),
        (library, FOLDER / "lib"),
        (LIB / "libbfc_preload.so", FOLDER / "lib"),
        (PREFIX / "bin/bfc", FOLDER / "bin"),
        (HERE / "run", FOLDER),
    ]:
        shutil.copy(file, target)
    for source, name in [
        (PREFIX / "include", "include"),
        (HERE / "interposed", "interposed"),
        (HERE / "frameworks", "frameworks"),
        # Without the installed tree of a wheel: the folder has one.
        (ROOT / "python/src", "python"),
    ]:
        shutil.copytree(source, FOLDER / name, ignore=shutil.ignore_patterns("__pycache__", "_prefix", "*.so"))
    flags = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I", PREFIX / "include"]
    libraries = ["-L", FOLDER, f"-l:{library.name}", "-Wl,-rpath,$ORIGIN", "-ldl"]
    programs.check([programs.compiler("c"), *flags, *HERE.glob("*.c"), "-o", FOLDER / "bfc-gpu", *libraries])

    tests = [f"--test={name}" for name in CONFORMANCE]
    command = ["cargo", "test", "--package=libbfc", "--no-run", "--quiet", "--message-format=json", *tests]
    said = programs.run(*command, env=programs.environment(LD_LIBRARY_PATH=None))
    messages = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    built = {message["target"]["name"]: message["executable"] for message in messages if message.get("executable")}
    for name in CONFORMANCE:
        shutil.copy(built[name], FOLDER / name)
