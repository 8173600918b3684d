"""bfc-gpu and the programs of interposed/ on the simulated driver, where kernels are simulated too. It shows that they work
and nothing of a GPU."""

import pathlib
import re

import pytest

import programs
from programs import ROOT, SIMULATION

HERE = pathlib.Path(__file__).parent
TESTS = re.findall(r"TEST\((\w+)\),", (HERE / "main.c").read_text())


def run(*command, **variables):
    """How a program has ended, and what it said."""
    env = programs.environment(LD_LIBRARY_PATH=SIMULATION, SIMCUDA_DEVICES=None, **variables)
    return programs.run(*command, env=env, status=None)


@pytest.mark.parametrize("name", TESTS)
def test_bfc_gpu(folder, name):
    status, said = run(folder / "bfc-gpu", name)
    if skipped := re.search(r"^test \w+ \.\.\. ignored, (.*)", said, re.MULTILINE):
        pytest.skip(skipped[1])
    assert status == 0 and f"test {name} ... ok" in said, said


def test_the_costs_are_printed(folder):
    status, said = run(folder / "bfc-gpu", "costs")
    assert status == 0 and "A SIMULATION" in said and "\n   536870912 " in said, said


@pytest.fixture(scope="session")
def saxpy(folder):
    """saxpy.cu compiled as C, with the simulated static runtime."""
    flags = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-DCUDART_MAJOR=12", "-I", ROOT / "ffi-tests/simcuda"]
    sources = ["-x", "c", folder / "interposed/saxpy.cu", "-x", "none", SIMULATION / "libcudart_static.a", "-ldl", "-lpthread"]
    command = [programs.compiler("c"), *flags, *sources, "-o"]
    return programs.built("gpu/saxpy", {HERE / "interposed"}, lambda path: programs.check([*command, path]))


def test_run_sh_judges_what_nvcc_compiles(folder, saxpy, tmp_path, monkeypatch):
    # A stand-in for an old nvcc, which does not know this machine's architecture and "compiles" that program.
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(
        '#!/bin/sh\ncase "$*" in *-arch=native*) exit 1 ;; esac\n'
        f"while [ $# -gt 0 ]; do [ \"$1\" = -o ] && cp '{saxpy}' \"$2\"; shift; done\n"
    )
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    status, said = run(folder / "interposed/run.sh", folder, "nvcc")
    names = ["nvcc_static", *(f"nvcc_static {option}" for option in ["--limit=64MiB", "--free=sync", "--async"])]
    results = re.findall(r"^test (.*) \.\.\. (.*)", said, re.MULTILINE)
    assert status == 0 and results == [(name, "ok") for name in [*names, "nvcc_sees_a_race"]], said


# What is wrong on purpose: arguments of run.sh, variables, and how the line begins that says so.
FAULTS = {
    "another output": (["--", "sh", "-c", 'SAXPY && echo "$LD_PRELOAD"'], {}, "program: its output is another one"),
    "a failure with the interposer": (
        ["--", "sh", "-c", 'test -z "$LD_PRELOAD"'],
        {},
        "program: with the interposer it ended with 1, without it well",
    ),
    "a failure alone": (["--", "false"], {}, "program: without the interposer it ended with 1"),
    "no end": (["--", "sleep", "60"], {"SECONDS_EACH": "1"}, "program: without the interposer it ended with 124"),
    "no allocation": (["--", "true"], {}, "program: nothing was served from the pool; bfc run --check says"),
    "nothing served": (["--", "SAXPY"], {"OPTIONS": "--min=1GiB"}, "program: nothing was served from the pool; bfc run"),
    "a part served": (["--", "SAXPY"], {"OPTIONS": "--min=1MiB"}, "program: of at least 3000 allocations only "),
    # `true` does as if all were well, also with a pool that does not wait.
    "a race unseen": (["nvcc"], {"SAXPY": "true"}, "nvcc_sees_a_race: a pool that waits for nothing went unnoticed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_run_sh_finds_what_is_wrong(folder, saxpy, fault):
    arguments, variables, complaint = FAULTS[fault]
    arguments = [argument.replace("SAXPY", str(saxpy)) for argument in arguments]
    status, said = run(folder / "interposed/run.sh", folder, *arguments, **{"SAXPY": saxpy} | variables)
    assert status != 0 and any(line.strip().startswith(complaint) for line in said.splitlines()), said
