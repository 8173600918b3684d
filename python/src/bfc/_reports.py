"""What an allocator says of itself."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
from collections.abc import Iterator
from typing import Any, SupportsIndex

from . import _abi, _library, _numbers


@dataclasses.dataclass(frozen=True, repr=False)
class Stats:
    """The statistics of an allocator at one moment: bytes and counts, the fields of ``bfc_stats_t``. As text, and in notebooks, they
    are a table."""

    num_allocs: int
    """Successful allocations since creation or :func:`reset_stats`; 0 bytes do not count."""
    num_frees: int
    """Successful frees; of address 0 none counts."""
    num_failures: int
    """Requests that could not be served."""
    bytes_in_use: int
    """Sizes of the chunks in use, slack included, as TensorFlow counts."""
    peak_bytes_in_use: int
    """The highest bytes_in_use."""
    bytes_requested: int
    """What callers asked for, of the chunks in use."""
    peak_bytes_requested: int
    """The highest bytes_requested."""
    largest_alloc_size: int
    """The largest chunk handed out."""
    bytes_limit: int
    """The most that may be held from the backend."""
    pool_bytes: int
    """Held from the backend."""
    peak_pool_bytes: int
    """The highest pool_bytes."""
    largest_free_block_bytes: int
    """The largest free chunk that a request could get."""
    num_regions: int
    """Regions held from the backend."""
    num_chunks: int
    """Chunks, in use and free."""
    num_free_chunks: int
    """Free chunks."""
    metadata_bytes: int
    """Host memory that the allocator itself holds."""
    num_planned_allocs: int
    """Allocations that lie where a plan has them."""

    def _rows(self) -> Iterator[tuple[str, str]]:
        for name, value in dataclasses.asdict(self).items():
            is_count = name.startswith("num_")
            yield name, f"{value:,}" if is_count else _numbers.human(value)

    def __repr__(self) -> str:
        """
        >>> import bfc
        >>> with bfc.Pool("host", limit="1GiB") as pool:
        ...     print(*str(pool.stats()).splitlines()[:3], sep="\\n")
        bfc.Stats
          num_allocs                          0
          num_frees                           0
        """
        return "\n".join(["bfc.Stats", *(f"  {name:<26}{value:>11}" for name, value in self._rows())])

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{name}</td><td style='text-align: right'>{value}</td></tr>" for name, value in self._rows())
        return f"<table>{rows}</table>"


def stats(device: SupportsIndex) -> Stats:
    """The statistics of this moment.

    :raises Error: NO_ALLOCATOR and others: see ``bfc_stats``.

    >>> import bfc
    >>> bfc.create(bfc.HOST)
    >>> address = bfc.alloc(bfc.HOST, 1000)
    >>> bfc.stats(bfc.HOST).bytes_in_use, bfc.stats(bfc.HOST).bytes_requested
    (1024, 1000)
    >>> bfc.destroy(bfc.HOST, force=True)
    """
    found = _abi.bfc_stats_t(struct_size=ctypes.sizeof(_abi.bfc_stats_t))
    _library.call("bfc_stats", _numbers.device(device), ctypes.byref(found))
    return Stats(**{field.name: getattr(found, field.name) for field in dataclasses.fields(Stats)})


def reset_stats(device: SupportsIndex) -> None:
    """Sets the counts and the largest allocation to 0, and the peaks to the current values."""
    _library.call("bfc_reset_stats", _numbers.device(device))


def check(device: SupportsIndex) -> None:
    """Checks the allocator's books: ``bfc_check``. INTERNAL if they are broken."""
    _library.call("bfc_check", _numbers.device(device))


def report(device: SupportsIndex) -> str:
    """The report for a person who ran out of memory: docs/reports.md.

    >>> import bfc
    >>> bfc.create(bfc.HOST)
    >>> "device 256" in bfc.report(bfc.HOST)
    True
    >>> bfc.destroy(bfc.HOST)
    """
    return _library.text("bfc_report", _numbers.device(device))


def occupancy(device: SupportsIndex) -> str:
    """The pool in 100 columns: ``*`` used, ``x`` slack inside a chunk, ``_`` free."""
    return _library.text("bfc_occupancy", _numbers.device(device))


def memory_map(device: SupportsIndex) -> dict[str, Any]:
    """Regions, chunks, bins and statistics: docs/memory-map.md has the schema."""
    found: dict[str, Any] = json.loads(_library.text("bfc_memory_map", _numbers.device(device)))
    return found


@contextlib.contextmanager
def scope(operation: str, step: SupportsIndex = 0) -> Iterator[None]:
    """Names the operation on whose behalf this thread allocates; reports then say what each operation holds. Scopes
    nest at most 8 deep. Reports show the names of all open scopes with slashes between them ("outer/inner"), and the
    step of the innermost.

    >>> import bfc
    >>> with bfc.scope("attention", step=3):
    ...     pass
    """
    _library.call("bfc_scope_begin", _numbers.text(operation, "operation"), _numbers.unsigned(step, "step"))
    try:
        yield
    finally:
        _library.call("bfc_scope_end")
