"""The whole pack on the simulated driver. It shows that the pack runs, and nothing of a GPU: no kernel computes anything."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from programs import SIMULATION

# That of Ubuntu 22.04 and RHEL 9, which the README promises.
GLIBC = (2, 34)
MOST_BYTES = 45 << 20
BAD = {"failed", "crashed", "timed out"}
# The version of the machine with the GPU, where this machine has it.
MACHINE_PYTHON = os.environ.get("LIBBFC_TESTS_GPU_PYTHON")


def environment(*folders, simulated=True):
    """A bare one, as of a command that is started on a strange machine."""
    found = {"PATH": ":".join([*map(str, folders), "/usr/bin", "/bin"])}
    if simulated:
        driver = SIMULATION / "libcuda.so.1"
        found |= {"LD_LIBRARY_PATH": str(SIMULATION), "SIMCUDA_LIBRARY": str(driver), "SIMCUDA_DEVICES": "1"}
    return found


def start(pack, out, *arguments, env, python=None):
    command = [python or sys.executable, pack / "run", "--out", out, *arguments]
    return subprocess.Popen(
        list(map(str, command)), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(pack, out, *arguments, env, python=None):
    """The exit status, what was printed, and the records by (part, row)."""
    child = start(pack, out, *arguments, env=env, python=python)
    said, _ = child.communicate(timeout=900)
    assert (out / "results.jsonl").exists(), said
    return child.returncode, said, rows_in(out / "results.jsonl")


def rows_in(path):
    records = [json.loads(line) for line in path.read_text().splitlines()]
    found = {(record["part"], record["row"]): record for record in records if "part" in record}
    assert len(found) == sum("part" in record for record in records), "a row was written twice"
    return found


def listed(pack):
    said = subprocess.run([sys.executable, pack / "run", "--list"], env=environment(), capture_output=True, text=True, check=True)
    return {(part, row) for part, rows in json.loads(said.stdout).items() for row in rows}


def test_the_pack_can_be_carried(pack):
    files = [path for path in pack.rglob("*") if not path.is_dir()]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    assert not [path for path in files if path.is_symlink()], "links are not carried"
    assert not [path for path in files if "__pycache__" in path.parts]


@pytest.mark.parametrize("name", ["bin/bfc", "bin/bfc-gpu", "bin/conformance_cuda", "bin/conformance_cuda_vmm", "lib/libbfc.so.0"])
def test_its_programs_run_with_an_older_glibc(pack, name):
    with open(pack / name, "rb") as file:
        sections = [section for section in ELFFile(file).iter_sections() if isinstance(section, GNUVerNeedSection)]
        versions = [version.name for section in sections for _, names in section.iter_versions() for version in names]
    numbers = [tuple(map(int, name.removeprefix("GLIBC_").split("."))) for name in versions if name.startswith("GLIBC_2")]
    assert numbers and max(numbers) <= GLIBC, versions


def test_every_row_runs_in_an_empty_folder(pack, tmp_path, toolkit):
    """The pack is carried to an empty folder and run with a bare environment, by the machine's version of Python if there is
    one, with nvcc and compute-sanitizer and without any framework."""
    carried = shutil.copytree(pack, tmp_path / "gpu")
    python = MACHINE_PYTHON or sys.executable
    if MACHINE_PYTHON is None:
        print(f"this machine has no Python 3.12: {python} runs the pack instead")
    status, said, rows = run(carried, tmp_path / "out", "--minutes", "5", env=environment(toolkit), python=python)
    assert set(rows) == listed(pack)
    assert not [record for record in rows.values() if record["status"] in {*BAD, "not run", "differs"}], said
    assert status == 0
    skipped = {key: record["why"] for key, record in rows.items() if record["status"] == "skipped"}
    frameworks = {"interposer", "frameworks", "costs"}
    # Some conformance tests need two devices, and this Python has no framework.
    allowed = {*frameworks, "conformance"}
    assert all(why for why in skipped.values()) and {part for part, _ in skipped} <= allowed, skipped
    assert all(rows["interposer", f"nvcc{option}"]["served"] >= 3000 for option in ["", " --async", " --free=sync"])
    assert all(figure["nanoseconds"] for figure in rows["costs", "interposer"]["costs"])
    assert not list(pathlib.Path(carried).rglob("__pycache__"))


def test_a_machine_without_a_driver(pack, tmp_path):
    status, said, rows = run(pack, tmp_path, env=environment(simulated=False))
    assert status == 0 and set(rows) == listed(pack), said
    passed = {key for key, record in rows.items() if record["status"] != "skipped"}
    assert not passed, passed
    assert "libcuda.so.1" in rows["facts", "driver"]["why"] and "nvcc" in rows["interposer", "nvcc"]["why"]


def test_a_driver_without_a_device(pack, tmp_path):
    env = environment() | {"SIMCUDA_DEVICES": "0"}
    status, said, rows = run(pack, tmp_path, "--only", "facts", "--only", "reuse", "--only", "conformance", env=env)
    assert status == 0 and {record["status"] for record in rows.values()} == {"skipped"}, said
    assert "no device" in rows["facts", "driver"]["why"].lower() or "NO_DEVICE" in rows["facts", "driver"]["why"]


def test_nothing_that_was_done_is_lost(pack, tmp_path):
    """A run that is killed leaves its rows, another one goes on after them, and a third has nothing left to do."""
    first, second, third = (tmp_path / name for name in ["first", "second", "third"])
    parts = ["--only", "rules", "--only", "reuse"]
    child = start(pack, first, *parts, env=environment())
    file = first / "results.jsonl"
    while not file.exists() or file.read_text().count("\n") < 12:
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    before = rows_in(file)
    # The line that was being written is not whole.
    file.write_text(file.read_text() + '{"part": "rules", "row": "')
    status, said, rows = run(pack, second, "--skip-done", file, *parts, env=environment())
    assert status == 0 and len(before) < len(rows), said
    assert all(rows[key] == record for key, record in before.items() if record["status"] != "not run")
    _, _, again = run(pack, third, "--skip-done", second / "results.jsonl", *parts, env=environment())
    assert again == rows


def test_an_earlier_file_is_kept_whole_and_not_mixed(pack, tmp_path):
    """The rows of parts that do not run again stay, and another device's are refused."""
    _, _, before = run(pack, tmp_path / "first", "--only", "graphs", env=environment())
    file = tmp_path / "first/results.jsonl"
    options = ["--skip-done", file, "--only", "sanitizer"]
    _, _, rows = run(pack, tmp_path / "second", *options, env=environment())
    assert {key[0] for key in rows} == {"graphs", "sanitizer"} and before.items() <= rows.items()
    file.write_text(file.read_text().replace('"device": "simcuda', '"device": "another'))
    child = start(pack, tmp_path / "third", *options, env=environment())
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 2 and "is of another device: another" in said
    assert not (tmp_path / "third").exists()


