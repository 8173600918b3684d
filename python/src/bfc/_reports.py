"""Statistics and reports."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import html
import json
from collections.abc import Iterator
from typing import Any, SupportsIndex

from . import _abi, _library, _numbers
from ._messages import in_python


@dataclasses.dataclass(frozen=True, repr=False)
class Stats:
    """The statistics of an allocator at one moment: the fields of ``bfc_stats_t``, in bytes and counts. ``repr`` shows a table,
    in Jupyter too."""

    num_allocs: int
    """Successful allocations since creation or :func:`reset_stats`. Allocations of 0 bytes do not count."""
    num_frees: int
    """Successful frees. Frees of address 0 do not count."""
    num_failures: int
    """Requests that could not be served."""
    bytes_in_use: int
    """Bytes of the chunks in use, including slack, as TensorFlow counts."""
    peak_bytes_in_use: int
    """The highest bytes_in_use."""
    bytes_requested: int
    """Requested bytes of the chunks in use."""
    peak_bytes_requested: int
    """The highest bytes_requested."""
    largest_alloc_size: int
    """Size of the largest chunk handed out."""
    bytes_limit: int
    """The maximum number of bytes that may be held from the backend."""
    pool_bytes: int
    """Bytes held from the backend."""
    peak_pool_bytes: int
    """The highest pool_bytes."""
    largest_free_block_bytes: int
    """Size of the largest free chunk available to a request."""
    num_regions: int
    """Regions held from the backend."""
    num_chunks: int
    """Chunks, in use and free."""
    num_free_chunks: int
    """Free chunks."""
    metadata_bytes: int
    """Host memory of the allocator metadata."""
    num_planned_allocs: int
    """Allocations that were placed where the plan has them."""

    def __repr__(self) -> str:
        rows = self._rows()
        name, value = (max(len(row[column]) for row in rows) for column in (0, 1))
        return "\n".join(["bfc.Stats", *(f"  {row[0]:<{name}}  {row[1]:>{value}}  {row[2]}".rstrip() for row in rows)])

    def _repr_html_(self) -> str:
        rows = [[html.escape(cell) for cell in row] for row in self._rows()]
        lines = [f"<tr><th>{name}</th><td>{value}</td><td>{bytes}</td></tr>" for name, value, bytes in rows]
        return "\n".join(["<table>", "<caption>bfc.Stats</caption>", *lines, "</table>"])

    def _rows(self) -> list[tuple[str, str, str]]:
        """Each field: its name; its value, of bytes in a unit; and the exact number of bytes."""
        values = [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]
        in_bytes = [(name, value, "bytes" in name or name.endswith("_size")) for name, value in values]
        return [(name, _human(value), f"{value} bytes") if is_bytes else (name, f"{value:,}", "") for name, value, is_bytes in in_bytes]


def _human(value: int) -> str:
    """Formats bytes in the largest unit that they reach, as reports do."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >> shift:
            return f"{value / (1 << shift):.2f} {unit}"
    return f"{value} B"


def stats(device: SupportsIndex) -> Stats:
    """Returns the current statistics.

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
    """Resets the counts and the largest allocation to 0, and the peaks to the current values."""
    _library.call("bfc_reset_stats", _numbers.device(device))


def check(device: SupportsIndex) -> None:
    """Checks the allocator metadata: ``bfc_check``.

    :raises Error: INTERNAL if an invariant is broken.
    """
    _library.call("bfc_check", _numbers.device(device))


def report(device: SupportsIndex) -> str:
    """Returns the out-of-memory report: docs/reports.md.

    >>> import bfc
    >>> bfc.create(bfc.HOST)
    >>> "device 256" in bfc.report(bfc.HOST)
    True
    >>> bfc.destroy(bfc.HOST)
    """
    return in_python(_library.text("bfc_report", _numbers.device(device)))


def occupancy(device: SupportsIndex) -> str:
    """Returns the pool as one line of 100 columns: ``*`` used, ``x`` slack inside a chunk, ``_`` free."""
    return _library.text("bfc_occupancy", _numbers.device(device))


def memory_map(device: SupportsIndex) -> dict[str, Any]:
    """Returns regions, chunks, bins and statistics. The schema is in docs/memory-map.md."""
    found: dict[str, Any] = json.loads(_library.text("bfc_memory_map", _numbers.device(device)))
    return found


def metrics() -> str:
    """Returns the statistics of all allocators of the process as OpenMetrics text: docs/metrics.md.

    :mod:`bfc.prometheus` passes them to ``prometheus_client``.

    :raises Error: BUSY in a callback of an allocator, and others: see ``bfc_metrics``.

    >>> import bfc
    >>> bfc.create(bfc.HOST, name="example")
    >>> 'bfc_held_bytes{device="256",name="example",backend="host"} 0' in bfc.metrics().splitlines()
    True
    >>> bfc.destroy(bfc.HOST)
    """
    return _library.text("bfc_metrics")


@contextlib.contextmanager
def scope(operation: str, step: SupportsIndex = 0) -> Iterator[None]:
    """Sets the operation that this thread allocates for. Reports then show the memory of each operation.

    Scopes nest at most 8 deep. Reports show the names of all open scopes separated by slashes ("outer/inner"), and the step of
    the innermost.

    >>> import bfc
    >>> with bfc.scope("attention", step=3):
    ...     pass
    """
    _library.call("bfc_scope_begin", _numbers.text(operation, "operation"), _numbers.unsigned(step, "step"))
    try:
        yield
    finally:
        _library.call("bfc_scope_end")
