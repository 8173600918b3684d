"""Python's package in the place of lines that a user writes: `bfc.torch`, from its wheel. Each case of package.py has a process
of its own, for PyTorch takes an allocator once."""

import pickle
import subprocess
import sys

import pytest

import programs
from pages import Page
from running import environment, python, with_bfc

# Where there is no compiler either, so that the function that was compiled without PyTorch is taken.
WITHOUT = "without_a_compiler"
# With the shim that is compiled at the first use.
COMPILED = "compiled"
CASES = """page; page_with_arguments; page_mem_pool; refused_by_pytorch; refusals late; refusals other; refusals twice; limit; limit compiled;
    one_of_two_devices; between_devices; between_devices mapped; of_another_device; configured; other_failures;
    without_a_compiler; in_a_thread_of_pytorchs; in_a_thread_of_pytorchs without_a_compiler; profiler; profiler compiled; statistics;
    snapshots; random_sizes; mem_pool_random_sizes"""
# What a case needs besides.
VARIABLES = {
    "one_of_two_devices": {"SIMCUDA_DEVICES": "2"},
    "of_another_device": {"SIMCUDA_DEVICES": "2"},
    "between_devices": {"SIMCUDA_DEVICES": "2", "SIMCUDA_PEERS": "0"},
    "configured": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:32"},
}


@pytest.mark.parametrize("case", [case.strip() for case in CASES.split(";")])
def test_package(case, package_environment, compiling_environment):
    # A device so large that the page's limit fits.
    variables = {"SIMCUDA_MEMORY": str(64 << 30), "SIMCUDA_DEVICES": "1"} | VARIABLES.get(case.split()[0], {})
    variables |= {"CXX": "/nonexistent/c++"} if WITHOUT in case else {}
    is_prebuilt = WITHOUT not in case and COMPILED not in case
    variables |= package_environment if is_prebuilt else compiling_environment
    programs.run(*python("package.py", *case.removesuffix(COMPILED).split()), env=environment(**variables))


def test_the_page_of_snapshots(tmp_path):
    page = Page("snapshots")
    subprocess.run([sys.executable, page.file("python-1")], cwd=tmp_path, env=with_bfc(), check=True)
    (segment,) = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())["segments"]
    assert segment["blocks"][0]["requested_size"] == 5 << 20
    assert segment["blocks"][0]["frames"] == [{"filename": "bfc.scope", "line": 3, "name": "attention"}]
    page.ran("python-1")
