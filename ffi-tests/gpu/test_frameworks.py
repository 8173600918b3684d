"""The programs of frameworks/ and interposed/ with PyTorch, on the simulated driver with tiny models: that they run to their
end, that each allocator is the one it is called, and that a missing part skips a program with a remedy. Losses, speed and
sizes have no meaning there, because no kernel runs. CuPy's and Numba's programs need real kernels.

With GPU_PACK_WHOLE=1, the PyTorch of the machines that the pack is carried to is tested too, a download of 550 MB."""

import hashlib
import json
import os
import pathlib
import re
import sys

import pytest

import programs
import running
import test_pack
from conftest import HERE
from programs import run
from test_pack import environment

ALLOCATORS = ["native", "async", "bfc", "bfc_vmm"]
# With the suite's own PyTorch, expandable segments look for NVML.
ALLOCATORS_2_11 = [*ALLOCATORS, "expandable", "bfc_default"]
WHOLE = pytest.mark.skipif(not os.environ.get("GPU_PACK_WHOLE"), reason="GPU_PACK_WHOLE=1 fetches PyTorch 2.11 (550 MB)")
TORCH_2_11 = HERE / "requirements-torch-2.11.txt"
SKIPPED = 77


class Python:
    """An interpreter with a PyTorch, and the variables that its programs need."""

    def __init__(self, pack, python, libraries, cache):
        self.pack, self.python = pack, python
        self.variables = programs.environment(
            LD_LIBRARY_PATH=libraries,
            PYTHONPATH=pack / "python",
            BFC_LIBRARY=pack / "lib/libbfc.so.0",
            PYTHONDONTWRITEBYTECODE=1,
            XDG_CACHE_HOME=cache,
            SIMCUDA_DEVICES=None,
        )

    def run(self, program, *arguments, status=0, **more):
        command = [self.python, "-W", "ignore", self.pack / program, *arguments]
        return run(*command, env=self.variables | {name: str(value) for name, value in more.items()}, status=status)

    def code(self, *lines):
        return run(self.python, "-W", "ignore", "-c", "\n".join(lines), env=self.variables)


@pytest.fixture
def python(pack):
    """The suite's own."""
    return Python(pack, sys.executable, running.libraries(), os.environ["XDG_CACHE_HOME"])


@pytest.fixture(scope="session")
def python_2_11(pack, shared):
    """The PyTorch of the machines that the pack is carried to, in an environment of its own in the user's cache."""
    cache = pathlib.Path(os.environ["LIBBFC_TESTS_CACHE"])
    uv = next(cache.glob("uv/*/bin/uv"))
    digest = hashlib.sha256(TORCH_2_11.read_bytes()).hexdigest()[:16]
    folder = cache / "env" / f"gpu-torch-2.11-{digest}"
    interpreter = folder / "bin/python"
    with programs.alone("gpu-torch-2.11"):
        if not (folder / "complete").exists():
            variables = programs.environment(UV_CACHE_DIR=cache / "uv-cache")
            options = ["--quiet", "--no-python-downloads", "--python"]
            run(uv, "venv", "--allow-existing", *options, sys.executable, folder, env=variables)
            run(uv, "pip", "sync", *options, interpreter, TORCH_2_11, env=variables, timeout=1800)
            (folder / "complete").touch()
        # Stubs for this PyTorch apart from those for the suite's own.
        scratch = programs.SCRATCH / "gpu-torch-2.11"
        variables = dict(os.environ) | {"LIBBFC_TESTS_SCRATCH": str(scratch)}
        folders = [HERE.parent, HERE.parent / "pytorch"]
        variables["PYTHONPATH"] = ":".join(map(str, folders))
        libraries = run(interpreter, "-c", "import running; print(running.libraries())", env=variables).strip()
    return Python(pack, interpreter, libraries, shared / "cache-2.11")


def training(python, shared, name):
    """The file that train.py writes, once for all processes that run tests."""
    environment = pathlib.Path(python.python).parents[1].name
    file = shared / f"training of {environment} with {name}.json"
    with programs.alone(f"gpu-{file.stem}"):
        if not file.exists():
            python.run("frameworks/train.py", "--allocator", name, "--out", file)
    return file


def result_of(said):
    return json.loads(re.findall(r"^RESULT (.*)$", said, re.MULTILINE)[-1])


def check_training(python, shared, name):
    found = json.loads(training(python, shared, name).read_text())
    assert found["simulated"] and found["allocator"] == name and len(found["losses"]) == 2
    assert found["gpt"]["steps"] == found["resnet"]["steps"] == 2
    assert {figure["bytes"] for figure in found["costs"]} >= {0, 4096, 512 << 20}
    assert all(figure["nanoseconds"] > 0 for figure in found["costs"])


@pytest.mark.parametrize("name", ALLOCATORS)
def test_training_with(python, shared, name):
    check_training(python, shared, name)


def test_trainings_are_compared(python, shared):
    files = [training(python, shared, name) for name in ["native", "bfc_vmm"]]
    assert "no losses were compared" in python.run("frameworks/compare.py", *files)


