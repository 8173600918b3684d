"""bfc.torch as users install it."""

import os
import shutil
import zipfile

import pytest

import programs


@pytest.fixture(scope="session")
def package(shared):
    """The wheel's package, unpacked, with the shims that are prebuilt for this PyTorch."""
    folder = shared / "package"
    with programs.alone("pytorch-package"):
        if not folder.exists():
            said = programs.run("cargo", "run", "--quiet", "--package", "xtask", "--", "wheel", env=dict(os.environ))
            wheel = next(line for line in said.splitlines() if line.endswith(".whl") and not line.startswith(" "))
            with zipfile.ZipFile(wheel) as files:
                files.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def package_environment(package, shared):
    return {"PYTHONPATH": str(package), "XDG_CACHE_HOME": str(shared / "cache")}


@pytest.fixture(scope="session")
def compiling_environment(package, shared):
    """The same without prebuilt shims, as for any other release of PyTorch; they are compiled by this very run of the tests."""
    folder = shared / "package-without-shims"
    with programs.alone("pytorch-package-without-shims"):
        if not folder.exists():
            shutil.copytree(package, folder)
            shutil.rmtree(folder / "bfc/shims/prebuilt")
    return {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(shared / "cache")}
