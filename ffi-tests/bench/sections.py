"""Sections of the benchmark that ask programs what they count: `sections.py NAME FILE` prints a table, and writes the rows to
FILE as JSON. `cargo xtask bench --only NAME` calls it."""

import gzip
import json
import pathlib
import sys

import programs
from programs import LIB, PREFIX, ROOT, SCRATCH

TRACES = sorted((ROOT / "tests/traces").glob("*.trace.gz"))
# Limits over a program's peak.
ROOM = (1.2, 1.5, 2.0, 4.0)


def main():
    name, file = sys.argv[1:]
    print(f"\n{name}")
    rows = list({"waste": waste, "preload": preload, "driver_calls": driver_calls}[name]())
    pathlib.Path(file).write_text(json.dumps([{"section": name} | row for row in rows]))


def line(name, *cells, width=44):
    print(f"  {name:<{width}}", *(f"{cell:>11}" for cell in cells), flush=True)


def figure(value):
    return f"{value:.4f}".rstrip("0").rstrip(".")


def answers(*command, **variables):
    """What a program prints that writes a JSON object on each line."""
    env = programs.environment(**{"SIMCUDA_DEVICES": None} | variables)
    return [json.loads(line) for line in programs.run(*command, env=env).splitlines() if line.startswith("{")]


def compiled(name, flags, libraries):
    flags = ["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I", PREFIX / "include", *flags]
    source = ROOT / "ffi-tests" / name / "bench.c"
    return programs.compiled(f"bench/{name}", [source], flags, ["-L", LIB, *libraries, "-ldl"], "c")


def waste():
    """Least limits over the peak of live bytes, on HOST_VMM. No memory is touched, so programs of 25 GiB are no problem."""
    options = ["--find-limit", "--backend=host-vmm", "--json", "--quiet"]
    for trace in json.loads(programs.run(PREFIX / "bin/bfc", "replay", *options, *TRACES))["traces"]:
        name = pathlib.Path(trace["trace"]["name"]).name.partition(".")[0]
        line(name, figure(trace["ratio"]))
        yield {"name": name, "libbfc": trace["ratio"]}


def driver_calls():
    """Driver calls of each free, and of each allocation that finds nothing free: means over the operations. They are counted
    and not timed, so they are the same on each machine."""
    line("", "calls", "events", width=76)
    for found in answers(compiled("streams", [], ["-lbfc"]), "calls"):
        mean = {name: calls / found["operations"] for name, calls in found["of"].items()}
        row = {"name": f"{found['name']}, {found['each']}", "libbfc": found["calls"] / found["operations"]}
        row |= {"events": mean["cuEventRecord"]} | {name: calls for name, calls in mean.items() if calls}
        line(row["name"], figure(row["libbfc"]), figure(row["events"]), width=76)
        yield row


def preload():
    """What the interposer costs and saves. Times include those of a simulation: what counts is the time of a pair over that
    of libbfc's own calls, and how many frees share a synchronization."""
    program = compiled("preload", ["-D_GNU_SOURCE"], [])
    interposed = {"LD_PRELOAD": LIB / "libbfc_preload.so"}

    def answer(*words, **variables):
        return answers(program, *words, SIMCUDA_MEMORY=1 << 40, **variables)[-1]

    line("nanoseconds", "a pair", "two reads", "plain pair", "ratio", "no driver")
    for name, variables in [("a pair, alone", {}), ("a pair, with the interposer", interposed)]:
        # The pool of the plain pair is that of the second device.
        found = answer("pairs", SIMCUDA_DEVICES=2, **variables)
        pair, current = found["pair_ns"], found["current_ns"]
        row = {"name": name, "libbfc": pair, "nothing": found["nothing_ns"], "current": current}
        if variables:
            # Both calls of a pair ask the driver for the current context.
            plain = found["plain_ns"]
            row |= {"plain": plain, "ratio": pair / plain, "ratio_without_driver": (pair - 2 * current) / plain}
        cells = [pair, 2 * current, *(row.get(key, 0) for key in ["plain", "ratio", "ratio_without_driver"])]
        line(name, *(f"{cell:.2f}" if cell else "-" for cell in cells))
        yield row

    found = answer("steady", **interposed)
    known = {name: found[name] for name in ["current", "synchronize"]}
    row = {"name": "driver calls in the steady state", "pairs": found["pairs"]}
    row |= known | {"other": found["calls"] - sum(known.values())}
    line("", *list(row)[1:])
    line(row["name"], *(figure(value) for value in list(row.values())[1:]))
    yield row

    line("frees for each synchronization (failed)", "peak, MiB", *(f"{room:g} peaks" for room in ROOM))
    for packed in TRACES:
        trace = SCRATCH / "bench/traces" / packed.name.removesuffix(".gz")
        trace.parent.mkdir(parents=True, exist_ok=True)
        trace.write_bytes(gzip.decompress(packed.read_bytes()))
        peak = answer("peak", trace)["peak"]
        for backend in ["cuda", "cuda_vmm"]:
            row = {"name": f"{trace.stem}, {backend}", "peak": peak}
            cells = []
            for room in ROOM:
                found = answer("replay", trace, BFC_MEMORY_LIMIT=int(peak * room), BFC_BACKEND=backend, **interposed)
                frees, failed = found["frees"] / max(found["synchronizations"], 1), found["failed"]
                row |= {f"frees at {room:g}": frees, f"failed at {room:g}": failed}
                cells.append(f"{frees:.0f}" + (f" ({failed})" if failed else ""))
            line(row["name"], peak >> 20, *cells)
            yield row


if __name__ == "__main__":
    main()
