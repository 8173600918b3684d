"""What must not go otherwise than without the interposer: programs without CUDA, without a driver, and at the edges of a
process's life."""

import shutil

import pytest

from stage import LIB, RUNTIMES, SERVED, SIMULATION, alike, compile, reported, served

IDLE = {"there": ["loaded", "exit driver=absent"], "absent": ["looked-up", "called", "served"]}
SHELL = "for word in a b c; do echo $word; done | sort -r; (exit 5); echo $?; ls /nowhere; exit 7"
PYTHON = """import ctypes, subprocess, sys, threading
t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()
print(subprocess.run(['echo', 'child'], capture_output=True).stdout, len(sys.version) > 0)
sys.exit(3)"""


@pytest.mark.parametrize("command", [["ls", "-la", LIB], ["ls", "/nowhere"], ["bash", "-c", SHELL], ["python3", "-c", PYTHON]], ids=lambda words: " ".join(map(str, words[:2])))
def test_a_program_without_cuda(command, check):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    alike(check, *command, LD_LIBRARY_PATH=None, **IDLE)


@pytest.mark.parametrize("major", RUNTIMES)
def test_a_runtime_without_a_driver(major, check, tmp_path):
    # The runtime alone is on the path. RTLD_NEXT finds the name, and the call is answered.
    shutil.copy(SIMULATION / RUNTIMES[major], tmp_path)
    lines = {"there": ["loaded", "exit driver=absent"], "absent": ["looked-up", "served"]}
    alike(check, compile(f"no_driver{major}", "no_driver.c", major), LD_LIBRARY_PATH=tmp_path, **lines)


@pytest.mark.parametrize(
    "case, processes",
    # How many of the processes allocate, each of which says so once: what a child inherits is not its own.
    [("before_any_use", 2), ("after_use", 1), ("amid_threads", 1), ("replaced", 5)],
)
def test_forks(case, processes, check, tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    variables = {"BFC_PRELOAD_REPORT": files / "report", "BFC_PRELOAD_TRACE": files / "trace"}
    alike(check, compile("forks", "forks.c"), case, there=SERVED, **variables)
    report = reported(files / "report")
    reports = sum(line.startswith("process ") for line in report.splitlines())
    traces = [path.read_text(errors="replace") for path in files.iterdir() if path.name != "report"]
    firsts = sum(line.startswith("+ 0 ") for text in traces for line in text.splitlines())
    assert (reports, firsts) == (processes, processes), report


@pytest.mark.parametrize(
    "case, rounds, state",
    [
        ("amid_threads", 100, "ended"),
        ("exit_by_thread", 100, "ended"),
        ("handlers", 3, "ended"),
        ("aborts", 3, "killed"),
        ("crashes", 3, "killed"),
        ("is_killed", 20, "killed"),
        ("leaves_at_once", 3, "killed"),
        ("leaves_quickly", 3, "killed"),
    ],
)
def test_ends(case, rounds, state, check, tmp_path):
    # With all that there is to write at the end.
    report = tmp_path / "report"
    there = ["served", "exit driver=mapped"] if state == "ended" else ["served"]
    alike(check, compile("ends", "ends.c"), case, rounds, there=there, BFC_PRELOAD_REPORT=report, BFC_PRELOAD_TRACE=tmp_path / "trace")
    said = reported(report)
    # Some end before their threads allocate.
    assert said.count("  state ") == said.count(f"  state        {state}: ") > 0, said


@pytest.mark.parametrize("link", [12, "static"])
def test_cuda_before_main_and_threads_from_the_first_line(link, check):
    alike(check, compile(f"early_{link}", "early.c", link), there=SERVED)


def test_cuda_before_any_constructor(check):
    served(check, compile("earliest", "early.c", 12, ["-DBEFORE_EVERYBODY"]), "preloaded", there=[])


def test_a_runtime_that_is_closed_and_opened_again(check):
    alike(check, compile("unloads", "unloads.c", None), SIMULATION / RUNTIMES[12], there=SERVED)


@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_malloc_that_calls_dlsym(place, check):
    library = compile("libown_malloc.so", "own_malloc.c", "library", ["-fno-builtin"])
    served(check, compile("runtime12", "runtime.c"), **{place: [library]})
