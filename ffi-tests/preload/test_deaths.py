"""What is left of a process: its trace and its counters must be whole whatever ended it."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from stage import BFC, INTERPOSER, LIB, RUNTIMES, SIMULATION, compile, environment, events, preloaded, replay, reported, run, settings, written
from test_behaviour import MEMORY, program

# What deaths.c and interrupted.py allocate before they die, and what is said of it.
TRACE = "+ 0 1000 0\n+ 1 2000 0\n- 0 0\n+ 2 3000 0\n"
SERVED = ["  served       3 allocations, 1 free\n", "; 4.9 KiB live now\n"]
KILLED, ENDED, REPLACED, RUNNING = (f"  state        {state}: " for state in ("killed", "ended", "replaced", "running"))


class Files:
    """The report and the traces of a process, in a folder of their own."""

    def __init__(self, folder):
        self.folder, self.report, self.trace = folder, folder / "report", folder / "trace"

    def command(self, *program, trace=None):
        """`bfc run` with a trace and a report."""
        return [BFC, "run", "--preload", INTERPOSER, "--trace", trace or self.trace, f"--report={self.report}", "--", *program]

    def traces(self):
        """All traces: `trace`, `trace.PID`, `trace.PID.2`."""
        return sorted(self.folder.glob("trace*"))

    def reported(self):
        return reported(self.report)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def deaths():
    return compile("deaths", "deaths.c")


def has(text, *parts):
    assert not [part for part in parts if part not in text], text


@pytest.mark.parametrize(
    "case, state",
    [
        ("ends", ENDED),
        ("loses_its_first_thread", ENDED),
        ("aborts", KILLED),
        ("crashes", KILLED),
        ("leaves_at_once", KILLED),
        ("leaves_quickly", KILLED),
        ("kills_itself", KILLED),
        ("executes_other", REPLACED),
    ],
)
def test_trace_and_counters_of_a_process_that(case, state, deaths, files):
    run(*files.command(deaths, case), env=environment(), status=None)
    has(files.reported(), *SERVED, state)
    assert events(files.trace) == TRACE


@pytest.mark.parametrize("kind", ["a C program", "a Python script"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_trace_and_counters_after_a_signal(kind, number, deaths, files, root):
    script = [sys.executable, root / "ffi-tests/preload/interrupted.py", SIMULATION / RUNTIMES[12]]
    command = files.command(*([deaths, "waits"] if kind == "a C program" else script))
    child = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout.readline() == "ready\n"
    alive = files.reported()
    child.send_signal(number)
    child.wait()
    # bfc run became the program: it is the process that was started.
    has(alive, f"process {child.pid}: ", RUNNING, SERVED[0])
    has(files.reported(), *SERVED, KILLED)
    assert events(files.trace) == TRACE


@pytest.mark.parametrize("case, states", [("forks", [ENDED, KILLED]), ("executes", [REPLACED, REPLACED, KILLED])])
def test_each_of_several_processes_has_its_own(case, states, deaths, files):
    run(*files.command(deaths, case), env=environment(), status=None)
    report = files.reported()
    assert all(report.count(state) == states.count(state) for state in states), report
    assert report.count(SERVED[0]) == len(files.traces()) == len(states)
    assert all(events(trace) == TRACE for trace in files.traces())


def test_the_threads_of_a_process_share_files(deaths, files):
    run(*files.command(deaths, "threads"), env=environment(), status=None)
    has(files.reported(), KILLED, "  served       2003 allocations, 2001 frees\n", "; 4.9 KiB live now\n")
    (trace,) = files.traces()
    assert events(trace).count("\n") == 4004


@pytest.mark.parametrize("case", ["forks_after_use", "clones_after_use"])
def test_a_child_leaves_its_parents_trace_and_counters_alone(case, deaths, files):
    run(*files.command(deaths, case), env=environment())
    report = files.reported()
    has(report, "  served       4 allocations, 2 frees\n", ENDED)
    assert len(files.traces()) == report.count("process ") == 1
    assert events(files.trace) == f"{TRACE}+ 3 4000 0\n- 3 0\n"


def test_percent_p_in_a_name_is_the_process(deaths, files):
    command = [BFC, "run", "--preload", INTERPOSER, "--trace", files.folder / "trace.%p.of", "--", deaths, "executes"]
    child = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    child.wait()
    own = f"trace.{child.pid}.of"
    assert [path.name for path in files.traces()] == [own, f"{own}.{child.pid}", f"{own}.{child.pid}.2"]


def test_an_out_of_memory_is_in_the_report_and_can_be_replayed(deaths, files):
    limit = str(1000 << 20)
    run(*files.command(deaths, "aborts_out_of_memory"), env=environment(BFC_MEMORY_LIMIT=limit), status=None)
    refused = "  refused      1 request for want of memory, the largest of 64.0 MiB\n"
    has(files.reported(), KILLED, refused, "  last refused 64.0 MiB: preload: ", "; raise --limit or --fraction if one is set")
    assert "cuda-vmm" not in files.reported(), "it would not help: memory is exhausted"
    assert written(files.trace).splitlines()[-1].startswith("! 67108864 0 # preload: ")
    pool = ["--growth", "--growth-policy=need", "--gc", "--split-always", "--limit", limit]
    (replayed,) = json.loads(replay(files.trace, *pool, "--json"))["traces"]
    event = events(files.trace).count("\n")
    assert (replayed["failed"], replayed["failure"]["event"], replayed["trace"]["refused"]) == (1, event, 1)


def recorded(history):
    """The only pool of a history."""
    (pool,) = json.loads(run(BFC, "report", "--json", history, env=environment()))["pools"]
    return pool


def test_a_request_that_is_served_in_the_end_is_no_failure(tmp_path):
    """The case `last_resort`: the pool cannot grow, so it waits for work and tries again."""
    history = tmp_path / "history"
    run(program("waits"), "last_resort", env=preloaded(SIMCUDA_MEMORY=MEMORY, BFC_HISTORY_FILE=history))
    pool = recorded(history)
    assert (pool["allocations"], pool["failed"]) == (2, 0)


@pytest.mark.parametrize("more", ["", "BFC_MEMORY_LIMIT=100M", "BFC_MEMORY_LIMIT=100M BFC_PRELOAD_ASYNC=1", "BFC_PRELOAD_MAX=1M"])
def test_every_request_is_refused(more, deaths, files):
    """Each call counts once: in the report, the trace, the statistics and the history, and that says who called."""
    history = files.folder / "history"
    record = {"BFC_HISTORY_FILE": history, "BFC_HISTORY_STACKS": "native"}
    said = run(*files.command(deaths, "is_refused"), env=environment(**settings(more) | record))
    refused = "  refused      6 requests for want of memory, the largest of 293.0 GiB\n"
    has(files.reported(), ENDED, refused, "  last refused 48.8 GiB: ", "  served       nothing\n")
    sizes = [100_000, 50_000, 200_000, 50_000, 300_000, 50_000]
    assert events(files.trace) == "".join(f"! {size << 20} 0\n" for size in sizes)
    # Each says why.
    assert not [line for line in written(files.trace).splitlines() if line.rstrip().endswith("#")]
    if "MAX" in more:
        # No request reached a pool, so there is none.
        assert (said, history.exists()) == ("", False)
        return
    pool = recorded(history)
    assert (said, pool["failed"]) == ("6 failures\n", 6)
    assert [failure["requested"] for failure in pool["failures"]] == [size << 20 for size in sizes]
    assert {failure["cause"] for failure in pool["failures"]} == {"exhaustion"}
    for failure, caller in zip(pool["failures"], ["cudaMalloc", "cudaMallocAsync"] * 3):
        names = [frame["function"] for frame in failure["frames"]]
        assert caller in names and "is_refused" in names, failure


@pytest.mark.parametrize("pinned", ["0", "1"])
def test_a_refused_request_for_pinned_memory(pinned, deaths, files):
    run(*files.command(deaths, "is_refused_pinned_memory"), env=environment(BFC_PRELOAD_PINNED=pinned))
    refused = "pinned host memory\n  refused      1 request for want of memory, the largest of 1.0 PiB\n"
    assert (refused in files.reported()) == (pinned == "1")


def test_records_of_earlier_runs_stay_and_so_do_traces_of_other_processes(deaths, files):
    other = files.folder / "trace.1"
    other.write_text("+ 0 5 0\n")
    for _ in range(2):
        run(*files.command(deaths, "ends"), env=environment())
    assert files.reported().count("\nprocess ") == 1 and files.reported().startswith("process ")
    assert files.traces() == [files.trace, other] and events(files.trace) == TRACE


def test_a_trace_that_is_removed_meanwhile_is_told(deaths, files):
    said = run(*files.command(deaths, "removes_its_trace"), env=environment())
    has(said, f"{files.trace.parent.name}/trace was removed, replaced or truncated while the program ran")


def test_files_that_are_cut_off_meanwhile_do_not_end_the_program(deaths, files):
    said = run(*files.command(deaths, "goes_on_without_its_files"), env=environment())
    has(said, "/trace cannot grow and ends here: it was truncated, or the disk is full")
    has(said, "/report can no longer be written: it was truncated, or the disk is full")


def test_a_thread_that_is_cancelled_ends_at_a_point_of_its_own(deaths, files):
    run(*files.command(deaths, "is_cancelled"), env=environment(BFC_PRELOAD_CHECK=files.folder / "check"))
    has(files.reported(), *SERVED, ENDED)
    assert events(files.trace) == TRACE


# Files in a folder that others can write to, such as /tmp.


def named(files):
    """The variables that name files."""
    return {f"BFC_PRELOAD_{what.upper()}": files.folder / what for what in ("report", "trace", "check")}


def test_what_a_process_writes_is_private(deaths, files):
    run(deaths, "ends", env=preloaded(**named(files)))
    modes = {path.name: path.stat().st_mode & 0o777 for path in files.folder.iterdir()}
    assert modes == {"report": 0o600, "trace": 0o600, "check": 0o600}


def test_symbolic_links_are_not_followed(deaths, files):
    victim = files.folder / "victim"
    victim.touch()
    for file in named(files).values():
        file.symlink_to(victim)
    said = run(deaths, "ends", env=preloaded(**named(files)))
    has(said, f"libbfc: cannot write the report {files.report}: it is a symbolic link; the program runs without it")
    assert victim.read_bytes() == b"" and files.trace.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_of_other_users_are_not_written(deaths, files):
    for file in named(files).values():
        file.touch()
        os.chown(file, 65534, 65534)
    said = run(deaths, "ends", env=preloaded(**named(files)))
    has(said, f"libbfc: cannot write the report {files.report}: it belongs to another user; the program runs without it")
    assert [file.read_bytes() for file in named(files).values()] == [b"", b"", b""]


# The trace cannot grow: the program goes on, and what is missing is told.


@pytest.fixture
def full_disk():
    return compile("libfull_disk.so", "full_disk.c", "library")


def is_cut_short(files, said, why, count):
    """What is lost is counted, and what is not lost is whole."""
    text = files.trace.read_text()
    told = text.rstrip().rpartition("%incomplete ")[2]
    there = events(files.trace).count("\n")
    lost = count - there
    assert there > 1000 and told.startswith(why) and text.endswith(f"%incomplete {told}\n")
    has(said, "cannot grow and ends here: ", why, f"is incomplete: it lacks {lost} events\n")
    has(files.reported(), f"  trace        incomplete: it lacks {lost} events")
    replay(files.trace, "--quiet")


@pytest.mark.parametrize("after", [0, 1])
def test_a_disk_that_is_full(after, full_disk, deaths, files):
    said = run(*files.command(deaths, "fills"), env=environment(LD_PRELOAD=full_disk, FULL_DISK_AFTER=after))
    has(files.reported(), "  served       100000 allocations, 100000 frees\n")
    if after:
        is_cut_short(files, said, "No space left on device", 200_000)
    else:
        has(said, "libbfc: cannot write the trace ", "No space left on device")


def test_a_disk_that_has_room_for_a_part_of_a_record(full_disk, deaths, files):
    variables = {"LD_PRELOAD": full_disk, "FULL_DISK_AFTER": 9, "FULL_DISK_CUTS": ""}
    said = run(*files.command(deaths, "ends"), env=environment(**variables))
    has(said, "libbfc: cannot write the report ", "No space left on device")
    run(*files.command(deaths, "ends"), env=environment())
    has(files.reported(), *SERVED, ENDED)


def test_a_signals_handler_that_exits_comes_after_the_recorder(full_disk, deaths, files):
    variables = {"LD_PRELOAD": full_disk, "FULL_DISK_AFTER": 1, "FULL_DISK_SIGNALS": ""}
    run(*files.command(deaths, "exits_in_a_handler"), env=environment(**variables))
    # What needed room, and the free in the exit handler.
    has(files.reported(), ENDED, "  trace        incomplete: it lacks 2 events,")


def test_a_limit_of_the_size_of_files(deaths, files):
    said = run(*files.command(deaths, "fills_to_a_limit"), env=environment())
    is_cut_short(files, said, "File too large", 200_002)


# Each summary and each complaint comes in one piece: a datagram is what one call writes.


def messages(command, variables):
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with reader, writer:
        subprocess.run(command, env=variables, stdout=subprocess.DEVNULL, stderr=writer, check=True)
        reader.setblocking(False)
        found = []
        while True:
            try:
                found.append(os.read(reader.fileno(), 1 << 16).decode())
            except BlockingIOError:
                return found


@pytest.mark.parametrize("case", ["ends", "is_refused"])
def test_a_summary_is_written_at_once(case, deaths):
    (message,) = messages([BFC, "run", "--preload", INTERPOSER, "--report", "--", deaths, case], environment())
    assert message.startswith("libbfc: process ")
    has(message, "\n  served       ")
    assert ("\n  refused      6 requests" in message) == (case == "is_refused")


def test_a_process_that_is_killed_writes_no_summary(deaths):
    said = run(BFC, "run", "--preload", INTERPOSER, "--report", "--", deaths, "kills_itself", env=environment(), status=None)
    assert "libbfc: process " not in said
    assert "libbfc: process " in run(BFC, "run", "--preload", INTERPOSER, "--report", "--", deaths, "ends", env=environment())


def test_a_report_that_cannot_be_written_is_told_once(deaths):
    variables = {f"BFC_PRELOAD_{what.upper()}": f"/nonexistent/{what}" for what in ("report", "trace")}
    reason = "No such file or directory (os error 2); the program runs without it\n"
    wanted = [f"libbfc: cannot write the {what} /nonexistent/{what}: {reason}" for what in ("report", "trace")]
    assert sorted(messages([deaths, "ends"], preloaded(**variables))) == wanted
