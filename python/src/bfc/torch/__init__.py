"""PyTorch with libbfc's allocator.

.. code-block:: python

    import bfc.torch

    bfc.torch.use()  # before CUDA is initialized

All of PyTorch's device memory then comes from libbfc. Out of memory raises ``torch.OutOfMemoryError``, whose message has the
sentence of PyTorch's own allocator ("Tried to allocate ...") and libbfc's report. ``torch.cuda.memory_allocated()`` and similar
functions raise an error with any other allocator than PyTorch's. This module has functions of the same names.

See docs/pytorch.md. PyTorch is imported when a function is called.
"""

from __future__ import annotations

from typing import Any

from ._statistics import (
    _dump_snapshot,
    _snapshot,
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_summary,
    report,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from ._use import Used, mem_pool, use

__all__ = [
    "Used",
    "_dump_snapshot",
    "_snapshot",
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_pool",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "report",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "use",
]


def __getattr__(name: str) -> Any:
    # A subclass of PyTorch's, which is imported only on demand.
    if name == "OutOfMemoryError":
        from ._use import out_of_memory_error

        return out_of_memory_error()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
