"""Python's package in the place of lines that a user writes: `bfc.torch`, from its wheel. Each case of package.py has a process
of its own, for PyTorch takes an allocator once."""

import pytest

import programs
from running import environment, python

# Where there is no compiler, so that the shim that came with the package is taken.
WITHOUT = "without_a_compiler"
CASES = """page; page_with_arguments; page_mem_pool; refused_by_pytorch; refusals late; refusals other; refusals twice; limit;
    one_of_two_devices; other_failures; without_a_compiler; in_a_thread_of_pytorchs; in_a_thread_of_pytorchs without_a_compiler; profiler; statistics;
    random_sizes; mem_pool_random_sizes"""


@pytest.mark.parametrize("case", [case.strip() for case in CASES.split(";")])
def test_package(case, package_environment):
    # A device so large that the page's limit fits.
    variables = {"SIMCUDA_MEMORY": str(64 << 30), "SIMCUDA_DEVICES": "2" if case == "one_of_two_devices" else "1"}
    variables |= {"CXX": "/nonexistent/c++"} if WITHOUT in case else {}
    programs.run(*python("package.py", *case.split()), env=environment(**package_environment, **variables))
