"""Builds the wheel: maturin does, after libbfc was built and put into the package.

``pip install ./python`` comes here. It needs Rust and a C compiler.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import maturin

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_Settings = Mapping[str, Any] | None

get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_editable = maturin.get_requires_for_build_editable
prepare_metadata_for_build_wheel = maturin.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = maturin.prepare_metadata_for_build_editable


def build_wheel(folder: str, settings: _Settings = None, metadata: str | None = None) -> str:
    _stage()
    return str(maturin.build_wheel(folder, settings, metadata))


def build_editable(folder: str, settings: _Settings = None, metadata: str | None = None) -> str:
    _stage()
    return str(maturin.build_editable(folder, settings, metadata))


def build_sdist(folder: str, settings: _Settings = None) -> str:
    raise SystemExit("the package is built in libbfc's source tree only: pip install ./python there, or pip wheel ./python")


def _stage() -> None:
    """Builds libbfc and the interposer, and puts them into src/bfc/_prefix."""
    cargo = shutil.which("cargo")
    if cargo is None:
        raise SystemExit("there is no cargo: libbfc is built with Rust, see https://rustup.rs")
    if not (_ROOT / "Cargo.toml").exists():
        raise SystemExit(f"{_ROOT} is not libbfc's source tree: this folder has to stay within it")
    subprocess.run([cargo, "run", "--quiet", "--package", "xtask", "--", "wheel", "--stage"], cwd=_ROOT, check=True)
