"""One program in a process group of its own, with a time limit: a hang or a crash ends with the group."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass

# Results and logs are read back over a slow line, and a program in a loop prints gigabytes.
KEPT = 256 << 10
# A process that waits inside a broken driver cannot be killed. It is abandoned after this time.
SECONDS_AFTER_KILL = 3
# Of the output of a row that did not pass, as it is kept in its record.
TAIL_CHARACTERS = 8000
SKIPPED = 77


# The groups that run now.
GROUPS = set()


def kill(group):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


@dataclass
class Ended:
    """How a program ended. `code` is negative for a signal, and None if it was killed at its time limit."""

    code: int | None
    out: str
    err: str
    seconds: float

    @property
    def text(self):
        return self.out + self.err

    @property
    def status(self):
        """The status of the row: passed, skipped, failed, crashed or timed out."""
        if self.code is None:
            return "timed out"
        if self.code < 0 or self.code in (128 + signal.SIGSEGV, 128 + signal.SIGABRT):
            return "crashed"
        return {0: "passed", SKIPPED: "skipped"}.get(self.code, "failed")

    def reason(self):
        """Why it did not pass: the last line for a skipped row, else how it ended."""
        lines = [line for line in self.out.splitlines() if line.strip()]
        if self.status == "skipped":
            return lines[-1].strip() if lines else "it gave no reason"
        if self.code is None:
            return f"killed after {self.seconds:.0f} s"
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}"
        return f"exit status {self.code}"

    def tail(self, lines=25):
        return "\n".join(self.text.splitlines()[-lines:])[-TAIL_CHARACTERS:]


class Output(threading.Thread):
    """Reads a pipe to its end. It keeps the last KEPT bytes and passes each line to `watch`."""

    def __init__(self, pipe, watch):
        super().__init__(daemon=True)
        self.pipe, self.watch, self.data, self.last = pipe, watch, bytearray(), time.monotonic()
        self.start()

    def run(self):
        # No process closes a pipe that a killed process left open. The thread is a daemon and is abandoned with it.
        with contextlib.suppress(ValueError, OSError):
            for line in self.pipe:
                self.data += line
                self.last = time.monotonic()
                if len(self.data) > 2 * KEPT:
                    del self.data[:-KEPT]
                if self.watch:
                    self.watch(line.decode(errors="replace").rstrip("\n"))

    def text(self):
        return bytes(self.data[-KEPT:]).decode(errors="replace")


def run(command, seconds, env, watch=None, silence=None):
    """Runs a program to its end, or kills its whole process group after `seconds`, or after `silence` seconds without a line
    on its standard output. `watch` gets each of these lines, in another thread."""
    start = time.monotonic()
    try:
        child = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            # A group and no session: what is left of a session outlives the command that the runner is a part of.
            preexec_fn=os.setpgrp,
        )
    except OSError as error:
        return Ended(127, "", f"cannot start {command[0]}: {error}\n", 0.0)
    GROUPS.add(child.pid)
    outputs = [Output(child.stdout, watch), Output(child.stderr, None)]
    code = _wait(child, outputs[0], start + seconds, silence)
    seconds = time.monotonic() - start
    # The group may outlive its leader.
    kill(child.pid)
    GROUPS.discard(child.pid)
    if code is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=SECONDS_AFTER_KILL)
    for output in outputs:
        output.join(timeout=SECONDS_AFTER_KILL)
    out, err = (output.text() for output in outputs)
    return Ended(code, out, err, seconds)


def _wait(child, output, end, silence):
    """The exit status of a child, or None if it has to be killed."""
    while True:
        now = time.monotonic()
        limit = end if silence is None else min(end, output.last + silence)
        if now >= limit:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(timeout=limit - now)
