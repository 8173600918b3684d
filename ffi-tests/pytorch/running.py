"""Programs with PyTorch on the simulated driver, in processes of their own, and what they tell of a run."""

import functools
import json
import os
import pathlib
import sys
import sysconfig

import programs
import stub_libraries
from programs import LIB, PREFIX, SIMULATION

HERE = pathlib.Path(__file__).parent
TORCH = pathlib.Path(sysconfig.get_path("purelib")) / "torch"
BFC = PREFIX / "bin/bfc"
# Where PyTorch takes its memory from, and the variable that chooses it: its own allocator, which caches what cudaMalloc gave;
# cudaMalloc each time; cudaMallocAsync each time; libbfc by the functions of bfc_adapters.h; libbfc by bfc.torch.use().
ALLOCATORS = {
    "Caching": {},
    "Plain": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "Async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "Pluggable": {},
    "Package": {},
}


@functools.cache
def libraries():
    """Where a loader has to look: the simulation, and the libraries in place of NVIDIA's."""
    return f"{SIMULATION}:{stub_libraries.build(TORCH / 'lib')}"


def environment(**more):
    """Python with PyTorch, which wants NVIDIA's libraries and a runtime also where it is never asked for a GPU. With two devices:
    what is right with one may break a capture as soon as a second one has a context."""
    return programs.environment(**{"LD_LIBRARY_PATH": libraries()} | more)


def with_bfc(**more):
    """The same with the package bfc of the checkout."""
    return environment(**{"PYTHONPATH": os.environ["PYTHONPATH"], "BFC_LIBRARY": LIB} | more)


def python(program, *arguments):
    return [sys.executable, "-W", "ignore", HERE / program, *arguments]


def facts(shared, program, *arguments, launcher=(), name="", **variables):
    """What a run has seen, in two parts: `same` must not depend on who allocates. Each run is made once for all processes
    that run tests."""
    key = " ".join([program, name, *map(str, arguments), *(f"{name}={value}" for name, value in variables.items())])
    out = shared / f"{key.replace('/', '-')[-200:]}.json"
    with programs.alone(out.name[-100:]):
        if not out.exists():
            command = [*launcher, *python(program, "--out", f"{out}.half", *arguments)]
            programs.run(*command, env=environment(**variables))
            pathlib.Path(f"{out}.half").rename(out)
    return json.loads(out.read_text())
