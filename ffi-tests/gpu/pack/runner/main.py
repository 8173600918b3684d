"""The command line: runs the parts in order, within the time that it is given."""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from runner import page, process, results
from runner.job import PACK, Job, TimeIsUp
from runner.parts import parts
from runner.prepared import Prepared

# For writing the last rows and for processes that have to be killed.
SECONDS_AT_THE_END = 10
SECONDS_TO_INITIALIZE = 30
NEEDED = {"interposer": ["saxpy"], "costs": ["shims"]}


def main():
    options = arguments()
    chosen = [part for part in parts() if not options.only or part.name in options.only]
    if options.list:
        json.dump({part.name: [row for task in part.tasks for row in task.rows] for part in chosen}, sys.stdout, indent=1)
        print()
        return 0
    if options.page is not None:
        sys.stdout.write(page.of(parts(), options.page))
        return 0
    if not options.out:
        print("--out DIR is needed, a folder for the results", file=sys.stderr)
        return 2
    return run(chosen, options)


def arguments():
    names = ["facts", "rules", "conformance", "reuse", "graphs", "interposer", "frameworks", "costs", "sanitizer"]
    parser = argparse.ArgumentParser(prog="run", description="Runs the GPU pack on the device of this machine.")
    parser.add_argument("--minutes", type=float, default=6, help="stop after this time, with what was done [6]")
    parser.add_argument("--out", type=pathlib.Path, help="the folder for results.jsonl and log.txt")
    parser.add_argument("--only", action="append", choices=names, metavar="PART", help=f"only this part: {', '.join(names)}")
    parser.add_argument("--skip-done", type=pathlib.Path, metavar="FILE", help="go on after an earlier results.jsonl")
    parser.add_argument("--list", action="store_true", help="list the rows and run nothing")
    parser.add_argument("--page", nargs="*", type=pathlib.Path, metavar="FILE", help="print docs/gpu.md from result files")
    return parser.parse_args()


def run(chosen, options):
    """Runs parts, and fills in every row: 0 if none of them is bad."""
    begin = time.monotonic()
    end = begin + 60 * options.minutes - SECONDS_AT_THE_END
    # Read first: it may be the very file that is written.
    earlier = results.done(results.read(options.skip_done)) if options.skip_done else {}
    device = Device()
    before = results.device_of(options.skip_done)
    if before not in (None, device.name):
        print(f"{options.skip_done} is of another device: {before}; this one is {device.name}", file=sys.stderr)
        device.close()
        return 2
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="bfc-gpu-"))
    written = results.Results(options.out)
    written.add({"machine": machine() | {"device": device.name}, "minutes": options.minutes})
    # All of them now, so that a run that is killed has them too.
    for record in earlier.values():
        written.add(record)
    signal.signal(signal.SIGTERM, lambda *_: end_at_once(scratch))
    prepared = Prepared(scratch, written, end)
    left = {part.name for part in chosen for task in part.tasks for row in task.rows if (part.name, row) not in earlier}
    prepared.start(name for part in left for name in NEEDED.get(part, []))
    try:
        for part in chosen:
            rows = {row for task in part.tasks for row in task.rows}
            done = {row: record for (name, row), record in earlier.items() if name == part.name and row in rows}
            limit = part.seconds * max(1.0, options.minutes / 6)
            run_part(part, done, min(end, time.monotonic() + limit), written, prepared, scratch)
            told(part, written.records, begin)
    finally:
        prepared.shutdown()
        device.close()
        shutil.rmtree(scratch, ignore_errors=True)
    return summary(written.records, begin, options.out)


class Device:
    """Keeps the device initialized during the run. Otherwise a driver without a persistence daemon initializes it again for
    each program that finds no other one, which takes seconds. No context is created, so figures of memory stay the same."""

    PROGRAM = """
import ctypes, sys
driver, name = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(256)
print("none" if driver.cuInit(0) or driver.cuDeviceGetName(name, 256, 0) else name.value.decode(), flush=True)
sys.stdin.read()
"""

    def __init__(self):
        # Its standard input ends with the runner, however that ends.
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.child = subprocess.Popen([sys.executable, "-c", self.PROGRAM], **pipes)
        ready, _, _ = select.select([self.child.stdout], [], [], SECONDS_TO_INITIALIZE)
        self.name = (self.child.stdout.readline().strip() if ready else "") or "none"

    def close(self):
        self.child.kill()


def end_at_once(scratch):
    """Ends with what was done, without the programs that run."""
    for group in list(process.GROUPS):
        process.kill(group)
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(128 + signal.SIGTERM)


def run_part(part, earlier, end, written, prepared, scratch):
    def run_task(task):
        job = Job(part, task, earlier, end, written, prepared, scratch)
        if not job.wanted:
            return
        why = "the task did not get to it"
        try:
            job.remaining()
            task.run(job)
        except TimeIsUp as reason:
            why = str(reason)
        except Exception:  # a fault of the pack costs the rows of one task and not the rest of the run
            why = "the runner failed"
            for row in job.wanted:
                job.record(row, "failed", why=why, output=traceback.format_exc())
        for row in job.wanted:
            job.record(row, "not run", why=why)

    with concurrent.futures.ThreadPoolExecutor(part.workers) as pool:
        list(pool.map(run_task, part.tasks))


def machine():
    """The machine as Python sees it. What the driver says is a fact of its own."""
    version = PACK / "VERSION"
    with contextlib.suppress(OSError):
        version = version.read_text(encoding="utf-8").strip()
    return {
        "pack": str(version),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "system": platform.platform(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
    }


def counts(records, part=None):
    found = {}
    for record in records:
        if "status" in record and (part is None or record["part"] == part):
            found[record["status"]] = found.get(record["status"], 0) + 1
    return ", ".join(f"{number} {status}" for status, number in found.items())


def told(part, records, begin):
    """A line for each part, and one for each row that is not as expected."""
    print(f"[{time.monotonic() - begin:5.0f} s] {part.name}: {counts(records, part.name)}", flush=True)
    for record in records:
        if record.get("part") != part.name or record.get("status") in ("passed", "not run", "skipped"):
            continue
        if record["status"] == "differs":
            why = f"observed {json.dumps(record['observed'])}, the simulation {json.dumps(record['expected'])}"
        else:
            why = record.get("why", "")
        print(f"    {record['row']}: {record['status']}: {why}"[:400], flush=True)


def summary(records, begin, out):
    bad = sum(record.get("status") in results.BAD for record in records)
    print(f"{counts(records)} in {time.monotonic() - begin:.0f} s; {out / results.NAME}")
    return 1 if bad else 0
