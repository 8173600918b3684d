"""How each kind of row is filled in."""

import json
import re
import time

from runner import job as jobs
from runner.job import BFC, GPU, PACK, Task, python

# libtest prints the name before the test runs, so the last line of a process that was killed names the test.
# A test that lacks devices says so and passes.
TEST_LINE = re.compile(r"^test (\S+) \.\.\. ?(ok|FAILED|skipped: (.*))?$")
# A conformance test takes well under a second on the simulated driver.
CONFORMANCE_SILENCE = 15
COMPARED = "losses compared"
# For unmodified programs, or programs that call its C ABI.
PLAIN = {"BFC_LIBRARY": None}


def probe(kind, name, rule=""):
    """A fact, or a rule, whose expectation is what the simulated driver does."""

    def run(job):
        ended = job.program(name, python("probes/probe.py", kind, name))
        if ended.status != "passed":
            job.ended(name, ended)
            return
        said = json.loads(ended.out.strip().splitlines()[-1])
        differs = "expected" in said and said["observed"] != said["expected"]
        job.record(name, "differs" if differs else "passed", ended.seconds, **said)

    return Task([name], run, 30, rule)


def program(name, seconds=30):
    """A test of bfc-gpu."""

    def run(job):
        ended = job.program(name, [GPU, name], env=PLAIN)
        job.ended(name, ended, said=ended.out.strip() or None if ended.status == "passed" else None)

    return Task([name], run, seconds)


def conformance(name, tests):
    """The conformance suite on a backend: one process, and another one for the rest after a test that hung or crashed."""
    binary = PACK / "bin" / name

    def row(test):
        return f"{name}: {test}"

    def run(job):
        if not job.needs_device():
            return
        variables = PLAIN | {"LIBBFC_TESTS_ON_DEVICE": 1}
        begun, since = None, time.monotonic()

        def watch(line):
            nonlocal begun, since
            now, took = time.monotonic(), time.monotonic() - since
            since = now
            if found := TEST_LINE.match(line):
                begun = row(found[1])
                if found[2] == "ok":
                    job.record(begun, "passed", took)
                elif found[2] == "FAILED":
                    job.record(begun, "failed", took, why="the reason is in log.txt")
                elif found[2]:
                    job.record(begun, "skipped", took, why=found[3])

        while left := [test for test in tests if job.wants(row(test))]:
            begun = None
            # Without libtest's capture, so that the reason of a failure is not lost with a test that hangs later.
            command = [binary, "--exact", "--test-threads=1", "--nocapture", *left]
            ended = job.program(name, command, variables, watch, CONFORMANCE_SILENCE)
            if begun and job.wants(begun):
                job.ended(begun, ended, "failed" if ended.status == "passed" else None)
            elif all(job.wants(row(test)) for test in left):
                # It ended before its first test.
                for test in left:
                    job.ended(row(test), ended, "failed" if ended.status == "passed" else None)

    return Task([row(test) for test in tests], run, 90)


def interposed(name, command, options=("",), compile_with=None, race=False):
    """An unmodified program, alone and under `bfc run` with each of some options. Both runs have to print the
    same, and all that the program allocates has to come from the pool."""
    rows = {f"{name} {option}".strip(): option for option in options}
    race_row = f"{name} sees a race"

    def run(job):
        words = command
        if compile_with:
            ended, path = job.prepared.get(compile_with, job.remaining())
            if path is None:
                for row in job.wanted:
                    job.ended(row, ended)
                return
            words = [path]
        if not job.needs_device():
            return
        alone = job.program(f"{name} alone", words, env=PLAIN)
        for row, option in rows.items():
            if alone.status != "passed":
                job.ended(row, alone, why=f"without the interposer: {alone.reason()}" if alone.code != 77 else alone.reason())
            elif job.wants(row):
                _under(job, row, words, option.split(), alone)
        if race and alone.status == "passed" and job.wants(race_row):
            # Its own pool hands memory out without waiting: if that goes unnoticed, the rows above say nothing.
            ended = job.program(race_row, [*words, "race"])
            seen = ended.code == 1 and re.search(r"^failed: .* wrong values", ended.out, re.MULTILINE)
            job.ended(race_row, ended, "passed" if seen else "failed")
        elif race and alone.status != "passed":
            job.ended(race_row, alone)

    return Task([*rows, *([race_row] if race else [])], run, 40)


