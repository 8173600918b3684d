"""libbfc: TensorFlow's best-fit-with-coalescing (BFC) allocator.

There is one allocator for each device. It obtains regions from the device and allocates chunks of them, by address.
:class:`Pool` is an allocator as an object.

>>> import bfc
>>> bfc.create(bfc.HOST, memory_limit=1 << 30)
>>> address = bfc.alloc(bfc.HOST, 4096)
>>> bfc.owner(address) == bfc.HOST
True
>>> bfc.free(bfc.HOST, address)
>>> bfc.destroy(bfc.HOST)

All functions may be called from any thread. Modules for frameworks are imported by name, for example :mod:`bfc.torch`.
"""

from __future__ import annotations

import pathlib as _pathlib

# Distinguishes this file from that of another distribution, see _library.
_DISTRIBUTION = "libbfc"

from . import _abi, _find, _library
from ._block import Block
from ._devices import HOST, create, destroy, lost, set_memory_limit, trim
from ._errors import Error, OutOfMemoryError, Status
from ._history import history, history_mark
from ._memory import (
    AddressRange,
    address_range,
    alloc,
    allocated_size,
    allocation_id,
    forget_stream,
    free,
    owner,
    record_stream,
    requested_size,
    synchronized,
)
from ._options import Backend, GrowthPolicy
from ._pool import Pool
from ._reports import Stats, check, memory_map, metrics, occupancy, report, reset_stats, scope, stats
from ._snapshot import dump_snapshot, memory_snapshot

__version__ = f"{_abi.BFC_VERSION_MAJOR}.{_abi.BFC_VERSION_MINOR}.{_abi.BFC_VERSION_PATCH}"
"""The version of this package. :func:`version` returns that of the library, which ``BFC_LIBRARY`` may replace."""

__all__ = [
    "HOST",
    "AddressRange",
    "Backend",
    "Block",
    "Error",
    "GrowthPolicy",
    "OutOfMemoryError",
    "Pool",
    "Stats",
    "Status",
    "__version__",
    "address_range",
    "alloc",
    "allocated_size",
    "allocation_id",
    "check",
    "create",
    "destroy",
    "dump_snapshot",
    "forget_stream",
    "free",
    "history",
    "history_mark",
    "include_dir",
    "library_path",
    "lost",
    "memory_map",
    "memory_snapshot",
    "metrics",
    "occupancy",
    "owner",
    "record_stream",
    "report",
    "requested_size",
    "reset_stats",
    "scope",
    "set_memory_limit",
    "stats",
    "synchronized",
    "trim",
    "version",
]


def version() -> str:
    """Returns the library's version, "major.minor.patch"."""
    found: bytes = _library.lib.bfc_version()
    return found.decode()


def library_path() -> _pathlib.Path:
    """Returns the file that the library was loaded from, for example for ``CUDAPluggableAllocator``."""
    return _find.mapped_file(_library.address("bfc_version"))


def include_dir() -> _pathlib.Path:
    """Returns the folder of ``bfc.h``, for compiling C and C++ programs."""
    return _find.include_folder(library_path())
