"""Prints as JSON how the shims for a release of PyTorch are compiled, and where the package looks for them.

`cargo xtask wheel` runs it with the interpreter of an environment that has PyTorch, and with the staged package bfc on
PYTHONPATH. PyTorch is not imported: it would want NVIDIA's libraries.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import runpy

from bfc import _torch_shims


def main() -> None:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise SystemExit("there is no torch in this environment")
    package = pathlib.Path(found.origin).parent
    about = runpy.run_path(str(package / "version.py"))
    # PyTorch's wheels have the strings of C++11 since 2.7. With any other libc10 the shims would not link.
    release = _torch_shims.Release(about["__version__"], about["git_version"], 1, package)
    shims = [
        {"name": name, "flags": release.flags(name, standards[0]), "file": str(release.prebuilt(name))}
        for name, standards in _torch_shims.STANDARDS.items()
    ]
    print(json.dumps({"name": release.name, "include": str(release.include), "library": str(release.library), "shims": shims}))


if __name__ == "__main__":
    main()
