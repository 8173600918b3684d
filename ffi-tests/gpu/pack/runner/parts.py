"""What the pack runs, in order of worth: what no simulation can answer comes first."""

import functools
import json
import os
import subprocess

from runner import tasks
from runner.job import BFC, GPU, PACK, Part, environment, python

# libbfc by regions, by granules, and as it is without options; the native allocator twice, so that kernels that are not
# deterministic are not taken for a fault of another allocator.
TRAININGS = ["native", "bfc", "bfc_vmm", "expandable", "async", "native again"]
# In place of the tests of a program that cannot run.
ABSENT = "absent: test"
GRAPHS = ["captured_graph", "captured_graph_vmm"]


def _said(*command):
    """What a program lists. One that cannot run costs its own rows, and they say why."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment(BFC_LIBRARY=None), capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else None


def _tests(binary):
    """The tests of a test program of Rust."""
    lines = (_said(PACK / "bin" / binary, "--list") or ABSENT).splitlines()
    return [line.removesuffix(": test") for line in lines if line.endswith(": test")]


@functools.cache
def parts():
    """All parts with their tasks. No driver is loaded for it."""
    listed = _said(*python("probes/probe.py", "--list"))
    probes = json.loads(listed) if listed else {"facts": {"absent": ""}, "rules": {"absent": ""}}
    programs = (_said(GPU, "--list") or "absent").split()
    cores = os.cpu_count() or 1
    interposed = "interposed/with_{}.py".format
    return [
        Part("facts", "what the driver answers", 40, 1, [tasks.probe("facts", name) for name in probes["facts"]]),
        Part("rules", "rules of the simulated driver", 60, 8, [tasks.probe("rules", name, rule) for name, rule in probes["rules"].items()]),
        Part(
            "conformance",
            "libbfc's conformance suite on both backends",
            60,
            2,
            [tasks.conformance(name, _tests(name)) for name in ["conformance_cuda", "conformance_cuda_vmm"]],
        ),
        Part(
            "reuse",
            "reuse, races, sharing and resets with real kernels",
            40,
            1,
            [tasks.program(name) for name in programs if name not in GRAPHS],
        ),
        Part("graphs", "captured graphs", 20, 1, [tasks.program(name) for name in GRAPHS]),
        Part(
            "interposer",
            "unmodified programs",
            75,
            # Python loads such a framework on one core for seconds.
            3 if cores > 3 else 1,
            [
                tasks.interposed("nvcc", [], ["", "--limit=64MiB", "--free=sync", "--async"], compile_with="saxpy", race=True),
                tasks.interposed("torch", python(interposed("torch"))),
                tasks.interposed("torch caching", python(interposed("torch"), "--caching")),
                tasks.interposed("cupy", python(interposed("cupy"))),
                tasks.interposed("jax", python(interposed("jax"))),
            ],
        ),
        Part(
            "frameworks",
            "CuPy and Numba with libbfc in place of their allocators",
            30,
            2 if cores > 3 else 1,
            [
                tasks.script("cupy", "frameworks/with_cupy.py"),
                tasks.script("cupy by anyone", "frameworks/with_cupy.py", "by_anyone"),
                tasks.script("numba", "frameworks/with_numba.py"),
            ],
        ),
        Part(
            "costs",
            "what allocating costs, and the memory that two trainings hold",
            170,
            1,
            [
                tasks.costs("driver and libbfc", [GPU, "costs"], tasks.PLAIN),
                tasks.costs(
                    "interposer",
                    [BFC, "run", "--", GPU, "costs"],
                    tasks.PLAIN | {"BFC_GPU_ONLY_DRIVER": 1},
                    prefix="interposed ",
                ),
                tasks.trainings(TRAININGS),
                tasks.costs("RMM", python("frameworks/rmm_costs.py")),
            ],
        ),
        Part("sanitizer", "compute-sanitizer", 40, 1, [tasks.sanitizer("reuse_two_streams")]),
    ]
