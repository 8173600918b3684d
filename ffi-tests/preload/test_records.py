"""What the interposer writes about a program: the trace, and the report at its end."""

import re

import pytest

from stage import BFC, environment, events, preloaded, replay, reported, run, settings
from test_behaviour import MEMORY, program

# The case `known` of behaviour/trace.c, without the remark on the request that is refused: neither frees that failed nor
# requests for nothing are there, nor memory of other kinds.
KNOWN = """+ 0 1000 0
+ 1 5242881 0
+ 2 3000 1
+ 3 4000 2
- 1 0
! 18446744073709551615 0
- 2 1
+ 4 77 0
- 3 2
- 0 0
+ 5 2222 0
"""
# The case `gone`: what ended with its context has ended where its address comes again.
GONE = "+ 0 1000 0\n+ 1 2000 0\n- 1 0\n- 0 0\n+ 2 1000 0\n+ 3 2000 0\n- 3 0\n- 2 0\n+ 4 1000 0\n+ 5 2000 0\n- 5 0\n"
# The case `default_streams`: two threads' own ones, and the legacy one.
DEFAULT_STREAMS = """+ 0 1000 1
- 0 1
+ 1 1001 1
- 1 1
+ 2 1002 0
- 2 0
+ 3 2000 2
- 3 2
+ 4 2001 2
- 4 2
+ 5 2002 0
- 5 0
+ 6 3000 1
- 6 1
+ 7 3001 1
- 7 1
+ 8 3002 0
- 8 0
"""
# As in the case `threads`.
THREADS, EACH = 4, 2000


def traced(trace, case, more=""):
    run(program("trace"), case, env=preloaded(SIMCUDA_MEMORY=MEMORY, BFC_PRELOAD_TRACE=trace) | settings(more))
    return events(trace)


@pytest.mark.parametrize(
    "case, wanted, more",
    [
        *(("known", KNOWN, more) for more in ["", "BFC_PRELOAD_ASYNC=1", "BFC_PRELOAD_MAX=1M", "BFC_PRELOAD_MIN=1M"]),
        *(("gone", GONE, more) for more in ["", "BFC_PRELOAD_ASYNC=1"]),
        *(("default_streams", DEFAULT_STREAMS, more) for more in ["", "BFC_PRELOAD_ASYNC=1"]),
    ],
    ids=lambda value: None if "\n" in value else value or "plain",
)
def test_trace(case, wanted, more, tmp_path):
    trace = tmp_path / f"{case}.trace"
    assert traced(trace, case, more) == wanted
    assert case in replay(trace, "--repeat", "1")


