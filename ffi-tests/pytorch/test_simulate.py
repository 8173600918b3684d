"""`cargo xtask simulate`, by which a user tries a program of his own without a GPU."""

import pathlib
import re
import subprocess
import sys

import pytest

import programs
from programs import ROOT
from running import BFC

# One after the other: each looks whether the simulation is to be built.
pytestmark = pytest.mark.xdist_group("simulate")

SIMULATE = ["cargo", "run", "--quiet", "--package", "xtask", "--", "simulate"]
TRAIN = """import bfc.torch, torch
bfc.torch.use()
model = torch.nn.Linear(64, 8).cuda()
with bfc.scope("forward"):
    loss = model(torch.randn(4, 64, device="cuda"))
# A thread of PyTorch's lets go of its work after backward has returned. If Python ends meanwhile, the process aborts
# (PyTorch 2.15 with Python 3.11, with its own allocator too).
with torch.autograd.set_multithreading_enabled(False):
    loss.sum().backward()
print(torch.cuda.get_allocator_backend(), bfc.owner(model.weight.data_ptr()), bfc.stats(0).bytes_in_use > 0)
"""
SERVE = """#include "cudart.h"
#include <cstdio>
int main() {
  void *memory;
  printf("%d %d\\n", cudaMalloc(&memory, 1 << 20), cudaMalloc(&memory, 1 << 30));
  return 0;
}
"""


def simulated(*words, **variables):
    environment = programs.environment(LD_LIBRARY_PATH=None, **variables)
    done = subprocess.run([*SIMULATE, *words], cwd=ROOT, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done


def test_a_script_with_pytorch(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    done = simulated("--pytorch", tmp_path / "train.py", BFC_HISTORY_FILE=tmp_path / "history")
    assert done.stdout == "pluggable 0 True\n"
    report = programs.run(BFC, "report", tmp_path / "history")
    assert re.search(r"at the peak, after [\d.]+ s, step 0:\n(    .*\n)*    .* allocations?  forward\n", report), report


def test_a_program_under_bfc_run(tmp_path):
    (tmp_path / "serve.cpp").write_text(SERVE)
    programs.check(
        [programs.compiler("cpp"), f"-I{ROOT}/crates/simcuda/cudart", tmp_path / "serve.cpp", f"-L{programs.SIMULATION}", "-l:libcudart.so.12", "-o", tmp_path / "serve"]
    )
    done = simulated("--", "bfc", "run", "--limit", "64MiB", "--report", "--", tmp_path / "serve")
    # cudaErrorMemoryAllocation is 2.
    assert done.stdout == "0 2\n"
    assert "refused" in done.stderr


def test_a_program_that_is_not_there(tmp_path):
    done = subprocess.run([*SIMULATE, "/nonexistent/app"], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 1 and "cannot run /nonexistent/app" in done.stderr


def interpreter(folder, version=None, cuda=None, library=None):
    """An interpreter with such a PyTorch, as far as one sees without an import."""
    site = folder / "site"
    site.mkdir()
    if version:
        (site / "torch").mkdir()
        (site / "torch/__init__.py").touch()
        (site / "torch/version.py").write_text(f"__version__, cuda = {version!r}, {cuda!r}\n")
    if library:
        (site / library).parent.mkdir(parents=True)
        (site / library).touch()
    python = folder / "python"
    # Without the packages of the tests' own environment.
    python.write_text(f"#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} -S \"$@\"\n")
    python.chmod(0o755)
    return python


RELEASE = re.search(r"^torch==(.+)$", (pathlib.Path(__file__).with_name("requirements.txt")).read_text(), re.MULTILINE)[1]


@pytest.mark.parametrize(
    "torch, why",
    [
        ({}, "it has no PyTorch"),
        ({"version": f"{RELEASE}+cpu"}, f"its PyTorch {RELEASE}+cpu is built without CUDA"),
        ({"version": "2.3.1+cu121", "cuda": "12.1"}, f"its PyTorch is 2.3.1+cu121, and the simulation is for {RELEASE}"),
        (
            {"version": f"{RELEASE}+cu132", "cuda": "13.2", "library": "nvidia/cu13/lib/libcudart.so.13"},
            "it has NVIDIA's own libraries, which PyTorch loads in the place of the simulated ones",
        ),
    ],
    ids=["none", "cpu", "old", "ordinary"],
)
def test_an_interpreter_that_cannot_be_used_is_refused_with_the_reason(tmp_path, torch, why):
    python = interpreter(tmp_path, **torch)
    words = ["--pytorch", "--python", python, "train.py"]
    done = subprocess.run([*SIMULATE, *words], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 1 and f"{python} cannot run on the simulated driver: {why}" in done.stderr, done.stderr
    assert f"pip install --no-deps torch=={RELEASE} " in done.stderr
