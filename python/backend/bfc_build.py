"""The build backend of Python's package: hatchling, which is fetched only if the library can be built."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
from collections.abc import Mapping
from typing import Any

_REQUIRED = ["hatchling>=1.27,<2"]
_Settings = Mapping[str, Any] | None


def get_requires_for_build_sdist(settings: _Settings = None) -> list[str]:
    return _REQUIRED


def get_requires_for_build_wheel(settings: _Settings = None) -> list[str]:
    """Fails before anything is fetched if the library cannot be built here."""
    if sys.platform != "linux":
        sys.exit(f"libbfc: cannot build for {sys.platform}: it supports 64-bit Linux only")
    if shutil.which("cargo") is None:
        sys.exit("libbfc: cannot build without cargo, which is not on the PATH: install Rust, see https://rustup.rs")
    return _REQUIRED


get_requires_for_build_editable = get_requires_for_build_wheel


def prepare_metadata_for_build_wheel(folder: str, settings: _Settings = None) -> str:
    """Hatchling has none for pip, which would build the whole library to learn the metadata."""
    from hatchling.builders.wheel import WheelBuilder

    builder = WheelBuilder(os.getcwd())
    info = pathlib.Path(folder, f"{builder.artifact_project_id}.dist-info")
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(builder.config.core_metadata_constructor(builder.metadata), encoding="utf-8")
    return info.name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_sdist(folder: str, settings: dict[str, Any] | None = None) -> str:
    from hatchling import build

    return build.build_sdist(folder, settings)


def build_wheel(folder: str, settings: dict[str, Any] | None = None, metadata: str | None = None) -> str:
    from hatchling import build

    return build.build_wheel(folder, settings, metadata)


def build_editable(folder: str, settings: dict[str, Any] | None = None, metadata: str | None = None) -> str:
    from hatchling import build

    return build.build_editable(folder, settings, metadata)
