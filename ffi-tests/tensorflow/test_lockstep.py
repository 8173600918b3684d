"""libbfc in lock step with TensorFlow's own allocator: millions of equal steps, and faults that have to be found."""

import pathlib
import re
import sysconfig

import pytest

from programs import LIB, PREFIX, compiled, environment, run

HERE = pathlib.Path(__file__).parent
TENSORFLOW = pathlib.Path(sysconfig.get_path("purelib")) / "tensorflow"
# A system folder: TensorFlow's headers are not clean under -Wall.
FLAGS = [*"-std=c++17 -O2 -Wall -Wextra -Werror -pthread -D_GLIBCXX_USE_CXX11_ABI=1".split(), "-I", PREFIX / "include"]
FLAGS += ["-isystem", TENSORFLOW / "include"]
LINKS = ["-L", LIB, "-l:libbfc.so", f"-Wl,-rpath,{LIB}"]
LINKS += ["-L", TENSORFLOW, "-l:libtensorflow_framework.so.2", f"-Wl,-rpath,{TENSORFLOW}"]
# Fewer would leave rare programs out.
LEAST_STEPS = 1_000_000


@pytest.fixture(scope="module")
def lockstep():
    # The others are those of the benchmark.
    sources = [path for path in HERE.glob("*.cc") if not path.name.startswith("bench")]
    return compiled("tensorflow/lockstep", sources, FLAGS, LINKS)


@pytest.fixture(scope="module")
def variables():
    # TensorFlow says things before `main` is reached, so it has to be told from outside to be quiet.
    return environment(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")


@pytest.mark.xdist_group("lockstep")
def test_no_step_differs(lockstep, variables):
    said = run(lockstep, env=variables)
    assert int(re.search(r"(\d+) steps compared in", said)[1]) >= LEAST_STEPS


@pytest.mark.xdist_group("lockstep")
@pytest.mark.parametrize("fault", ["size", "split", "frontier"])
def test_a_fault_is_found(fault, lockstep, variables):
    status, said = run(lockstep, "--mutate", fault, env=variables, status=None)
    # The fault has to be the reason, and not a crash or a wrong option.
    assert status != 0 and "MISMATCH" in said and "the smallest program that differs" in said
