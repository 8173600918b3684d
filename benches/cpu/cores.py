"""The one lock of an allocator on more cores than there are: a simulation of recorded programs (README.md).

Each core has one thread, which runs the program over and over from a random phase. All threads allocate from one allocator.
A call holds its lock for `hold` nanoseconds, and for `transfer` more if another core held it last, because the cache lines of
the lock and of the allocator's metadata have to move. What else a program shares, such as memory bandwidth, is left out."""

import argparse
import bisect
import collections
import concurrent.futures
import heapq
import itertools
import json
import math
import os
import pathlib
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
from typing import NamedTuple

import recording

HERE = pathlib.Path(__file__).parent
RECORDED = HERE / "recorded"
# Costs in nanoseconds, by contend.c on the machine of docs/cpu.md, while its two cores were near each other and while they
# were far. The host probably moves them.
MACHINE = RECORDED / "machine.json"
PLACES = ["near", "far"]
PROGRAMS = ["small", "threads", "mlp", "resnet_inference", "gpt2", "bert", "numpy_threads", "arrow_query"]
# One that calls often enough for two threads to get in each other's way.
REPLAYED = ["small"]
CORES, TRANSFERS = [1, 2, 4, 8, 16, 32, 64, 128], [100, 300, 1000]
SEED = 20240601
KINDS_OF_LOCK = ["ours", "fifo"]
# README.md has a table for this transfer, whose first column is called so.
TRANSFER, ROW = 300, "program"
# A window is some whole steps of a program, with so many calls of all threads at least.
LEAST_CALLS = 100_000
# What our lock does (src/sys/lock.rs): a waiter looks so often before it yields once, and then sleeps between two looks.
SPINS = 16
# Below this part of the throughput that as many cores with an allocator each would have, the lock is called a limit.
LIMIT = 0.95


class Program(NamedTuple):
    """Calls that take the lock, in a circle."""

    gaps: list  # nanoseconds before each call
    holds: list  # nanoseconds that each call takes

    @property
    def alone(self):
        """Nanoseconds that one thread takes for all of it."""
        return sum(self.gaps) + sum(self.holds)


class Lock(NamedTuple):
    """How threads wait, in nanoseconds. First come, first served without `look`; else by the rule of our lock."""

    transfer: float
    look: float = 0
    yielded: float = 0
    sleep: float = 0
    spins: int = SPINS


class Result(NamedTuple):
    throughput: float  # of what as many cores would have that never wait
    mean_wait: float
    p99_wait: float
    calls: int


def simulate(program, cores, lock, least_calls=LEAST_CALLS, seed=SEED):
    """What a thread loses is what it waits, and what cache lines take to reach it. Everything else is work."""
    gaps, holds, count = program.gaps, program.holds, len(program.gaps)
    if not count:
        return Result(1.0, 0.0, 0.0, 0)
    ends = list(itertools.accumulate(gap + hold for gap, hold in zip(gaps, holds)))
    chance, nexts, events = random.Random(seed), [], []
    for thread in range(cores):
        phase = chance.random() * ends[-1]
        call = bisect.bisect_right(ends, phase)
        nexts.append(call)
        arrival = max(0.0, ends[call] - holds[call] - phase)
        events.append((arrival, thread, 0, arrival))
    heapq.heapify(events)
    window = ends[-1] * math.ceil(least_calls / (cores * count))
    begin, until = 0.1 * window, 1.1 * window
    free_at, last, lost, waits = 0.0, -1, 0.0, []
    while events[0][0] < until:
        now, thread, looks, arrival = events[0]
        if now < free_at:
            if not lock.look:
                now = free_at
            else:
                # The next look that may find the lock open: nothing is missed, for it does not open before.
                needed, left = math.ceil((free_at - now) / lock.look), lock.spins - looks
                if needed <= left:
                    after, looks = needed * lock.look, looks + needed
                elif left >= 0:
                    after, looks = left * lock.look + lock.yielded, lock.spins + 1
                else:
                    after = lock.sleep
                heapq.heapreplace(events, (now + after, thread, looks, arrival))
                continue
        call = nexts[thread]
        ready = now + (lock.transfer if last not in (thread, -1) else 0.0)
        free_at, last = ready + holds[call], thread
        if ready > begin:
            lost += min(ready, until) - max(arrival, begin)
            waits.append(now - arrival)
        call = nexts[thread] = call + 1 if call + 1 < count else 0
        arrival = free_at + gaps[call]
        heapq.heapreplace(events, (arrival, thread, 0, arrival))
    # Those that still wait.
    lost += sum(until - max(arrival, begin) for _, _, _, arrival in events if arrival < until)
    waits.sort()
    p99 = waits[math.ceil(0.99 * len(waits)) - 1] if waits else 0.0
    return Result(1 - lost / (cores * window), statistics.fmean(waits or [0.0]), p99, len(waits))