def _under(job, row, words, options, alone):
    report = job.scratch / f"{row.replace(' ', '-')}.report"
    command = [BFC, "run", f"--report={report}", *options, "--", *words]
    ended = job.program(row, command, env=PLAIN)
    if ended.status != "passed":
        job.ended(row, ended, status="failed" if ended.status == "skipped" else None, why=f"under bfc run: {ended.reason()}")
        return
    if ended.out != alone.out:
        pairs = zip(alone.out.splitlines(), ended.out.splitlines())
        line = next((f"{one!r} alone, {other!r} under bfc run" for one, other in pairs if one != other), "another length")
        job.ended(row, ended, "failed", why=f"the output differs: {line}")
        return
    summary = job.program(f"{row}: report", [BFC, "report", report]).out
    served = sum(int(count) for count in re.findall(r"^ *served +(\d+)", summary, re.MULTILINE))
    calls = re.findall(r"^ *driver calls +(\d+) saved of (\d+)", summary, re.MULTILINE)
    asked = int(max(re.findall(r"^allocations: (\d+)$", alone.out, re.MULTILINE)[-1:], default="1"))
    told = {"served": served, "driver_calls_saved": sum(int(saved) for saved, _ in calls)}
    told |= {"driver_calls": sum(int(of) for _, of in calls), "seconds_alone": round(alone.seconds, 2)}
    if served < asked:
        job.ended(row, ended, "failed", why=f"only {served} of at least {asked} allocations were served from the pool", **told)
    else:
        job.ended(row, ended, **told)


def script(name, *words, seconds=30):
    """A Python program that uses libbfc."""

    def run(job):
        job.ended(name, job.program(name, python(*words)))

    return Task([name], run, seconds)


def costs(row, command, env=None, prefix="", seconds=25):
    """A program that prints a JSON object for each figure, or a RESULT line with all of them."""

    def run(job):
        ended = job.program(row, command, env)
        found = [json.loads(line) for line in ended.out.splitlines() if line.startswith('{"allocator"')]
        for figure in found:
            figure["allocator"] = prefix + figure["allocator"]
        if ended.status == "passed" and not found and "costs" not in jobs.results_of(ended.out):
            job.ended(row, ended, "failed", why="it printed no figure")
        else:
            job.ended(row, ended, **({"costs": found} if found else {}))

    return Task([row], run, seconds)


def trainings(allocators, seconds=45):
    """Two models trained with each allocator, a process each, and the losses of all compared bit by bit."""

    def run(job):
        if any(name not in job.earlier for name in allocators):
            job.prepared.get("shims", job.remaining())
        files = []
        for name in allocators:
            file = job.scratch / f"{name}.json"
            if name in job.earlier:
                if "training" in job.earlier[name]:
                    file.write_text(json.dumps(job.earlier[name]["training"]))
                    files.append(file)
                continue
            allocator = name.removesuffix(" again")
            ended = job.program(name, python("frameworks/train.py", "--allocator", allocator, "--out", file))
            if ended.status == "passed" and file.exists():
                training = json.loads(file.read_text())
                job.ended(name, ended, costs=training.pop("costs"), training=training)
                files.append(file)
            else:
                job.ended(name, ended)
        if len(files) < 2:
            job.record(COMPARED, "skipped", why="fewer than two trainings passed")
            return
        ended = job.program(COMPARED, python("frameworks/compare.py", *files))
        job.ended(COMPARED, ended, said=ended.out.strip() if ended.status == "passed" else None)

    return Task([*allocators, COMPARED], run, seconds)


def sanitizer(name):
    """A test of bfc-gpu under compute-sanitizer, which some machines refuse."""
    row = f"memcheck {name}"

    def run(job):
        tool = job.prepared.tool("compute-sanitizer")
        if tool is None:
            job.record(row, "skipped", why="there is no compute-sanitizer, in PATH or in CUDA_HOME/bin")
            return
        if not job.needs_device():
            return
        command = [tool, "--tool", "memcheck", "--error-exitcode", "9", GPU, name]
        ended = job.program(row, command, env=PLAIN)
        refused = re.search(r"^.*(Device not supported|Unable to find injection).*$", ended.text, re.MULTILINE)
        if refused:
            job.record(row, "skipped", ended.seconds, why=f"compute-sanitizer refuses this machine: {refused[0].strip()}")
        else:
            job.ended(row, ended)

    return Task([row], run, 60)
