"""Arguments on their way to C, where ctypes would cut off what does not fit. A refusal names the argument, what it must be, and
what it is."""

from __future__ import annotations

import ctypes
import operator
import os
import re
from typing import SupportsFloat, SupportsIndex

_MOST_DEVICES = 1 << 31
_MOST = 1 << 64
# As the library reads BFC_MEMORY_LIMIT.
_SIZE = re.compile(r"(\d+|\d*\.\d+|\d+\.)\s*([kmgt]?)i?b?\s*", re.ASCII | re.IGNORECASE)


def device(value: SupportsIndex) -> int:
    """An ordinal. Which of them exist the library knows."""
    number = _index(value, "device")
    if not -_MOST_DEVICES <= number < _MOST_DEVICES:
        raise ValueError(f"device must be from -2**31 to 2**31 - 1, not {number}")
    return number


def unsigned(value: SupportsIndex, what: str) -> int:
    """Bytes, an address, a stream: what C has 64 bits for.

    >>> unsigned(-1, "nbytes")
    Traceback (most recent call last):
        ...
    ValueError: nbytes must be from 0 to 2**64 - 1, not -1
    """
    number = _index(value, what)
    if not 0 <= number < _MOST:
        raise ValueError(f"{what} must be from 0 to 2**64 - 1, not {number}")
    return number


def size(value: SupportsIndex | str, what: str) -> int:
    """Bytes as a number, or as text in binary units.

    >>> size("1.5 GiB", "limit"), size("64k", "limit"), size(100, "limit")
    (1610612736, 65536, 100)
    >>> size("a lot", "limit")
    Traceback (most recent call last):
        ...
    ValueError: limit must be a number of bytes or a size such as '20GiB', not 'a lot'
    """
    if not isinstance(value, str):
        return unsigned(value, what)
    found = _SIZE.fullmatch(value)
    if found is None:
        raise ValueError(f"{what} must be a number of bytes or a size such as '20GiB', not {value!r}")
    unit = 1 << 10 * " kmgt".index(found[2].lower() or " ")
    number = int(found[1]) * unit if found[1].isdigit() else int(float(found[1]) * unit)
    return unsigned(number, what)


def human(nbytes: int) -> str:
    """Bytes in the largest unit of which there is one.

    >>> human(0), human(1536), human(20 << 30)
    ('0 B', '1.50 KiB', '20.00 GiB')
    """
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{value:.2f} {unit}"


def optional_size(value: SupportsIndex | str | None, what: str) -> int:
    """The same; 0 for None, which C takes for not given."""
    return 0 if value is None else size(value, what)


def optional(value: SupportsIndex | None, what: str) -> int:
    """A number; 0 for None, which C takes for not given."""
    return 0 if value is None else unsigned(value, what)


def fraction(value: SupportsFloat | None, what: str) -> float:
    """A number that may have a fraction; 0 for None, which C takes for not given. What is a share the library knows."""
    if value is None:
        return 0.0
    try:
        return ctypes.c_double(value).value  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{what} must be a number, not {type(value).__name__}") from None
    except OverflowError:
        raise ValueError(f"{what} is too large: {value}") from None


def text(value: str, what: str) -> bytes:
    """As C takes it: what follows a NUL would be lost."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError(f"{what} must not contain a NUL character: {value!r}")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be encodable as UTF-8, not {value!r}") from None


def path(value: str | os.PathLike[str], what: str) -> bytes:
    """As C takes it, in the encoding of file names."""
    try:
        encoded = os.fsencode(value)
    except TypeError:
        raise TypeError(f"{what} must be a path, not {type(value).__name__}") from None
    if b"\0" in encoded:
        raise ValueError(f"{what} must not contain a NUL character: {value!r}")
    return encoded


def _index(value: SupportsIndex, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, not {type(value).__name__}") from None
