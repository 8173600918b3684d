"""What the tests in Python share: where the installed library and the simulated driver are, and tests that have a process
of their own.

`cargo xtask test --suite NAME` builds both and runs the tests of a folder in its virtual environment. Arguments after `--`
are pytest's: `cargo xtask test --suite cupy -- -k captured`.
"""

import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

import pages

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent
# Set in the process of a test that has one of its own.
IS_CHILD = "LIBBFC_TESTS_CHILD"


def _built(name):
    if name not in os.environ:
        pytest.exit(f"{name} is not set: run these tests by `cargo xtask test --suite NAME`", 4)
    return pathlib.Path(os.environ[name])


if "LIBBFC_TESTS_PREFIX" in os.environ:
    # The package bfc of the checkout with the installed library. What it compiles lies apart from the user's.
    sys.path.insert(0, str(ROOT / "python/src"))
    os.environ |= {
        "PYTHONPATH": str(ROOT / "python/src"),
        "BFC_LIBRARY": str(_built("LIBBFC_TESTS_PREFIX") / "lib"),
        "XDG_CACHE_HOME": str(_built("LIBBFC_TESTS_SCRATCH") / "python-cache"),
    }


@pytest.fixture(scope="session")
def prefix():
    """The folder in which libbfc is installed."""
    return _built("LIBBFC_TESTS_PREFIX")


@pytest.fixture(scope="session")
def simulation_folder():
    """The folder of the simulated libcuda.so.1 and of the runtimes."""
    return _built("LIBBFC_TESTS_SIMULATION")


@pytest.fixture(scope="session")
def root():
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder that is new with each run of the tests, the same for all its processes."""
    folder = tmp_path_factory.getbasetemp().parent / "shared"
    folder.mkdir(exist_ok=True)
    return folder


# What libbfc complains of on the standard error stream, with BFC_LOG=warn, and what Python swallows at its end.
COMPLAINT = re.compile(r"^(libbfc (warn|error)|libbfc: a tensor's memory|Exception ignored).*", re.MULTILINE)


@pytest.fixture
def no_complaint(capfd):
    yield
    out, err = capfd.readouterr()
    assert not COMPLAINT.search(out + err), out + err


def _pages(config):
    """The pages whose code this run has to run: those of whole folders of tests."""
    if hasattr(config, "workerinput") or IS_CHILD in os.environ or config.option.keyword or config.option.collectonly:
        return []
    folders = [pathlib.Path(argument) for argument in config.args]
    return [page for folder in folders if folder.is_dir() for page in pages.of_folder(folder.name)]


def pytest_sessionstart(session):
    for page in _pages(session.config):
        page.forget()


def pytest_sessionfinish(session, exitstatus):
    left = [line for page in _pages(session.config) for line in page.not_run()]
    if left and exitstatus == 0:
        print("", *(f"FAILED {line}" for line in left), sep="\n")
        session.exitstatus = 1


def pytest_runtest_protocol(item):
    """Runs a test marked own_process, fixtures and all, as the only one of another pytest."""
    markers = list(item.iter_markers("own_process"))
    if not markers or IS_CHILD in os.environ:
        return None
    environment = dict(os.environ)
    # The nearest marker has the last word.
    for marker in reversed(markers):
        environment |= marker.kwargs.get("env", {})
    # pytest-xdist's variables would make the child a worker of the same controller.
    environment = {name: value for name, value in environment.items() if value is not None and "PYTEST_" not in name}
    # pytest-xdist adds the test's group to its name.
    name = item.nodeid.rpartition("@")[0] if item.get_closest_marker("xdist_group") else item.nodeid
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-q", "--no-header", "-rs", name]
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    start = time.monotonic()
    done = subprocess.run(
        command,
        cwd=item.config.rootpath,
        env=environment | {IS_CHILD: "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    outcome, told = "passed", None
    skipped = re.search(r"^SKIPPED \[1\] (\S+?):(\d+): (.*)", done.stdout, re.MULTILINE)
    if done.returncode != 0 or COMPLAINT.search(done.stdout):
        # What a passing test prints is not shown, so a complaint is one of the interpreter's end.
        outcome, told = "failed", f"its process ended with {done.returncode}:\n{done.stdout}"
    elif skipped:
        outcome, told = "skipped", (skipped[1], int(skipped[2]), f"Skipped: {skipped[3]}")
    report = pytest.TestReport(
        item.nodeid, item.location, dict.fromkeys(item.keywords, 1), outcome, told, "call", duration=time.monotonic() - start
    )
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
