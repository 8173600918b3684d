"""The runner with programs that hang, crash or are wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from programs import SIMULATION

HANG = ["sh", "-c", "echo begun; sleep 300 & sleep 300"]
CRASH = ["sh", "-c", "echo begun; kill -SEGV $$"]


@pytest.fixture
def runner(pack, monkeypatch):
    """The modules of the runner, as they were packed. Its programs run on the simulated driver."""
    monkeypatch.syspath_prepend(pack)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(SIMULATION))
    monkeypatch.setenv("SIMCUDA_DEVICES", "1")
    import runner.main
    import runner.tasks

    return runner


def perform(runner, tmp_path, *tasks, seconds=60, compiled=None, earlier=None):
    """Runs tasks as a part; the records by row."""
    from runner.job import Part
    from runner.prepared import Prepared
    from runner.results import Results

    part = Part("part", "a part", seconds, 1, list(tasks))
    written = Results(tmp_path / "out")
    prepared = Prepared(tmp_path, written, time.monotonic() + seconds)
    prepared.get = lambda name, seconds: (None, compiled)
    runner.main.run_part(part, earlier or {}, time.monotonic() + seconds, written, prepared, tmp_path)
    return {record["row"]: record for record in written.records}


def task(runner, row, command, seconds=20):
    return runner.tasks.Task([row], lambda job: job.ended(row, job.program(row, command)), seconds)


def test_a_hang_and_a_crash_end_with_their_rows(runner, tmp_path):
    mark = f"{os.getpid()}{time.monotonic_ns()}"
    hang = ["sh", "-c", f"echo begun; sleep 300 {mark} & sleep 300"]
    tasks = [task(runner, "hangs", hang, 0.5), task(runner, "crashes", CRASH), task(runner, "works", ["true"])]
    rows = perform(runner, tmp_path, *tasks)
    assert [rows[row]["status"] for row in ["hangs", "crashes", "works"]] == ["timed out", "crashed", "passed"]
    assert rows["hangs"]["output"] == "begun" and "SIGSEGV" in rows["crashes"]["why"]
    assert mark not in subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True).stdout
    log = (tmp_path / "out/log.txt").read_text()
    assert "part: hangs (timed out" in log and "begun" in log


def test_a_program_that_the_end_cuts_off_is_not_run(runner, tmp_path):
    tasks = [task(runner, "hangs", HANG), task(runner, "works", ["true"])]
    rows = perform(runner, tmp_path, *tasks, seconds=0.5)
    assert {row: record["status"] for row, record in rows.items()} == {"hangs": "not run", "works": "not run"}
    assert "cut off" in rows["hangs"]["why"] and "time is up" in rows["works"]["why"]


def test_a_fault_of_the_runner_costs_one_task(runner, tmp_path):
    def broken(job):
        raise KeyError("a fault")

    rows = perform(runner, tmp_path, runner.tasks.Task(["one", "two"], broken), task(runner, "works", ["true"]))
    assert [rows[row]["status"] for row in ["one", "two", "works"]] == ["failed", "failed", "passed"]
    assert "a fault" in rows["two"]["output"]


def test_a_program_that_prints_without_end_is_cut_short(runner, tmp_path):
    loud = [sys.executable, "-c", "for _ in range(100_000): print('x' * 100)\nprint('RESULT {\"a\": 1}')"]
    rows = perform(runner, tmp_path, task(runner, "loud", loud))
    assert rows["loud"]["status"] == "passed" and rows["loud"]["a"] == 1
    assert (tmp_path / "out/log.txt").stat().st_size < 100_000


def test_probes_that_differ_or_fail(runner, tmp_path, monkeypatch):
    answers = {
        "as-simulated": 'echo \'{"observed": [1], "expected": [1]}\'',
        "otherwise": 'echo \'{"observed": 1, "expected": 2}\'',
        "a-fact": "echo '{\"observed\": 0}'",
        "absent": "echo it is too old; exit 77",
        "broken": "echo why; exit 1",
    }
    monkeypatch.setattr(runner.tasks, "python", lambda _, kind, name: ["sh", "-c", answers[name]])
    rows = perform(runner, tmp_path, *(runner.tasks.probe("rules", name) for name in answers))
    found = {row: record["status"] for row, record in rows.items()}
    expected = ["passed", "differs", "passed", "skipped", "failed"]
    assert found == dict(zip(answers, expected))
    assert rows["absent"]["why"] == "it is too old" and rows["a-fact"]["observed"] == 0


FAKE_SUITE = """#!/bin/sh
# Prints as libtest does: the name first, its result when the test has ended.
while [ $# -gt 0 ]; do
  case $1 in
    --*) ;;
    hangs) printf 'test hangs ... '; sleep 300 ;;
    crashes) printf 'test crashes ... '; kill -ABRT $$ ;;
    fails) echo 'test fails ... FAILED' ;;
    absent) printf 'test absent ... skipped: for another device\nok\n' ;;
    *) echo "test $1 ... ok" ;;
  esac
  shift
