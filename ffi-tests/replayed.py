"""A recorded program, replayed up to its peak with a history, and what the library says of itself on the way."""

import json
import pathlib

import programs
from programs import LIB, PREFIX, ROOT

BFC = PREFIX / "bin/bfc"
DEVICE = 256
TRACES = sorted(path.name.removesuffix(".trace.gz") for path in (ROOT / "tests/traces").glob("*.trace.gz"))

# Operations are named by the size of what they allocate. At the end everything is live that is live at the peak, and a request
# has failed.
PROGRAM = """
import dataclasses, gzip, json, os, subprocess, sys, time, bfc
trace, history, command = sys.argv[1:]
events = [line.split() for line in gzip.open(trace, "rt") if line[0] in "+-"]
live, sizes, highest, peak = 0, {}, 0, 0
for number, (kind, key, *rest) in enumerate(events):
    if kind == "+":
        sizes[key] = int(rest[0])
        live += sizes[key]
        if live > highest:
            highest, peak = live, number
    else:
        live -= sizes.pop(key)

def stats():
    return dataclasses.asdict(bfc.stats(bfc.HOST))

marks, kept = {}, {}
with bfc.history(history, events=1 << 20):
    bfc.create(bfc.HOST, backend="host", memory_limit=64 << 30, allow_growth=True, name=trace)
    for number, (kind, key, *rest) in enumerate(events[: peak + 1]):
        if number % (peak // 5) == 0:
            marks[f"event {number}"] = stats()
            bfc.history_mark(f"event {number}")
        if kind == "+":
            with bfc.scope(f"{int(rest[0]).bit_length()} bits", step=number // 1000):
                kept[key] = bfc.alloc(bfc.HOST, int(rest[0]))
        else:
            bfc.free(bfc.HOST, kept.pop(key))
    try:
        bfc.alloc(bfc.HOST, 1 << 50)
    except bfc.Error:
        pass
    marks["end"] = stats()
    bfc.history_mark("end")

def published():
    processes = json.loads(subprocess.run([command, "top", "--json"], check=True, capture_output=True).stdout)["processes"]
    return [pool for process in processes if process["process"] == os.getpid() for pool in process["pools"]]

for attempt in range(200):
    top = published()
    if top and top[0]["stats"] == marks["end"]:
        break
    time.sleep(0.05)
print(json.dumps({"marks": marks, "map": bfc.memory_map(bfc.HOST), "metrics": bfc.metrics(), "top": top}))
"""


class Replayed:
    """A replay: its history, the statistics at each mark, and what it said at its end."""

    def __init__(self, history, said):
        self.history = history
        self.marks, self.map, self.metrics, self.top = said["marks"], said["map"], said["metrics"], said["top"]
        self.end = self.marks["end"]


def replay(trace, folder):
    """Replays a trace of tests/traces, once for all tests that have this folder."""
    history, said = pathlib.Path(folder) / f"{trace}-peak.history", pathlib.Path(folder) / f"{trace}-peak.json"
    with programs.alone(f"replayed-{trace}"):
        if not said.exists():
            history.unlink(missing_ok=True)
            published = pathlib.Path(folder) / f"{trace}-published"
            published.mkdir(mode=0o700, exist_ok=True)
            environment = programs.environment(PYTHONPATH=ROOT / "python/src", BFC_LIBRARY=LIB, BFC_PUBLISH="1", XDG_RUNTIME_DIR=published)
            file = ROOT / f"tests/traces/{trace}.trace.gz"
            said.write_text(programs.run("python3", "-c", PROGRAM, file, history, BFC, env=environment))
    return Replayed(history, json.loads(said.read_text()))
