"""The location of libbfc.so and its headers."""

from __future__ import annotations

import ctypes
import os
import pathlib

from . import _abi

PREFIX = pathlib.Path(__file__).parent / "_prefix"
"""The files in the wheel: a tree as created by ``cargo xtask install``."""

# The SONAME first, because an installed client loads that. A cargo build has only the second name.
NAMES = (_abi.BFC_SONAME, "libbfc.so")

_VARIABLE = "BFC_LIBRARY"


def open_library() -> ctypes.CDLL:
    """Opens the library: the one that ``BFC_LIBRARY`` names; else one that the process has already loaded (as a part of
    the program, or by ``bfc run``), because two libraries would have two allocators for one device; else the wheel's; else
    the one that the loader finds."""
    named = os.environ.get(_VARIABLE)
    if named:
        # There is no fallback.
        return _opened(_inside(pathlib.Path(named)), f"from {_VARIABLE}")
    try:
        return ctypes.CDLL(NAMES[0], mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        pass
    bundled = PREFIX / "lib" / NAMES[0]
    if bundled.exists():
        return _opened(bundled, "of this package")
    try:
        return ctypes.CDLL(NAMES[0], mode=os.RTLD_NOW)
    except OSError as error:
        raise ImportError(
            f"libbfc.so was not found: this bfc is no installed wheel ({bundled} is missing), {_VARIABLE} is not set, "
            f"and the loader says: {error}; pip install -v . in libbfc's source, or set {_VARIABLE} to the library"
        ) from None


def _inside(named: pathlib.Path) -> pathlib.Path:
    if not named.is_dir():
        # The loader would search the system for a name without a slash.
        return named.absolute()
    for name in NAMES:
        if (named / name).exists():
            return (named / name).absolute()
    raise ImportError(f"{_VARIABLE} names the folder {named}, which contains no libbfc.so")


def _opened(path: pathlib.Path, source: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(os.fspath(path), mode=os.RTLD_NOW)
    except OSError as error:
        raise ImportError(f"cannot open {path} ({source}): {error}") from None


def mapped_file(address: int) -> pathlib.Path:
    """Returns the file that a piece of code was loaded from, according to the system."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            start, end = (int(number, 16) for number in line.split(maxsplit=1)[0].split("-"))
            if start <= address < end and "/" in line:
                # An upgrade may have put another file in its place.
                return pathlib.Path(line[line.index("/") :].rstrip("\n").removesuffix(" (deleted)"))
    raise ImportError(f"no file is mapped at {address:#x}")


def include_folder(library: pathlib.Path) -> pathlib.Path:
    """Returns the folder with the bfc.h of a library: next to the library's folder, else in the source tree."""
    source = pathlib.Path(__file__).parents[3] / "include"
    for folder in (library.parent.parent / "include", PREFIX / "include", source):
        if (folder / "bfc.h").exists():
            return folder
    raise FileNotFoundError(f"there are no headers of libbfc beside {library}, nor in {source}")
