"""Conversion of arguments for C, where ctypes would truncate values that do not fit. An error names the argument, its requirement and
its value."""

from __future__ import annotations

import ctypes
import operator
import os
import re
from typing import SupportsFloat, SupportsIndex

_MOST_DEVICES = 1 << 31
_MOST = 1 << 64

# The syntax of BFC_LIMIT and similar variables, src/options/values.rs.
_SIZE = re.compile(r"([0-9.]+)\s*([kmgt]?)i?b?\s*", re.ASCII | re.IGNORECASE)
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def device(value: SupportsIndex) -> int:
    """Converts an ordinal. The library checks whether it exists."""
    number = _index(value, "device")
    if not -_MOST_DEVICES <= number < _MOST_DEVICES:
        raise ValueError(f"device must be from -2**31 to 2**31 - 1, not {number}")
    return number


def unsigned(value: SupportsIndex, what: str) -> int:
    """Converts an unsigned number of 64 bits: bytes, an address or a stream.

    >>> unsigned(-1, "nbytes")
    Traceback (most recent call last):
        ...
    ValueError: nbytes must be from 0 to 2**64 - 1, not -1
    """
    number = _index(value, what)
    if not 0 <= number < _MOST:
        raise ValueError(f"{what} must be from 0 to 2**64 - 1, not {number}")
    return number


def optional(value: SupportsIndex | None, what: str) -> int:
    """Like :func:`unsigned`, but 0 for None, which C treats as not given."""
    return 0 if value is None else unsigned(value, what)


def size(value: SupportsIndex | str, what: str) -> int:
    """Converts a number of bytes, or text such as ``"20GiB"``, ``"512 MB"`` or ``"1.5g"``. Units are binary, with or without the i,
    as in the environment's variables.

    >>> size("1.5 GiB", "limit")
    1610612736
    >>> size("8XiB", "limit")
    Traceback (most recent call last):
        ...
    ValueError: limit must be a number of bytes or a size such as '8GiB', not '8XiB'
    """
    if isinstance(value, str):
        parsed = _parsed_size(value)
        if parsed is None:
            raise ValueError(f"{what} must be a number of bytes or a size such as '8GiB', not {value!r}")
        return parsed
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} must be a number of bytes or a size such as '8GiB', not {type(value).__name__}")
    return unsigned(value, what)


def optional_size(value: SupportsIndex | str | None, what: str) -> int:
    """Like :func:`size`, but 0 for None, which C treats as not given."""
    return 0 if value is None else size(value, what)


def refuse_zero(number: float, what: str) -> None:
    """Refuses a limit of 0, which C treats as not given: a program that computes 0 bytes does not mean all of the memory.

    >>> refuse_zero(size("0 GiB", "limit"), "limit")
    Traceback (most recent call last):
        ...
    ValueError: limit must not be 0: leave it out for the available memory, or set it to 0 later by bfc.set_memory_limit
    """
    if number == 0:
        raise ValueError(f"{what} must not be 0: leave it out for the available memory, or set it to 0 later by bfc.set_memory_limit")


def _parsed_size(text: str) -> int | None:
    found = _SIZE.fullmatch(text)
    if not found:
        return None
    number, unit = found[1], 1 << _SHIFTS[found[2].lower()]
    if "." not in number:
        parsed = int(number) * unit
    else:
        try:
            parsed = int(float(number) * unit)
        except (ValueError, OverflowError):
            return None
    return parsed if parsed < _MOST else None


def fraction(value: SupportsFloat | None, what: str) -> float:
    """Converts a number that may have a fraction. 0 for None, which C treats as not given. The library checks the range of fractions."""
    if value is None:
        return 0.0
    if isinstance(value, bool):
        raise TypeError(f"{what} must be a number, not bool")
    try:
        return ctypes.c_double(value).value  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{what} must be a number, not {type(value).__name__}") from None
    except OverflowError:
        raise ValueError(f"{what} is too large: {value}") from None


def text(value: str, what: str) -> bytes:
    """Converts text for C. A NUL is refused, because the rest would be lost."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError(f"{what} must not contain a NUL character: {value!r}")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be encodable as UTF-8, not {value!r}") from None


def path(value: str | os.PathLike[str], what: str) -> bytes:
    """Converts a path for C, in the encoding of file names."""
    try:
        encoded = os.fsencode(value)
    except TypeError:
        raise TypeError(f"{what} must be a path, not {type(value).__name__}") from None
    if b"\0" in encoded:
        raise ValueError(f"{what} must not contain a NUL character: {value!r}")
    return encoded


def _index(value: SupportsIndex, what: str) -> int:
    # Python treats True as 1. As a number of bytes, a device or a stream it is a mistake.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} must be an integer, not {type(value).__name__}")
    return operator.index(value)
