"""The shims that are compiled against PyTorch's headers.

A wheel by `cargo xtask wheel` has them prebuilt for the tested releases of PyTorch. Otherwise the first use compiles them.
python/backend/torch_release.py, which builds the wheel, takes everything that decides whether a prebuilt shim fits from
here, so the two cannot differ.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from . import _shim

STANDARDS: Mapping[str, Sequence[str]] = {"torch_alloc": ["-std=c++20", "-std=c++17"], "torch_cpu": ["-std=c++17"]}
"""The shims, and the standards to try: first that of PyTorch itself, then those that its older releases and older
compilers support. A prebuilt shim uses the first."""

# dlsym, which torch_alloc calls, is in a library of its own before glibc 2.34.
_ARGUMENTS: Mapping[str, Sequence[str]] = {"torch_alloc": ["-DBFC_WITH_TORCH"], "torch_cpu": ["-Wl,--no-undefined"]}


@dataclasses.dataclass(frozen=True)
class Release:
    """A build of PyTorch."""

    version: str
    """With the local part: ``2.15.0+cu132``."""
    commit: str
    """The commit it was built from, because distributions have their own builds with the same version."""
    cxx11_abi: int
    """1 if its strings are those of C++11."""
    package: pathlib.Path

    @property
    def name(self) -> str:
        return f"torch-{self.version}"

    @property
    def include(self) -> pathlib.Path:
        return self.package / "include"

    @property
    def library(self) -> pathlib.Path:
        return self.package / "lib" / "libc10.so"

    def flags(self, shim: str, standard: str) -> list[str]:
        return [standard, f"-D_GLIBCXX_USE_CXX11_ABI={self.cxx11_abi}", *_ARGUMENTS[shim]]

    def prebuilt(self, shim: str) -> pathlib.Path:
        """Returns the path of the shim for exactly this build, if the package has it."""
        flags = self.flags(shim, STANDARDS[shim][0])
        return _shim.prebuilt_file(shim, self.name, [self.version, self.commit, *flags])


def installed(torch: Any) -> Release:
    """Returns the imported release."""
    return Release(
        version=str(torch.__version__),
        commit=str(getattr(torch.version, "git_version", None)),
        cxx11_abi=int(torch.compiled_with_cxx11_abi()),
        package=pathlib.Path(torch.__file__).parent,
    )


def find(shim: str, torch: Any) -> pathlib.Path:
    """Returns the shim for the imported PyTorch: the prebuilt one, else one that is compiled now or was compiled before.

    :raises bfc._shim.ShimError: None is prebuilt for this release, and there is no compiler or it failed.
    """
    release = installed(torch)
    prebuilt = release.prebuilt(shim)
    reason = _why_not(prebuilt)
    if reason is None:
        return prebuilt
    announced: str | None = f"PyTorch {release.version} ({reason})"
    failed: _shim.ShimError | None = None
    for standard in STANDARDS[shim]:
        try:
            return _shim.build(
                shim,
                flags=release.flags(shim, standard),
                include_dirs=[release.include],
                libraries=[release.library],
                key=[release.version, release.commit],
                announced=announced,
            )
        except _shim.ShimError as error:
            failed, announced = failed or error, None
    assert failed is not None
    raise failed


def _why_not(prebuilt: pathlib.Path) -> str | None:
    """Returns why a prebuilt shim cannot be used, or None if it can. It is loaded here, because a system may lack its dependencies."""
    if not prebuilt.is_file():
        others = ", ".join(_shim.prebuilt_releases("torch-"))
        having = f"releases with prebuilt shims: {others}" if others else "wheels by `cargo xtask wheel` have some"
        return f"no prebuilt shim fits it; {having}"
    try:
        ctypes.CDLL(os.fspath(prebuilt), mode=os.RTLD_NOW)
    except OSError as error:
        return f"its prebuilt shim cannot be loaded: {error}"
    return None
