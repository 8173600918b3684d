"""Every way from a program to cudaMalloc that there is: does it lead through the interposer?"""

import shutil
import sys

import pytest

from stage import BYPASSED, LIB, NOTHING_SEEN, RUNTIMES, SIMULATION, compile, environment, preloaded, run, served

RUNTIME, DRIVER = SIMULATION / RUNTIMES[12], SIMULATION / "libcuda.so.1"


@pytest.mark.parametrize("major, lookup", [(11, "cuGetProcAddress"), (12, "cuGetProcAddress_v2"), (13, "cuGetProcAddress_v2")])
def test_linked_to_the_runtime(major, lookup, check):
    given = "looked-up cuGetProcAddress cuMemAlloc_v2"
    there = ["loaded", f"looked-up dlsym {lookup}", given, "called cuMemAlloc_v2", "served 1000"]
    served(check, compile(f"runtime{major}", "runtime.c", major), there=there, absent=["passed"])


def test_linked_to_the_static_runtime_whose_symbols_are_hidden(check):
    served(check, compile("runtime_static", "runtime.c", "static"))


def test_linked_to_the_driver(check):
    # Nothing is looked up: the loader itself binds the names to ours.
    there = ["called cuMemAlloc_v2", "served 5000", "exit driver=mapped"]
    served(check, compile("linked", "linked.c", "driver"), there=there, absent=["looked-up", "passed"])


@pytest.mark.parametrize(
    "what, how",
    # With `deep` its own names are bound otherwise, but the program finds its functions by dlsym, which is ours.
    [("runtime", "local"), ("runtime", "global"), ("driver", "local"), ("driver", "global"), ("driver", "deep"), ("versioned", "local")],
)
def test_opened_by_its_path(what, how, check, tmp_path):
    path = {"runtime": RUNTIME, "driver": DRIVER, "versioned": tmp_path / "libcuda.so.560.35.03"}[what]
    if what == "versioned":
        # As a driver is installed: the file has its version in its name, and only its SONAME is libcuda.so.1.
        shutil.copy(DRIVER, path)
    # No search would find the driver.
    search = {} if what == "runtime" else {"LD_LIBRARY_PATH": None}
    kind = "runtime" if what == "runtime" else "driver"
    served(check, compile("opened", "opened.c", None), kind, path, how, "served", **search)


def test_a_runtime_opened_with_deepbind_is_bypassed_and_that_is_said(check):
    program = compile("opened", "opened.c", None)
    served(check, program, "runtime", RUNTIME, "deep", "unserved", there=BYPASSED, absent=NOTHING_SEEN)


def test_the_same_program_without_the_interposer():
    run(compile("opened", "opened.c", None), "runtime", RUNTIME, "local", "unserved", env=environment())


def test_lookups_by_name_version_and_flags(check):
    there = ["looked-up dlsym cuMemAlloc_v2", "looked-up cuGetProcAddress cuMemAlloc_v2"]
    other = compile("libother.so", "chain.c", "library")
    served(check, compile("lookups", "lookups.c", None), other, there=there, absent=["served"])


@pytest.fixture
def strange_driver():
    """The folder of a driver with other addresses, older and later functions."""
    return compile("strange/libcuda.so.1", "strange_driver.c", "library", ["-Wl,-soname,libcuda.so.1"]).parent


def test_a_driver_with_other_addresses_older_and_later_functions(strange_driver, check):
    there = ["loaded", "too-new 13060 cuMemAlloc", "too-new 14000 cuMemAlloc"]
    served(check, compile("strange_lookups", "strange_lookups.c", None), there=there, LD_LIBRARY_PATH=strange_driver)


def test_a_later_function_is_passed_through_with_a_warning(strange_driver):
    program = compile("strange_lookups", "strange_lookups.c", None)
    said = run(program, env=preloaded(LD_LIBRARY_PATH=strange_driver, BFC_LOG="warn"))
    assert "cuMemAlloc of CUDA 13.6 is not interposed: libbfc knows the functions up to CUDA 13.5" in said


@pytest.mark.parametrize("major", RUNTIMES)
def test_cuda_get_driver_entry_point(major, check):
    # Of CUDA 11 with 3 arguments, of 12 with 4, and ByVersion.
    served(check, compile(f"entry_point{major}", "entry_point.c", major))


def test_a_program_with_stubs_and_variables_of_the_drivers_names(check):
    served(check, compile("stubs", "stubs.c", None, ["-rdynamic"]))


def test_a_pool_that_the_program_itself_has_created(check):
    program = compile("own_pool", "own_pool.c", 12, [LIB / "libbfc.so"])
    served(check, program, LD_LIBRARY_PATH=f"{LIB}:{SIMULATION}", BFC_PRELOAD_PINNED="1")


@pytest.mark.parametrize("which", ["the installed libbfc", "a copy of libbfc"])
def test_linked_to_libbfc_too_is_one_pool(which, check, tmp_path):
    folder = LIB if which.startswith("the") else tmp_path
    if folder == tmp_path:
        shutil.copy(LIB / "libbfc.so", tmp_path / "libbfc.so.0")
    served(check, compile("shares", "shares.c", 12, [LIB / "libbfc.so"]), LD_LIBRARY_PATH=f"{folder}:{SIMULATION}")


@pytest.mark.parametrize("what, library", [("driver", "libcuda.so.1"), ("runtime", RUNTIMES[12]), ("runtime", RUNTIMES[13])])
def test_ctypes_in_python(what, library, check, root):
    served(check, sys.executable, root / "ffi-tests/preload/with_ctypes.py", what, library)


# Another interposer in the same process: the one that comes first in LD_PRELOAD comes first, and goes on to the second only if
# it looks the next function up by RTLD_NEXT. Ours goes on to the driver itself.
CHAINS = [
    # The program, the other interposer, whether that is before us, and how many of the two allocations it sees.
    ("linked", "symbol", True, 2),
    ("linked", "symbol", False, 0),
    ("looks_up", "symbol", True, 0),
    ("looks_up", "symbol", False, 0),
    ("linked", "dlsym", True, 2),
    ("linked", "dlsym", False, 0),
    ("looks_up", "dlsym", True, 2),
    ("looks_up", "dlsym", False, 0),
    ("linked", "straight", False, 0),
    ("looks_up", "straight", False, 0),
    ("looks_up", "straight", True, 2),
]
OTHERS = {"symbol": [], "dlsym": ["-DEXPORTS_DLSYM"], "straight": ["-DEXPORTS_DLSYM", "-DGOES_STRAIGHT"]}
PROGRAMS = {"linked": ("driver", ["-DLINKED"]), "looks_up": (None, [])}


@pytest.mark.parametrize("program, other, is_before, sees", CHAINS)
def test_two_interposers(program, other, is_before, sees, check):
    library = compile(f"libchain_{other}.so", "chain.c", "library", OTHERS[other])
    is_bypassed = other == "straight" and is_before
    lines = {"there": BYPASSED, "absent": NOTHING_SEEN} if is_bypassed else {}
    place = {"before": [library]} if is_before else {"behind": [library]}
    served(check, compile(f"chained_{program}", "chained.c", *PROGRAMS[program]), int(not is_bypassed), sees, **place, **lines)