done
"""


def test_conformance_goes_on_after_a_hang_and_a_crash(runner, tmp_path, monkeypatch):
    suite = tmp_path / "bin/suite"
    suite.parent.mkdir()
    suite.write_text(FAKE_SUITE)
    suite.chmod(0o755)
    monkeypatch.setattr(runner.tasks, "PACK", tmp_path)
    monkeypatch.setattr(runner.tasks, "CONFORMANCE_SILENCE", 0.5)
    tests = ["first", "hangs", "second", "crashes", "fails", "absent", "last"]
    rows = perform(runner, tmp_path, runner.tasks.conformance("suite", tests))
    expected = ["passed", "timed out", "passed", "crashed", "failed", "skipped", "passed"]
    assert [rows[f"suite: {test}"]["status"] for test in tests] == expected
    assert rows["suite: absent"]["why"] == "for another device"


def test_conformance_that_is_cut_off_keeps_what_was_done(runner, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/suite").write_text(FAKE_SUITE)
    (tmp_path / "bin/suite").chmod(0o755)
    monkeypatch.setattr(runner.tasks, "PACK", tmp_path)
    tests = ["first", "fails", "hangs", "last"]
    rows = perform(runner, tmp_path, runner.tasks.conformance("suite", tests), seconds=2)
    assert [rows[f"suite: {test}"]["status"] for test in tests] == ["passed", "failed", "not run", "not run"]


def test_trainings_of_an_earlier_run_are_compared(runner, tmp_path, monkeypatch):
    """Only the training that is left runs, and the losses of both are compared."""
    written = 'printf %s "$0" > "$1"'
    training = json.dumps({"losses": [1], "costs": []})
    compare = 'cat "$@"'
    scripts = {"frameworks/train.py": written, "frameworks/compare.py": compare}

    def python(name, *words):
        files = [word for word in words if str(word).endswith(".json")]
        return ["sh", "-c", scripts[name], *([training] if "train" in name else ["sh"]), *files]

    monkeypatch.setattr(runner.tasks, "python", python)
    earlier = {"one": {"training": {"losses": [2]}}}
    rows = perform(runner, tmp_path, runner.tasks.trainings(["one", "two"]), earlier=earlier)
    assert set(rows) == {"two", "losses compared"} and rows["two"]["training"] == {"losses": [1]}
    assert "[2]" in rows["losses compared"]["said"] and "[1]" in rows["losses compared"]["said"]


def test_conformance_that_ends_before_its_first_test(runner, tmp_path, monkeypatch):
    monkeypatch.setattr(runner.tasks, "PACK", tmp_path)
    rows = perform(runner, tmp_path, runner.tasks.conformance("absent", ["one", "two"]))
    assert {record["status"] for record in rows.values()} == {"failed"} and len(rows) == 2


# Programs that are wrong on purpose: a command, options of bfc run, the status, and the reason.
FAULTS = {
    "another output": (["sh", "-c", 'SAXPY && echo "$LD_PRELOAD"'], "", "failed", r"the output differs"),
    "a failure with the interposer": (["sh", "-c", 'test -z "$LD_PRELOAD"'], "", "failed", "under bfc run: exit status 1"),
    "a crash with the interposer": (["sh", "-c", 'test -z "$LD_PRELOAD" || kill -SEGV $$'], "", "crashed|failed", "under bfc run"),
    "a failure alone": (["false"], "", "failed", "without the interposer: exit status 1"),
    "skipped": (["sh", "-c", "echo no such framework; exit 77"], "", "skipped", "no such framework"),
    "no allocation": (["true"], "", "failed", "only 0 of at least 1"),
    "nothing served": (["SAXPY"], "--min=1GiB", "failed", "only 0 of at least 3000"),
    "a part served": (["SAXPY"], "--min=1MiB", "failed", r"only \d+ of at least 3000"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_interposed_programs_that_are_wrong(runner, tmp_path, saxpy, fault):
    command, option, status, why = FAULTS[fault]
    command = [word.replace("SAXPY", str(saxpy)) for word in command]
    row = f"program {option}".strip()
    found = perform(runner, tmp_path, runner.tasks.interposed("program", command, [option]))[row]
    assert re.fullmatch(status, found["status"]) and re.search(why, found["why"]), found


def test_a_race_that_goes_unnoticed(runner, tmp_path):
    """`true` succeeds even with a pool that does not wait."""
    task = runner.tasks.interposed("program", [], compile_with="saxpy", race=True)
    rows = perform(runner, tmp_path, task, compiled="/bin/true")
    assert rows["program sees a race"]["status"] == "failed"


def test_a_cut_off_result_file_can_be_read(runner, tmp_path):
    from runner import results

    file = tmp_path / "results.jsonl"
    rows = [{"part": "p", "row": name, "status": status} for name, status in [("a", "passed"), ("b", "not run"), ("c", "failed")]]
    file.write_text("\n".join(map(json.dumps, rows)) + '\n{"part": "p", "ro')
    assert set(results.done(results.read(file))) == {("p", "a"), ("p", "c")}


def test_the_page_tells_runs_and_machines_apart(runner, tmp_path):
    from runner import page
    from runner.parts import parts

    nothing = page.of(parts(), [])
    facts = sum(len(task.rows) for part in parts() if part.name == "facts" for task in part.tasks)
    assert "No check has run on GPU hardware yet" in nothing and "| driver |" not in nothing
    assert facts > 5 and f"| facts | what the driver answers | {facts} |" in nothing
    file = tmp_path / "h100.jsonl"
    records = [
        {"machine": {"date": "2026-11-27 10:00 UTC", "system": "Linux", "python": "3.12.3", "device": "H100"}},
        {
            "part": "facts",
            "row": "driver",
            "status": "passed",
            "observed": {"device": "H100", "kernel module": "NVRM version: 580.159.04", "cuDriverGetVersion": 13000},
        },
        {"part": "reuse", "row": "ipc", "status": "crashed", "why": "ended by SIGSEGV"},
        {
            "part": "costs",
            "row": "RMM",
            "status": "passed",
            "costs": [{"allocator": "RMM", "bytes": 4096, "pattern": "pair", "nanoseconds": 12}],
        },
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    text = page.of(parts(), [file])
    assert (
        "| H100 | 580.159.04, CUDA 13.0 | Linux, Python 3.12.3 | 2026-11-27 10:00 UTC | 3 of " in text
        and "| ipc | crashed: ended by SIGSEGV |" in text
    )
    assert "| RMM | 12 |" in text and "| basics_cuda | not run |" in text


def test_signals_have_names(runner):
    from runner.process import Ended

    assert Ended(-signal.SIGKILL, "", "", 1).reason() == "ended by SIGKILL"
