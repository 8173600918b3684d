"""Programs that publish into a folder of each test's own, and `bfc top` that looks there."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

WRITER = pathlib.Path(__file__).with_name("writer.py")
# Far longer than anything here takes.
EVER = 60


def eventually(what, ask):
    """The first answer that is not None, however busy the machine is."""
    end = time.monotonic() + EVER
    while (answer := ask()) is None:
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)
    return answer


class Writer:
    """A process that publishes, and the last statistics that bfc_stats has returned there."""

    def __init__(self, environment, name):
        command = [sys.executable, WRITER, name]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        self.hear()

    def hear(self):
        line = self.process.stdout.readline()
        assert line, "the program has ended"
        said = json.loads(line)
        self.stats, self.metrics = said["stats"], said["metrics"]

    def tell(self, command):
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def do(self, command):
        self.tell(command)
        self.hear()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(EVER) == 0


@pytest.fixture
def environment(tmp_path):
    """The variables of a program that publishes."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("BFC_")}
    return plain | {"BFC_LIBRARY": os.environ["BFC_LIBRARY"], "BFC_PUBLISH": "1", "XDG_RUNTIME_DIR": str(runtime)}


@pytest.fixture
def folder(environment):
    """Where the files are."""
    return pathlib.Path(environment["XDG_RUNTIME_DIR"]) / "libbfc"


@pytest.fixture
def start(environment, processes):
    """Starts a program, which publishes its pool when this returns: that is done a little after the pool is created."""
    started = []

    def start(name="bfc"):
        writer = Writer(environment, name)
        started.append(writer)
        eventually("it publishes", lambda: processes().get(writer.pid, {}).get("pools") or None)
        return writer

    yield start
    for writer in started:
        writer.process.kill()
        writer.process.wait()
        writer.process.stdin.close()
        writer.process.stdout.close()


@pytest.fixture
def command(prefix, folder):
    """`bfc top` for the processes of this test alone: others may publish on this machine, or have left a file."""
    return [prefix / "bin/bfc", "top", "--folder", folder]


@pytest.fixture
def top(command, environment):
    """Runs `bfc top`; what it prints."""

    def top(*arguments, status=0):
        done = subprocess.run([*command, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    return top


@pytest.fixture
def processes(top):
    """The processes of `bfc top --json`, by their numbers."""

    def processes(*arguments):
        document = json.loads(top("--json", *arguments))
        assert document["schema"] == "bfc-top/1" and document["unreadable"] == []
        return {process["process"]: process for process in document["processes"]}

    return processes
