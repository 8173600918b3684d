"""`bfc report` and `bfc diff` of histories that are made to be slow or to need much memory: both are in proportion to the file.

Time is counted in instructions, by callgrind.
"""

import re
import resource
import subprocess

import callgrind
import hostile
import programs
import pytest

# Events of the smaller history. The larger one has four times as many.
EVENTS = 500
# The address space of a command, including 100 MiB for the library and the program's own code.
MOST_BYTES = 1 << 29

SLOW = [
    (hostile.regions_within_each_other, "text"),
    (hostile.regions_within_each_other, "html"),
    (hostile.regions_that_span_chunks, "html"),
    (hostile.frees_that_span_chunks, "pickle"),
    (hostile.pools_and_marks, "text"),
    (hostile.pools_of_one_name, "diff"),
    (hostile.many_modules, "leaks"),
]
LARGE = [
    *((hostile.long_names, output) for output in ("text", "leaks", "html")),
    (hostile.long_paths, "text"),
    (hostile.sparse, "text"),
    (hostile.many_marks_on_many_devices, "pickle"),
]


def command(file, output):
    bfc = programs.PREFIX / "bin/bfc"
    if output == "diff":
        return bfc, "diff", f"{file}@begin", f"{file}@end"
    options = {"text": [], "json": ["--json"], "leaks": ["--leaks", "--json"]}
    return bfc, "report", *options.get(output, ["-o", file.with_suffix(f".{output}")]), file


def instructions(file, output):
    found = callgrind.run(command(file, output))
    return int(re.search(r"^(?:summary|totals): (\d+)", found, re.MULTILINE)[1])


def cases(which):
    return pytest.mark.parametrize(("make", "output"), which, ids=[f"{make.__name__}-{output}" for make, output in which])


@cases(SLOW)
def test_time_is_in_proportion_to_the_events(tmp_path, make, output):
    counts = []
    for events in EVENTS, 4 * EVENTS:
        file = tmp_path / f"{events}.history"
        hostile.write(file, **make(events))
        counts.append(instructions(file, output))
    # Half as many again as in proportion. Quadratic time takes sixteen times as many.
    assert counts[1] <= 6 * counts[0], counts


@cases(LARGE)
def test_memory_is_in_proportion_to_the_file(tmp_path, make, output):
    file = tmp_path / "hostile.history"
    hostile.write(file, **make(1000))
    done = subprocess.run(
        list(map(str, command(file, output))),
        env=programs.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES)),
    )
    assert done.returncode == 0, done.stderr
    assert all(written.stat().st_size < MOST_BYTES // 2 for written in tmp_path.iterdir() if written != file)
