"""What the tasks of the pack are made of: rows of the result file, and the means to fill them in."""

import contextlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from runner import process

PACK = pathlib.Path(__file__).resolve().parents[1]
BFC = PACK / "bin/bfc"
GPU = PACK / "bin/bfc-gpu"
# Settings of the caller's shell that would change what is tested.
OF_THE_CALLER = ("BFC_", "PYTORCH_", "TORCH_", "CUPY_", "NUMBA_", "XLA_", "JAX_", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUBLAS_")
RESULT = "RESULT "


class Task(NamedTuple):
    """Rows that are filled in by one function, which runs one or more programs."""

    rows: list[str]
    run: Callable[["Job"], None]
    seconds: float = 20
    """The time limit of each of its programs."""
    about: str = ""
    """The rule of the simulated driver that it is about."""


class Part(NamedTuple):
    name: str
    about: str
    seconds: float
    """Its time limit in a run of six minutes."""
    workers: int
    """How many of its tasks run at once."""
    tasks: list[Task]


class TimeIsUp(Exception):
    """Nothing more of the task can run. The reason is its text."""


class Job:
    """One task that runs: what it may use and where its results go."""

    def __init__(self, part, task, earlier, end, results, prepared, scratch):
        self.part, self.task, self.end, self.results = part, task, end, results
        self.prepared, self.scratch = prepared, scratch
        # The rows that an earlier run has filled in, and those that are left, in the task's order.
        self.earlier = earlier
        self.wanted = [row for row in task.rows if row not in earlier]
        self.filled = set()

    def remaining(self):
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeIsUp("time is up")
        return left

    def wants(self, row):
        return row in self.wanted and row not in self.filled

    def record(self, row, status, seconds=0.0, **more):
        """Fills in a row. Rows that are not wanted are left as they are."""
        if self.wants(row):
            self.filled.add(row)
            more = {key: value for key, value in more.items() if value is not None}
            found = {"part": self.part.name, "row": row, "status": status, "seconds": round(seconds, 2), **more}
            self.results.add(found)

    def needs_device(self):
        """Skips what is left of the task where there is no device."""
        if self.prepared.absent:
            for row in self.wanted:
                self.record(row, "skipped", why=self.prepared.absent)
        return not self.prepared.absent

    def program(self, title, command, env=None, watch=None, silence=None):
        """Runs a program within the time that is left. If it was cut off by that, and not by its own limit, the task ends."""
        left, limit = self.remaining(), self.task.seconds
        # What one program compiles the next one finds.
        caches = {"XDG_CACHE_HOME": "cache", "CUPY_CACHE_DIR": "cupy", "CUDA_CACHE_PATH": "cuda"}
        caches = {name: self.scratch / folder for name, folder in caches.items()}
        variables = environment(**caches | (env or {}))
        ended = process.run(command, min(left, limit), variables, watch, silence)
        self.results.log(f"{self.part.name}: {title} ({ended.status}, {ended.seconds:.1f} s)", ended.text)
        if ended.code is None and left < limit and ended.seconds >= left:
            raise TimeIsUp(f"cut off after {ended.seconds:.0f} s")
        return ended

    def ended(self, row, ended, status=None, **more):
        """Fills in a row with how a program ended, what its RESULT lines say, and the end of its output if it did not pass."""
        status = status or ended.status
        more = results_of(ended.out) | more
        if status != "passed":
            more = {"why": ended.reason(), **more}
        if status in ("failed", "crashed", "timed out"):
            more = {**more, "output": ended.tail()}
        self.record(row, status, ended.seconds, **more)


def results_of(out):
    """What the lines of a program that begin with RESULT say, merged."""
    merged = {}
    for line in out.splitlines():
        if line.startswith(RESULT):
            # A program that is killed may leave a part of a line.
            with contextlib.suppress(json.JSONDecodeError):
                merged |= json.loads(line[len(RESULT) :])
    return merged


def environment(**more):
    """The variables of a program of the pack: the caller's, without those that steer what is tested. None unsets one."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_CALLER)}
    paths = [str(PACK / "python"), str(PACK / "site"), found.get("PYTHONPATH", "")]
    found |= {
        "PYTHONPATH": ":".join(path for path in paths if path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "BFC_LIBRARY": PACK / "lib/libbfc.so.0",
    }
    return {name: str(value) for name, value in (found | more).items() if value is not None}


def python(*words):
    """A command of Python's. A word that ends in .py is a file of the pack."""
    return [sys.executable, "-X", "faulthandler", "-W", "ignore", *(PACK / word if str(word).endswith(".py") else word for word in words)]
