"""docs/out-of-memory.md: its three commands lead from a traceback to the lines that hold the memory."""

import re
import subprocess
import sys

import pytest

import pages

PAGE = pages.Page("out-of-memory")
# 400 MiB of weights, 480 MiB of activations, and what does not fit beside them in 1 GiB.
PROGRAM = """import ctypes

runtime = ctypes.CDLL("libcudart.so.12")


def tensor(mib):
    memory = ctypes.c_void_p()
    if runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(mib << 20)) != 0:
        raise RuntimeError("CUDA out of memory")


def forward():
    for layer in range(12):
        tensor(40)
    tensor(300)


for weights in range(4):
    tensor(100)
forward()
"""


@pytest.fixture(scope="module")
def recorded(plain, prefix, simulation_folder, tmp_path_factory):
    """A folder with the history of the program, as the first of the page's commands records it."""
    folder = tmp_path_factory.mktemp("out-of-memory")
    (folder / "train.py").write_text(PROGRAM)
    first = PAGE.text("sh-1").splitlines()[0].replace("bfc run", "bfc run --limit 1GiB").replace("python3", sys.executable)
    variables = plain | {"PATH": f"{prefix / 'bin'}:{plain['PATH']}", "LD_LIBRARY_PATH": str(simulation_folder)}
    done = subprocess.run(["sh", "-c", first], cwd=folder, env=variables, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "RuntimeError: CUDA out of memory" in done.stderr, done.stderr
    return folder


@pytest.fixture(scope="module")
def report(recorded, prefix):
    return subprocess.check_output([prefix / "bin/bfc", "report", "train.history"], cwd=recorded, text=True)


def test_the_report_names_the_lines_that_hold_the_memory(report):
    peak, _, failed = report.partition("out of memory after")
    assert re.search(r"480\.00 MiB .* in 12 allocations by tensor \(train\.py:8\) < forward \(train\.py:14\)", peak)
    assert re.search(r"400\.00 MiB .* in 4 allocations by tensor \(train\.py:8\) < <module> \(train\.py:19\)", peak)
    assert re.search(r"300\.00 MiB .* requested, exhaustion; 880\.00 MiB ", failed)
    assert re.search(r"requested by tensor \(train\.py:8\) < forward \(train\.py:15\)", failed)


def test_each_line_that_the_page_explains_is_in_a_report(report):
    text = (pages.ROOT / PAGE.path).read_text()
    table = text.partition("| line | meaning |")[2].partition("\n\n")[0]
    lines = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert len(lines) > 3 and [line for line in lines if line not in report] == []


def test_the_advice_has_the_lowest_limit(recorded, prefix):
    advice = subprocess.check_output([prefix / "bin/bfc", "report", "--advice", "train.history"], cwd=recorded, text=True)
    assert re.search(r"a limit of 1\.15 GiB", advice) and "lowest limit" in advice
