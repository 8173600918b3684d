"""The table of ``memory_summary``."""

from __future__ import annotations

from collections.abc import Mapping

_ROWS = [
    ("allocated_bytes", "Allocated memory"),
    ("requested_bytes", "Requested memory"),
    ("reserved_bytes", "GPU reserved memory"),
    ("allocation", "Allocations"),
    ("segment", "GPU reserved regions"),
]
_COLUMNS = [("current", "Cur Usage"), ("peak", "Peak Usage"), ("allocated", "Tot Alloc"), ("freed", "Tot Freed")]
_WIDTH = 75


def table(index: int, stats: Mapping[str, int]) -> str:
    """Formats the table like PyTorch's. Values that libbfc does not count are left empty.

    >>> print(table(0, {"num_ooms": 1, "reserved_bytes.all.current": 2 << 20, "segment.all.current": 1}))
    |===========================================================================|
    |                      libbfc memory summary, device 0                      |
    |---------------------------------------------------------------------------|
    |                               CUDA OOMs: 1                                |
    |===========================================================================|
    |        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
    |---------------------------------------------------------------------------|
    | Allocated memory      |            |            |            |            |
    | Requested memory      |            |            |            |            |
    | GPU reserved memory   |   2048 KiB |            |            |            |
    | Allocations           |            |            |            |            |
    | GPU reserved regions  |          1 |            |            |            |
    |===========================================================================|
    <BLANKLINE>
    """
    lines = [
        "=" * _WIDTH,
        f"{f'libbfc memory summary, device {index}':^{_WIDTH}}",
        "-" * _WIDTH,
        f"{'CUDA OOMs: ' + str(stats.get('num_ooms', 0)):^{_WIDTH}}",
        "=" * _WIDTH,
        "|".join([f"{'Metric':^23}", *(f" {title:<10} " for _, title in _COLUMNS)]),
        "-" * _WIDTH,
    ]
    for key, title in _ROWS:
        cells = [_shown(key, stats.get(f"{key}.all.{column}")) for column, _ in _COLUMNS]
        lines.append("|".join([f" {title:<21} ", *(f" {cell:>10} " for cell in cells)]))
    lines.append("=" * _WIDTH)
    return "".join(f"|{line}|\n" for line in lines)


def _shown(key: str, value: int | None) -> str:
    if value is None:
        return ""
    return _size(value) if key.endswith("_bytes") else str(value)


def _size(value: int) -> str:
    """Formats a size like PyTorch.

    >>> _size(1000), _size(5 << 20), _size(80 << 30)
    ('1000 B  ', '5120 KiB', '81920 MiB')
    """
    units = ["B  ", "KiB", "MiB", "GiB"]
    while value >= 768 * 1024 and len(units) > 1:
        value //= 1024
        del units[0]
    return f"{value} {units[0]}"