def is_of_threads(trace):
    """Each thread's requests are there, in the order of the thread, and all but the last of each was freed."""
    live, count, ids = {}, {}, 0
    for line in trace.splitlines():
        sign, number, size = line.split(" ")[0], *map(int, line.split(" ")[1:3])
        if sign == "-":
            del live[number]
            continue
        assert (sign, number) == ("+", ids), line
        ids += 1
        thread, place = divmod(size, 1000)[0], count.get(size // 1000, 0)
        assert size % 1000 == 1 + place % 500, f"{line}: it is request {place} of thread {thread}"
        count[thread] = place + 1
        live[number] = size
    assert list(count.values()) == [EACH] * THREADS and len(live) == THREADS
    return True


def test_the_trace_of_four_threads(tmp_path):
    trace = tmp_path / "threads.trace"
    assert is_of_threads(traced(trace, "threads"))
    assert "threads" in replay(trace, "--repeat", "1")


def test_a_trace_that_is_there_is_another_process_s(tmp_path):
    trace = tmp_path / "known.trace"
    assert traced(trace, "known") == traced(trace, "threads") == KNOWN
    (new,) = [path for path in tmp_path.iterdir() if path != trace]
    assert is_of_threads(events(new))


@pytest.mark.parametrize("old, new", [("- 0 0\n", ""), ("- 0 0\n", "- 7999 0\n"), ("+ 5 6 0\n", "+ 5 7 0\n")])
def test_a_trace_of_threads_is_judged(old, new):
    lines, number = [], 0
    for thread in range(THREADS):
        for each in range(EACH):
            lines += [f"+ {number} {thread * 1000 + 1 + each % 500} 0\n", *([f"- {number - 1} 0\n"] if each else [])]
            number += 1
    assert is_of_threads("".join(lines))
    with pytest.raises((AssertionError, KeyError)):
        is_of_threads("".join(lines).replace(old, new, 1))


@pytest.mark.parametrize("log, each", [("warn", 1), ("error", 0), ("off", 0)])
def test_malformed_settings_are_ignored_with_one_warning_each(log, each):
    malformed = "BFC_MEMORY_LIMIT=lots BFC_MEMORY_FRACTION=2 BFC_BACKEND=cuda_vmn BFC_PRELOAD_MAX=20000000T"
    variables = preloaded(SIMCUDA_MEMORY=MEMORY, BFC_LOG=log) | settings(malformed)
    said = run(program("limits"), "limit_malformed", env=variables)
    for setting in malformed.split():
        assert said.count(f"libbfc warning: {setting} is ignored: it must be ") == each


def counted(count, thing):
    return f"{count} {thing}{'' if count == 1 else 's'}"


ADVICE = """  advice       try --free sync (freed memory waits less, each cudaFree synchronizes), or --backend cuda-vmm \
(less fragmentation, no legacy IPC)
"""


def test_the_reports_numbers_are_the_drivers(tmp_path):
    """The case `counted`: 512 requests, of which 4 are live at the end, and what the driver says of it."""
    report = tmp_path / "report"
    variables = preloaded(SIMCUDA_MEMORY=MEMORY, BFC_MEMORY_LIMIT="1000M", BFC_PRELOAD_REPORT=report)
    # By need it would hold just what is requested.
    variables |= {"BFC_GROWTH": "tensorflow"}
    obtained, returned, checks = map(int, run(program("trace"), "counted", env=variables).split())
    assert obtained and checks
    calls, made = 512 + 508, obtained + returned + checks
    text = reported(report)
    for line in [
        "\ndevice 0\n",
        "  served       512 allocations, 508 frees\n",
        f"  driver calls {calls - made} saved of {calls} ({100 * (calls - made) / calls:.1f} %): {made} made, "
        f"for {counted(obtained, 'region')} obtained, {returned} returned, {counted(checks, 'device check')}\n",
        "  peaks        800.0 MiB requested, 800.0 MiB in use, 1000.0 MiB held from the driver\n",
        "  waste        200.0 MiB (20.0 % of what was held) at the peak; 400.0 MiB live now\n",
        ADVICE,
    ]:
        assert line in text
    # Followed, it is not given again.
    report.unlink()
    run(program("trace"), "counted", env=variables | {"BFC_BACKEND": "cuda_vmm"})
    assert "  served       512 allocations, 508 frees\n" in (text := reported(report)) and ADVICE not in text


def test_a_program_without_a_pool_says_so_and_its_helpers_do_not():
    said = run(BFC, "run", "--report", "--", "sh", "-c", "/bin/true; /bin/true & wait; exec /bin/true", env=environment())
    (line,) = said.splitlines()
    own = "--history also records the pools of a program that uses libbfc itself"
    wanted = rf"libbfc: process \d+ used no pool of the interposer \({own}\); bfc run --check shows where its allocations went"
    assert re.fullmatch(wanted, line), line
    used = [BFC, "run", "--report", "--limit", "1000M", "--", program("trace"), "counted"]
    said = run(*used, env=environment(SIMCUDA_MEMORY=MEMORY))
    assert "served       512 allocations" in said and "used no pool" not in said


def test_a_fragmented_pool_names_the_backend_that_helps(tmp_path):
    report = tmp_path / "report"
    variables = preloaded(SIMCUDA_MEMORY=MEMORY, BFC_PRELOAD_REPORT=report)
    variables |= settings("BFC_MEMORY_LIMIT=100M BFC_FORCE_ALLOW_GROWTH=0")
    run(program("trace"), "fragmented", env=variables)
    assert ": fragmentation. " in reported(report)
    assert "; --backend cuda-vmm fragments less (BFC_BACKEND=cuda_vmm)\n" in reported(report)
    assert "moves free memory together" not in reported(report), "once, and in words of bfc run"


def test_out_of_memory_with_a_history_names_the_command_that_shows_it(tmp_path):
    history = tmp_path / "run.history"

    def said(case, *options):
        return run(BFC, "run", *options, "--", program("trace"), case, env=environment(SIMCUDA_MEMORY=MEMORY))

    small = ["--limit", "100M", "--growth", "off"]
    line = f"libbfc: 1 request found no memory; bfc report {history} shows what held it\n"
    assert said("fragmented", *small, "--history", history) == line
    assert said("fragmented", *small) == ""
    assert "found no memory" not in said("counted", "--limit", "1000M", "--history", history)


# A pool whose next region does not fit below the limit: among chunks that are too small, and without any.
@pytest.mark.parametrize("case, limit", [("fragmented", "112M"), ("doubled", "10M")])
def test_a_pool_whose_regions_double_names_the_growth_that_helps(tmp_path, case, limit):
    report = tmp_path / "report"
    variables = preloaded(SIMCUDA_MEMORY=MEMORY, BFC_PRELOAD_REPORT=report)
    variables |= settings(f"BFC_MEMORY_LIMIT={limit} BFC_GROWTH=tensorflow")
    run(program("trace"), case, env=variables)
    assert "; regions double in size, " in reported(report)
    assert "; --growth need avoids doubling; " in reported(report)
