"""The programs of frameworks/ with PyTorch on the simulated driver: that they work, that each allocator is the one it is
called, and nothing of losses, speeds or sizes, for no kernel runs here. CuPy's and Numba's would need real kernels."""

import os
import sys

import programs
from running import environment


def run(folder, results, **more):
    variables = {"PYTHON": sys.executable, "RESULTS": results, "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}
    env = environment(**variables, **more)
    return programs.run(folder / "frameworks/run.sh", folder, "torch", env=env, status=None, timeout=1800)


def test_pytorch_runs_with_each_of_the_allocators(folder, tmp_path):
    status, said = run(folder, tmp_path)
    assert status == 0 and " ... ok" in said and " ... ignored" not in said, said


def test_a_program_that_does_not_end_is_found(folder, tmp_path):
    status, said = run(folder, tmp_path, SECONDS_EACH="0.1")
    assert status != 0 and "torch_native: it ended with 124" in said
