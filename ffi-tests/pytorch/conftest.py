"""bfc.torch as users install it."""

import os
import zipfile

import pytest

import programs


@pytest.fixture(scope="session")
def package_environment(shared, root):
    """The wheel's package, unpacked; the shim is compiled by this very run of the tests."""
    folder = shared / "package"
    with programs.alone("pytorch-package"):
        if not folder.exists():
            said = programs.run("cargo", "run", "--quiet", "--package", "xtask", "--", "wheel", env=dict(os.environ))
            wheel = next(line for line in said.splitlines() if line.endswith(".whl") and not line.startswith(" "))
            with zipfile.ZipFile(wheel) as files:
                files.extractall(folder)
    return {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(shared / "cache")}
