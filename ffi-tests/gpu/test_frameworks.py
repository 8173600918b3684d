"""The programs of frameworks/ with PyTorch on the simulated driver: that they work, that each allocator is the one it is
called, and nothing of losses, speeds or sizes, for no kernel runs here. CuPy's and Numba's would need real kernels."""

import os
import pathlib
import sys

import programs
from running import environment

# What the suite gpu has put together, to be carried to another machine.
FOLDER = pathlib.Path(os.environ["LIBBFC_TESTS_GPU"])


def command(results, **more):
    variables = {"PYTHON": sys.executable, "RESULTS": results, "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}
    return [FOLDER / "frameworks/run.sh", FOLDER, "torch"], environment(**variables, **more)


def test_pytorch_runs_with_each_of_the_allocators(tmp_path):
    words, variables = command(tmp_path)
    said = programs.run(*words, env=variables, timeout=1800)
    assert " ... ok" in said and " ... ignored" not in said


def test_a_program_that_does_not_end_is_found(tmp_path):
    words, variables = command(tmp_path, SECONDS_EACH="0.1")
    status, said = programs.run(*words, env=variables, status=None, timeout=1800)
    assert status != 0 and "torch_native: it ended with 124" in said
