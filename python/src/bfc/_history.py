"""The history: the last events of all allocators."""

from __future__ import annotations

import os
from types import TracebackType
from typing import SupportsIndex

from . import _library, _numbers

# The values of BFC_STACKS_NATIVE and BFC_STACKS_PYTHON.
_STACKS = {"none": 0, "native": 1, "python": 2, "both": 3}


class history:
    """Records the history of all allocators of the process in a ``with`` block: ``bfc_history_start``.

    ``bfc report FILE`` on the command line shows it, during the block and afterwards. See docs/history.md.

    :param file: A path. A file there must not exist yet. None records into memory, for :meth:`save`.
    :param events: How many of the last events are kept.
    :param stacks: Which backtraces allocations have: ``"native"``, ``"python"``, ``"both"`` or ``"none"``. None leaves it
        to ``BFC_HISTORY_STACKS``.
    :raises Error: ALREADY_EXISTS if a history is recorded already; INVALID_ARGUMENT if the file cannot be created;
        UNSUPPORTED for backtraces of Python in an interpreter other than CPython 3.10 to 3.14.
    :raises ValueError: for other ``stacks``.

    >>> import bfc
    >>> with bfc.history() as recording:
    ...     recording.mark("epoch 1")
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | None = None,
        *,
        events: SupportsIndex = 1 << 18,
        stacks: str | None = None,
    ) -> None:
        self._file = None if file is None else os.fsencode(file)
        self._events = _numbers.unsigned(events, "events")
        if stacks is not None and stacks not in _STACKS:
            raise ValueError(f"stacks must be one of {', '.join(_STACKS)}, not {stacks!r}")
        self._stacks = None if stacks is None else _STACKS[stacks]

    def __enter__(self) -> history:
        if self._stacks is None:
            _library.call("bfc_history_start", self._file, self._events)
        else:
            _library.call("bfc_history_start_with_stacks", self._file, self._events, self._stacks)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _library.call("bfc_history_stop")

    def mark(self, name: str) -> None:
        """Marks this moment, for example the beginning of an epoch."""
        history_mark(name)

    def save(self, file: str | os.PathLike[str]) -> None:
        """Writes a copy of the history so far to a file, which must not exist yet."""
        _library.call("bfc_history_save", os.fsencode(file))


def history_mark(name: str) -> None:
    """Marks this moment in the history, however it was started, for example by ``BFC_HISTORY_FILE``.

    :raises Error: INVALID_ARGUMENT if no history is recorded. A program that also runs unrecorded ignores it by
        ``contextlib.suppress(bfc.Error)``.
    """
    _library.call("bfc_history_mark", _numbers.text(name, "name"))
