"""The first use in a new environment: what is loaded, and what is compiled and announced."""

import pathlib
import runpy
import shutil

import pytest

import programs
from running import TORCH, environment, python

# To import it takes the libraries in the place of NVIDIA's.
VERSION = runpy.run_path(str(TORCH / "version.py"))["__version__"]
MODULES = {"torch": "torch_alloc", "torch_cpu": "torch_cpu"}
both = pytest.mark.parametrize("module", MODULES)
FAKED = "2.14.0+cpu"


@pytest.fixture
def use(package, tmp_path):
    """Runs a first use with a copy of the package: the shim's file, and all that was said."""
    folder, cache = tmp_path / "package", tmp_path / "cache"
    shutil.copytree(package, folder)

    def use(*arguments, **variables):
        variables = {"PYTHONPATH": folder, "XDG_CACHE_HOME": cache} | variables
        *said, file = programs.run(*python("first_use.py", *arguments), env=environment(**variables)).splitlines()
        return pathlib.Path(file), "\n".join(said)

    use.shims, use.cache = folder / "bfc/shims", cache / "libbfc/shims"
    return use


def prebuilt(use, module):
    (file,) = use.shims.glob(f"prebuilt/torch-{VERSION}/{MODULES[module]}-*.so")
    return file


def compiled(use, module):
    (file,) = use.cache.glob(f"{MODULES[module]}-*.so")
    return file


@both
def test_the_tested_pytorch_needs_no_compiler_and_no_cache(use, module, tmp_path):
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    file, said = use(module, PATH=nothing, CXX="/nonexistent/c++")
    assert file == prebuilt(use, module) and said == ""
    assert not use.cache.exists()


@both
def test_another_version_compiles_once_and_announces_it(use, module):
    file, said = use(module, FAKED)
    assert file == compiled(use, module)
    (line,) = said.splitlines()
    assert line.startswith(f"compiling {MODULES[module]}.cpp for PyTorch {FAKED} (no prebuilt shim fits it;"), line
    assert f"releases with prebuilt shims: {VERSION})" in line
    assert line.endswith(f"this takes a few seconds, once; the result is kept in {use.cache}")
    assert use(module, FAKED) == (file, "")


@both
@pytest.mark.parametrize("changed", ["source", "header"])
def test_a_shim_of_another_source_is_not_loaded(use, module, changed):
    stale = prebuilt(use, module)
    source = use.shims / f"{MODULES[module]}.cpp" if changed == "source" else use.shims.parent / "_prefix/include/bfc.h"
    source.write_text(source.read_text() + "// another\n")
    file, said = use(module)
    assert stale.exists() and file == compiled(use, module)
    assert said.startswith(f"compiling {MODULES[module]}.cpp for PyTorch {VERSION} (no prebuilt shim fits it;"), said


@both
def test_a_prebuilt_shim_that_cannot_be_loaded_is_compiled(use, module):
    prebuilt(use, module).write_bytes(b"no library")
    file, said = use(module)
    assert file == compiled(use, module)
    assert f"for PyTorch {VERSION} (its prebuilt shim cannot be loaded: {prebuilt(use, module)}" in said, said
