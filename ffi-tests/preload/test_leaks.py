"""`bfc run --leaks` with the interposer: what a program did not free."""

import re
import subprocess

from stage import BFC, environment
from test_behaviour import MEMORY, program


def listed(case, *options):
    """The exit code and standard error of `bfc run --leaks`, for a case of behaviour/trace.c."""
    command = [BFC, "run", "--leaks", *options, "--", program("trace"), case]
    done = subprocess.run(command, env=environment(SIMCUDA_MEMORY=MEMORY), capture_output=True, text=True)
    return done.returncode, done.stderr


def live(text):
    """The bytes and the number of the allocations of each process."""
    found = re.findall(r"^  live +\S+ \S+ \((\d+)\) in (\d+) allocations?", text, re.MULTILINE)
    return [tuple(map(int, pair)) for pair in found]


def test_what_a_program_did_not_free_is_listed():
    """The case `counted`: 400 MiB in 4 allocations are live at the end, which the summary of --report says too."""
    code, text = listed("counted", "--report", "--leaks-exit-code", "9")
    assert code == 9
    assert "400.0 MiB live now" in text
    # In all, and of the one pool.
    assert live(text) == [(400 << 20, 4)] * 2, text


def test_what_ended_with_its_context_is_listed():
    """The case `gone`: each of three rounds allocates 1000 bytes that end with the context."""
    code, text = listed("gone")
    assert code == 0
    assert live(text) == [(3072, 3), (1024, 1), (1024, 1), (1024, 1)], text
    assert text.count(", destroyed after ") == 3, text