def machine(place=PLACES[0]):
    return json.loads(MACHINE.read_text())[place]


def load(name, hold):
    """A recorded program."""
    file = RECORDED / f"{name}.json"
    if not file.exists():
        sys.exit(f"cores.py: {file} does not exist: record it with `cores.py record {name}`, see benches/cpu/README.md")
    numbers = json.loads(file.read_text())["calls"]
    gaps, left = [], 0
    for gap, size in zip(numbers[::2], numbers[1::2]):
        left += gap
        if size:
            gaps.append(left)
            left = 0
    if gaps:
        gaps[0] += left
    return Program(gaps, [hold] * len(gaps))


def title(name):
    return json.loads((RECORDED / f"{name}.json").read_text())["title"]


def lock_of(kind, transfer, costs, spins=SPINS):
    return Lock(transfer, costs["look"], costs["yield"], costs["sleep"], spins) if kind == "ours" else Lock(transfer)


def _row(job):
    name, hold, kind, transfer, cores, spins = job
    return simulate(load(name, hold), cores, lock_of(kind, transfer, machine(), spins))


def table(title, columns, rows):
    lines = [f"| {title} | " + " | ".join(columns) + " |", "|---|" + "--:|" * len(columns)]
    return "\n".join(lines + [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows])


def cell(ours, fifo):
    return f"{ours.throughput:.2f} ({fifo.throughput:.2f})"


def wait_cell(ours, fifo):
    mean, p99 = ours.mean_wait / 1e3, ours.p99_wait / 1e3
    return f"{mean:,.2f}, {p99:,.1f} ({fifo.mean_wait / 1e3:,.2f}, {fifo.p99_wait / 1e3:,.1f})"


def limit(results, cores):
    """The least number of cores at which the lock is a limit."""
    return next((str(count) for count, result in zip(cores, results) if result.throughput < LIMIT), "-")


def run_simulate(options):
    hold, names, columns = options.hold or machine()["hold"], options.program or PROGRAMS, [str(count) for count in options.cores]
    keys = list(itertools.product(names, options.transfer, KINDS_OF_LOCK))
    jobs = [(name, hold, kind, transfer, cores, options.spins) for name, transfer, kind in keys for cores in options.cores]
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as executor:
        flat = iter(executor.map(_row, jobs))
    results = {key: [next(flat) for _ in options.cores] for key in keys}

    def tabulated(header, cells):
        return table(ROW, header, [(title(name), list(cells(name))) for name in names])

    def of_one_thread(name):
        calls, step = load(name, hold), json.loads((RECORDED / f"{name}.json").read_text())["steps"]
        yield f"{calls.alone / step / 1e6:,.3g}"
        yield f"{len(calls.gaps) / step:,.0f}"
        yield f"{calls.alone / len(calls.gaps) / 1e3:,.3g}"

    print(f"A call holds the lock for {hold} ns.\n\n### One thread\n")
    print(tabulated(["step, ms", "calls a step", "us a call"], of_one_thread))
    for transfer in options.transfer:
        print(f"\n### {transfer} ns")
        for what, of in (("Throughput on cores", cell), ("Mean and 99th percentile of the wait in us", wait_cell)):
            print(f"\n{what}: our lock's rule (first come, first served)\n")
            print(tabulated(columns, lambda name: map(of, *(results[name, transfer, kind] for kind in KINDS_OF_LOCK))))
    print(f"\n### Cores from which the throughput is below {LIMIT}\n")
    header = [f"{transfer} ns" for transfer in options.transfer]
    both = lambda name, transfer: [limit(results[name, transfer, kind], options.cores) for kind in KINDS_OF_LOCK]
    print(tabulated(header, lambda name: ("{} ({})".format(*both(name, transfer)) for transfer in options.transfer)))


