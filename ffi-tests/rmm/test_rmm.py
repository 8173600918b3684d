"""libbfc as a memory resource of RMM, in C++ and in Python, on the simulated driver. See README.md."""

import os
import pathlib
import sys
import sysconfig

import pytest

from pages import Page
from programs import LIB, PREFIX, ROOT, SIMULATION, compiled, environment, run

HERE = pathlib.Path(__file__).parent
PACKAGES = pathlib.Path(sysconfig.get_path("purelib"))
CUDA = PACKAGES / "nvidia/cu13/include"
# Takes the place of those functions of RMM that call the runtime within its library.
RUNTIME = HERE / "runtime.cpp"
SOURCES = [HERE / f"{name}.cpp" for name in "main behaviours streams failures threads containers repeated".split()]


class Rmm:
    """A version of RMM, and what is needed to compile with it and to run what was compiled."""

    def __init__(self, version, packages, standard, has_library):
        self.version = version
        self.has_library = has_library
        self.libraries = [LIB, SIMULATION, packages / "rapids_logger/lib64"]
        self.libraries += [packages / "librmm/lib64"] if has_library else []
        include = packages / "librmm/include"
        headers = [include, include / "rapids/libcudacxx", include / "rapids", packages / "rapids_logger/include", CUDA]
        self.flags = [f"-std={standard}", *"-O1 -g -Wall -Wextra -Werror -pthread".split()]
        # There is no nvcc, and no kernel that could run: thrust writes the simulated memory from the CPU.
        self.flags += ["-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP"]
        # As RMM's own CMake says.
        self.flags += ["-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE", "-I", PREFIX / "include"]
        for folder in headers:
            self.flags += ["-isystem", folder]
        self.links = [word for folder in self.libraries for word in ("-L", folder)]
        self.links += ["-l:libbfc.so", "-l:libcudart.so.13", "-l:libcuda.so.1", "-lrapids_logger", "-ldl"]
        self.links += ["-lrmm"] if has_library else []

    def compiled(self, name, sources, more=()):
        runtime = [RUNTIME] if self.has_library else []
        return compiled(f"rmm/{self.version}/{name}", [*sources, *runtime], [*self.flags, *more], self.links)

    def environment(self, **more):
        return environment(LD_LIBRARY_PATH=":".join(map(str, self.libraries))) | more

    def cases(self):
        return run(self.compiled("rmm-tests", SOURCES), env=self.environment()).split()


NEWEST = Rmm("26.10", PACKAGES, "c++20", True)
# One without a library of its own; its resources have a base class.
(OLD_PACKAGES,) = pathlib.Path(os.environ["LIBBFC_TESTS_ENV_HEADERS_25"]).glob("lib/python*/site-packages")
OLD = Rmm("25.4", OLD_PACKAGES, "c++17", False)
BOTH = [NEWEST, OLD]
CASES = [pytest.param(rmm, case, id=f"{rmm.version}-{case}") for rmm in BOTH for case in rmm.cases()]


@pytest.mark.parametrize("rmm, case", CASES)
def test_case(rmm, case):
    # Each is a process of its own: RMM and libbfc both have one state for a process.
    run(rmm.compiled("rmm-tests", SOURCES), case, env=rmm.environment())


@pytest.mark.parametrize("rmm", BOTH, ids=lambda rmm: rmm.version)
@pytest.mark.parametrize(
    "case, fault, words",
    [("random_streams", "events", "simcuda_mismatches() == 0"), ("zero", "leak", "stats().bytes_in_use == 0")],
)
def test_a_fault_is_found(rmm, case, fault, words):
    status, said = run(rmm.compiled("rmm-tests", SOURCES), case, fault, env=rmm.environment(), status=None)
    assert status != 0 and words in said


def test_default_streams_of_threads():
    run(NEWEST.compiled("per_thread", [HERE / "per_thread.cpp"]), env=NEWEST.environment())


def test_the_cpp_of_the_page():
    page = Page("rmm")
    # What is included goes to the head of a program, and the rest into `main`.
    lines = "".join(block.text for block in page.of("cpp")).splitlines()
    head = [line for line in lines if line.startswith("#include")]
    body = [line for line in lines if line not in head]
    source = page.folder / "page.cpp"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("\n".join([*head, "int main() {", *body, "}", ""]))
    run(NEWEST.compiled("page", [source]), env=NEWEST.environment())
    for block in page.of("cpp"):
        page.ran(block.name)


def test_the_package_for_python():
    more = ["-shared", "-fPIC"]
    preload = compiled("rmm/librmm-runtime.so", [RUNTIME], [*NEWEST.flags, *more], [*NEWEST.links, "-shared"])
    variables = {"LD_PRELOAD": str(preload), "SIMCUDA_MEMORY": str(1 << 30)}
    variables |= {name: os.environ[name] for name in ("BFC_LIBRARY", "PYTHONPATH")}
    run(sys.executable, HERE / "with_python.py", env=NEWEST.environment(**variables))
