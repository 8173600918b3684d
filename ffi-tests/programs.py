"""Programs in C and C++ that tests run: compiled once for all processes of a test run, and run in an environment of the
test's own."""

import concurrent.futures
import contextlib
import fcntl
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).parents[1]
PREFIX = pathlib.Path(os.environ.get("LIBBFC_TESTS_PREFIX", "/"))
LIB = PREFIX / "lib"
SIMULATION = pathlib.Path(os.environ.get("LIBBFC_TESTS_SIMULATION", "/"))
SCRATCH = pathlib.Path(os.environ.get("LIBBFC_TESTS_SCRATCH", ROOT / "target/tests"))
# For builds of libbfc that only show that it builds: cargo's environment.
QUICK_BUILD = {
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "0",
}
# What CMake projects build of it: the first time takes longest.
CMAKE_CARGO = SCRATCH / "cmake-cargo"
# Settings of the user's that a test must not see.
OF_THE_USER = ("BFC_", "SIMCUDA_", "LD_", "PYTHON")


@contextlib.contextmanager
def alone(name):
    """One process at a time."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with open(SCRATCH / f"{name.replace('/', '-')}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def newest(*folders):
    """When the newest of the sources in some folders, of libbfc and of the simulation was changed."""
    inputs = [*(path for folder in folders for path in folder.rglob("*.[chi]*")), *SIMULATION.glob("*"), *LIB.glob("*.so*")]
    return max((path.stat().st_mtime for path in [*inputs, *(ROOT / "include").rglob("*.h*")]), default=0)


def built(name, folders, build):
    """The file SCRATCH/NAME, by build(path) if it is not there, or older than the sources in some folders."""
    path = SCRATCH / name
    with alone(name):
        if not path.exists() or path.stat().st_mtime < newest(*folders):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            build(path)
    return path


def compiler(language):
    return os.environ.get({"c": "CC", "cpp": "CXX"}[language]) or {"c": "cc", "cpp": "c++"}[language]


def compiled(name, sources, flags=(), libraries=(), language="cpp"):
    """Compiles files, which may need whatever is in their folders; the program, in SCRATCH."""
    command = [compiler(language), *flags]

    def one(pair):
        source, target = pair
        check([*command, "-c", source, "-o", target])

    def build(path):
        objects = [path.with_name(f"{path.name}-{source.stem}.o") for source in sources]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(one, zip(sources, objects)))
        check([*command, *objects, *libraries, "-o", path])

    return built(name, {source.parent for source in sources}, build)


def check(command):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"


def environment(**more):
    """The variables of a program on the simulated driver. None unsets one."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_USER)}
    found |= {"LD_LIBRARY_PATH": f"{LIB}:{SIMULATION}", "SIMCUDA_DEVICES": "2"} | more
    return {name: str(value) for name, value in found.items() if value is not None}


def run(*command, env=None, status=0, timeout=600):
    """Runs a program to its end: all that it says. With another `status` than None it has to end so."""
    done = subprocess.run(
        [str(word) for word in command],
        env=environment() if env is None else env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
        cwd=ROOT,
    )
    assert status is None or done.returncode == status, f"status {done.returncode}:\n{done.stdout}"
    return done.stdout if status is not None else (done.returncode, done.stdout)
