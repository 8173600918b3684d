"""Numbers and words on their way to C, where ctypes would cut off what does not fit."""

from __future__ import annotations

import operator
from typing import SupportsIndex

_MOST_DEVICES = 1 << 31
_MOST = 1 << 64


def device(value: SupportsIndex) -> int:
    """An ordinal. Which of them there are the library knows."""
    number = operator.index(value)
    if not -_MOST_DEVICES <= number < _MOST_DEVICES:
        raise ValueError(f"{number} is no ordinal of a device")
    return number


def unsigned(value: SupportsIndex, what: str) -> int:
    """Bytes, an address, a stream: what C has 64 bits for.

    >>> unsigned(-1, "a size")
    Traceback (most recent call last):
        ...
    ValueError: -1 is not a size
    """
    number = operator.index(value)
    if not 0 <= number < _MOST:
        raise ValueError(f"{number} is not {what}")
    return number


def text(words: str) -> bytes:
    """As C takes it: what follows a NUL would be lost."""
    if "\0" in words:
        raise ValueError(f"{words!r} has a NUL in it")
    return words.encode()