def test_a_runner_that_is_terminated_leaves_no_program(pack, tmp_path):
    carried = shutil.copytree(pack, tmp_path / "gpu", ignore=shutil.ignore_patterns("site"))
    # An argument by which the program that hangs can be found.
    mark = str(time.monotonic_ns())
    program = carried / "bin/bfc-gpu"
    program.unlink()
    program.write_text(f'#!/bin/sh\n[ "$1" = --list ] && echo hangs && exit\nsleep {mark} & sleep 300\n')
    program.chmod(0o755)
    child = start(carried, tmp_path / "out", "--only", "reuse", env=environment() | {"TMPDIR": str(tmp_path)})
    while mark not in processes():
        assert child.poll() is None
        time.sleep(0.02)
    child.terminate()
    child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM and mark not in processes()
    assert not list(tmp_path.glob("bfc-gpu-*")), "the scratch folder is left"


def processes():
    return subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True).stdout


def test_conformance_where_calls_block(pack, tmp_path):
    """As on a device: a call that waits for a stream waits until its work ends."""
    env = environment() | {"SIMCUDA_SYNCHRONIZE_WAITS": "1"}
    status, said, rows = run(pack, tmp_path, "--only", "conformance", env=env)
    assert status == 0 and {record["status"] for record in rows.values()} == {"passed", "skipped"}, said
    assert max(record["seconds"] for record in rows.values()) > 0.9, "no test waited for its stream"
    skipped = {key[1].partition(": ")[2] for key, record in rows.items() if record["status"] == "skipped"}
    assert skipped == {"one_stream_is_like_none", "several_at_once", "collects"}


def test_when_time_is_up_the_rest_is_not_run(pack, tmp_path):
    status, said, rows = run(pack, tmp_path, "--minutes", "0.1", "--only", "reuse", env=environment())
    assert status == 0 and set(rows) == {key for key in listed(pack) if key[0] == "reuse"}, said
    late = [record for record in rows.values() if record["status"] == "not run"]
    assert late and all("time is up" in record["why"] or "cut off" in record["why"] for record in late), said