def test_shim_is_compiled(python, tmp_path):
    found = result_of(python.run("frameworks/shim.py", XDG_CACHE_HOME=tmp_path))
    (shim,) = tmp_path.glob("libbfc/shims/*.so")
    assert found["shim"] == "compiled" and shim.name.startswith("torch_alloc")


@pytest.mark.parametrize("program", ["frameworks/shim.py", "frameworks/train.py --out /nowhere --allocator bfc"])
def test_without_a_compiler(python, tmp_path, program):
    status, said = python.run(*program.split(), status=None, XDG_CACHE_HOME=tmp_path, CXX="/nowhere/g++")
    assert status == SKIPPED and "install one (Debian: apt-get install g++)" in said.splitlines()[-1]


def test_without_the_backend(python):
    status, said = python.run("frameworks/train.py", "--out=/nowhere", "--allocator=bfc_vmm", status=None, SIMCUDA_VMM=0)
    assert status == SKIPPED and "libbfc has no such backend here" in said.splitlines()[-1]


@pytest.mark.parametrize(
    "text, reason",
    [
        ("raise ImportError('libcudart.so.13: no such file\\nand more')", "PyTorch cannot be imported (ImportError: libcudart"),
        ("class version: cuda = None\n__version__ = '2.11.0+cpu'", "PyTorch 2.11.0+cpu is built without CUDA: pip install"),
    ],
    ids=["broken", "cpu"],
)
@pytest.mark.parametrize("program", ["train.py --out /nowhere --allocator bfc", "shim.py"])
def test_with_a_pytorch_of_no_use(python, tmp_path, text, reason, program):
    (tmp_path / "torch.py").write_text(text)
    words, path = program.split(), f"{tmp_path}:{python.variables['PYTHONPATH']}"
    status, said = python.run(f"frameworks/{words[0]}", *words[1:], status=None, PYTHONPATH=path)
    assert status == SKIPPED and said.splitlines()[-1].startswith(reason) and "Traceback" not in said


@pytest.mark.parametrize(
    "program", ["frameworks/rmm_costs.py", "frameworks/with_numba.py", "frameworks/with_cupy.py", "interposed/with_jax.py"]
)
def test_without_the_framework(python, program):
    status, said = python.run(program, status=None)
    assert status == SKIPPED and "pip install" in said.splitlines()[-1] and "Traceback" not in said


@WHOLE
def test_torch_on_the_cpu(python):
    assert python.run("interposed/with_torch.py", "--cpu").splitlines()[-1] == "ok"


@pytest.mark.parametrize("arguments", [["--caching"], pytest.param([], marks=WHOLE)], ids=" ".join)
def test_torch_interposed(python, tmp_path, arguments):
    """All that it allocates comes from the pool."""
    bfc, report = python.pack / "bin/bfc", tmp_path / "report"
    command = [bfc, "run", f"--report={report}", "--", python.python, python.pack / "interposed/with_torch.py", *arguments]
    said = run(*command, env=python.variables | {"BFC_LIBRARY": ""})
    (asked,) = re.findall(r"^allocations: (\d+)$", said, re.MULTILINE)
    served = re.findall(r"^ *served +(\d+)", run(bfc, "report", report), re.MULTILINE)
    assert sum(map(int, served)) >= int(asked) > 0


@WHOLE
@pytest.mark.parametrize("name", ALLOCATORS_2_11)
def test_training_with_pytorch_2_11(python_2_11, shared, name):
    check_training(python_2_11, shared, name)


@WHOLE
def test_every_row_with_pytorch_2_11(python_2_11, toolkit, tmp_path):
    """All of the pack as it runs on such a machine, without CuPy, JAX, Numba and RMM."""
    env = python_2_11.variables | environment(toolkit)
    env["LD_LIBRARY_PATH"] = python_2_11.variables["LD_LIBRARY_PATH"]
    status, said, rows = test_pack.run(python_2_11.pack, tmp_path, "--minutes", "20", env=env, python=python_2_11.python)
    assert set(rows) == test_pack.listed(python_2_11.pack)
    assert status == 0 and not [record for record in rows.values() if record["status"] in ("not run", "differs")], said
    skipped = {key for key, record in rows.items() if record["status"] == "skipped" and key[0] != "conformance"}
    frameworks = {key for key in rows if key[0] == "frameworks"}
    absent = {("interposer", "cupy"), ("interposer", "jax"), ("costs", "RMM")}
    assert skipped == frameworks | absent, said


@WHOLE
def test_shim_of_pytorch_2_11(python_2_11):
    found = result_of(python_2_11.run("frameworks/shim.py"))
    assert found["shim"] == "compiled" and found["torch"].startswith("2.11.0")


@WHOLE
def test_pytorch_2_11_runs_out_of_memory(python_2_11):
    said = python_2_11.code(
        "import torch, bfc, bfc.torch",
        "used = bfc.torch.use(memory_limit=1 << 30)",
        "assert used.raises is torch.OutOfMemoryError",
        "kept = torch.empty(1 << 20, device='cuda')",
        "assert bfc.owner(kept.data_ptr()) == 0",
        "try: torch.empty(1 << 40, dtype=torch.uint8, device='cuda')",
        "except torch.OutOfMemoryError as error: print(error)",
    )
    assert "Tried to allocate 1024.00 GiB" in said and "largest free chunk" in said