def run_measure(options):
    """contend.c on this machine, and the same by simulation."""
    with tempfile.TemporaryDirectory() as folder:
        program, lib = pathlib.Path(folder) / "contend", options.prefix / "lib"
        if not lib.is_dir():
            sys.exit(f"cores.py: {lib} is no folder: name an installed prefix (cargo xtask install --prefix DIR)")
        command = [*shlex.split(os.environ.get("CC", "cc")), "-std=c11", "-O2", HERE / "contend.c", "-I", options.prefix / "include"]
        command += ["-L", lib, "-lbfc", "-lm", "-pthread", f"-Wl,-rpath,{lib}", "-o", program]
        if subprocess.run(command).returncode:
            sys.exit("cores.py: the C compiler failed, see above; CC names another one")
        files = [replayable(name, pathlib.Path(folder)) for name in REPLAYED]
        done = subprocess.run([program, *files], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit("cores.py: contend failed, see above")
    costs = json.loads(done.stdout)
    costs["programs"] = dict(zip(REPLAYED, costs["programs"]))
    print(json.dumps(costs))
    if options.write:
        kept = json.loads(MACHINE.read_text()) | {options.write: costs}
        lines = (f"  {json.dumps(place)}: {json.dumps(its)}" for place, its in kept.items())
        MACHINE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print("\n" + compared(costs))


def replayable(name, folder):
    """A recorded program as contend.c runs it over and over: each free with the slot of an allocation of its size, which may
    be one of the round before. What has none is left out."""
    numbers = json.loads((RECORDED / f"{name}.json").read_text())["calls"]
    calls = [call for call in zip(numbers[::2], numbers[1::2])]
    slots, live, lines = {}, collections.defaultdict(collections.deque), []
    for number, (_, size) in [*enumerate(calls)] * 2:
        if size > 0 and number not in slots:
            live[size].append(number)
        elif size < 0 and number not in slots and live[-size]:
            slots[number] = live[-size].popleft()
            slots[slots[number]] = slots[number]
    for number, (gap, size) in enumerate(calls):
        if number in slots:
            lines.append(f"{gap} {slots[number]} {max(size, 0)}\n")
    file = folder / name
    file.write_text("".join(lines))
    return file


def two_threads(costs):
    """Two threads of contend.c: what they do, measured and simulated throughput as a part of twice that of one thread."""
    for pair in costs["two"]:
        gap = pair["one"] - costs["hold"]
        yield f"{gap:,.0f} ns between calls", pair, exponential(gap, costs["hold"], 100_000, is_hold_random=False)
    for name, pair in costs["programs"].items():
        yield title(name), pair, load(name, costs["hold"])


def compared(costs):
    rows = []
    for what, pair, program in two_threads(costs):
        cells = [f"{pair['one'] / pair['both']:.2f}"]
        for kind in ("ours", "fifo"):
            cells.append(f"{simulate(program, 2, lock_of(kind, costs['transfer'], costs), 400_000).throughput:.2f}")
        rows.append((what, cells))
    return table("throughput of two threads", ["measured", "simulated, our lock's rule", "simulated, fifo"], rows)


def exponential(gap, hold, count, *, is_hold_random):
    chance = random.Random(SEED)
    gaps = [gap * chance.expovariate(1) for _ in range(count)]
    return Program(gaps, [hold * chance.expovariate(1) if is_hold_random else hold for _ in range(count)])


def closed_form(gap, hold, cores):
    """The machine repairman (M/M/1 with finitely many customers): the throughput of `simulate` and the mean wait, for
    exponential holds. The gaps may be distributed in any way. It is by mean value analysis."""
    queue = 0.0
    for count in range(1, cores + 1):
        response = hold * (1 + queue)
        rate = count / (gap + response)
        queue = rate * response
    return rate * (gap + hold) / cores, response - hold


def check(cores, gap, lock):
    """How far the simulation is off the closed form, as a part: of the throughput, or of the time from one call to the next."""
    program = exponential(gap, 20, 10_000, is_hold_random=True)
    gap, hold = statistics.fmean(program.gaps), statistics.fmean(program.holds)
    (throughput, wait), its = closed_form(gap, hold, cores), simulate(program, cores, lock, 200_000)
    print(f"{cores} cores, {gap:.0f} ns: {its.throughput:.4f}, not {throughput:.4f}; wait {its.mean_wait:.1f} ns, not {wait:.1f} ns")
    return max(abs(its.throughput / throughput - 1), abs(its.mean_wait - wait) / (gap + hold + wait))


# A waiter that never stops looking, every nanosecond: who comes first is chance, which means do not depend on.
EAGER = Lock(0, look=1, spins=10**9)
CHECKS = [(cores, gap, Lock(0)) for cores in (2, 8, 32, 128) for gap in (20, 400, 3000)] + [(4, 20, EAGER), (32, 400, EAGER)]


def run_check(_options):
    worst = max(itertools.starmap(check, CHECKS))
    if worst > 0.03:
        sys.exit(f"cores.py: the simulation is off by {worst:.1%}, more than 3%")


def run_record(options):
    if len(options.program) > 1:
        for name in options.program:
            command = [sys.executable, __file__, "record", "--seconds", str(options.seconds), name]
            if subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode:
                sys.exit(f"cores.py: {name} failed, see above")
        return
    (name,) = options.program
    try:
        recorded = recording.record(name, options.seconds, machine())
    except ImportError as error:
        sys.exit(f"cores.py: {error}: run it with a Python that has the framework, and set BFC_LIBRARY and PYTHONPATH")
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{name}.json").write_text(json.dumps(recorded, separators=(",", ":")) + "\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("simulate", help="tables for recorded programs")
    # Without arguments argparse checks the empty list.
    helps = f"{', '.join(PROGRAMS)}; default: all"
    command.add_argument("program", nargs="*", choices=[*PROGRAMS, []], metavar="PROGRAM", help=helps)
    command.add_argument("--cores", type=int, nargs="+", default=CORES)
    command.add_argument("--transfer", type=int, nargs="+", default=TRANSFERS, help="ns for which the lock is held longer by another core")
    command.add_argument("--hold", type=float, help="ns of a call [default: as measured]")
    command.add_argument("--spins", type=int, default=SPINS, help="how often a waiter of our lock looks before it yields")
    command.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that simulate at once")
    command.set_defaults(run=run_simulate)
    command = commands.add_parser("check", help="compare the simulation with a closed form")
    command.set_defaults(run=run_check)
    command = commands.add_parser("measure", help="what a call costs on this machine, and two threads beside their simulation")
    command.add_argument("--prefix", type=pathlib.Path, required=True, help="where libbfc is installed")
    command.add_argument("--write", choices=PLACES, help="keep the figures, as those of cores near each other or far")
    command.set_defaults(run=run_measure)
    command = commands.add_parser("record", help="record programs anew, with a Python that has what they need")
    command.add_argument("program", nargs="+", choices=PROGRAMS)
    command.add_argument("--seconds", type=float, default=5, help="that steps are measured without a history")
    command.set_defaults(run=run_record)
    return parser.parse_args()


if __name__ == "__main__":
    options = arguments()
    options.run(options)
