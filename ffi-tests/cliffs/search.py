"""Searches for allocator calls that take far more instructions than others of their kind: `cargo xtask cliffs`.

A fuzzer looks for new paths and cannot maximize a number. This is hill climbing: programs are changed at random, and for each
kind of call the one that runs most basic blocks of libbfc is kept and changed further. callgrind counts the instructions of
what is found."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import NamedTuple

import callgrind
import known
import programs
from calls import Program, Random
from known import SCALE, Row, bound

# Has the compiler call a function of the driver program at each basic block of libbfc. Stable compilers can do that.
COUNTED = """-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 -Cllvm-args=-sanitizer-coverage-trace-pc
-Cllvm-args=-sanitizer-coverage-prune-blocks=0""".split()
# Basic blocks of a call that callgrind counts in less than a minute.
COUNTABLE = 500_000_000
# Instructions in a basic block at most, as measured: rows take 2 to 7.
IN_A_BLOCK = 8
# Blocks for each chunk that are as bad as anything.
ENOUGH = 500
# Seconds in which a find may be made simpler.
SIMPLIFYING = 2
# How much more than its figure a row may take, in percent.
TOLERANCE = 20
# Numbers of chunks in the benchmark's table.
SCALES = (1000, 10_000, 100_000)


class Worst(NamedTuple):
    """The call of its kind in which a program ran most blocks."""

    program: Program
    blocks: int
    call: int


class Runner:
    """benches/cliffs/cliffs.c, with libbfc as it is installed and with one whose basic blocks are counted."""

    def __init__(self):
        flags = ["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I", programs.PREFIX / "include"]
        # libbfc.so calls back into the program.
        libraries = ["-rdynamic", "-L", programs.LIB, "-lbfc", "-ldl"]
        self.path = programs.compiled("cliffs/cliffs", [programs.ROOT / "benches/cliffs/cliffs.c"], flags, libraries, "c")
        self.counting = programs.built("cliffs/lib/libbfc.so.0", [programs.ROOT / "src"], self._build).parent
        self.session = None

    @staticmethod
    def _build(path):
        target = programs.SCRATCH / "cliffs/target"
        cargo = [os.environ.get("CARGO", "cargo"), "rustc", "--release", "--package=libbfc", "--lib", "--crate-type=cdylib"]
        subprocess.run([*cargo, "--quiet", "--target-dir", target, "--", *COUNTED], cwd=programs.ROOT, check=True)
        shutil.copy(target / "release/libbfc.so", path)

    def _serve(self):
        libraries = f"{self.counting}:{programs.SIMULATION}"
        environment = programs.environment(LD_LIBRARY_PATH=libraries, LD_BIND_NOW=1, BFC_HASH_SEED=1, SIMCUDA_DEVICES=None)
        command = [self.path, "serve"]
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def close(self):
        if self.session:
            self.session.kill()
            self.session.communicate()

    def worst(self, program, scale):
        """The worst call of each kind in a program."""
        self.session = self.session or self._serve()
        self.session.stdin.write(f"{scale} {program}\n")
        answer = self.session.stdout.readline()
        assert answer.endswith("\n"), f"the driver program ended: {self.session.wait()}; it ran {scale} {program}"
        found = {}
        for kind, _, rest in (part.partition("=") for part in answer.strip().split(";") if part):
            blocks, call = rest.split("@")
            found[kind] = Worst(program, int(blocks), int(call))
        return found

    def instructions(self, worst, scale):
        """The instructions of libbfc itself in one call."""
        options = ["--collect-atstart=no", "--instr-atstart=no"]
        command = [self.path, "one", scale, worst.call, worst.program]
        # What the loader does at a first call is not libbfc's.
        return callgrind.own(callgrind.run(command, options, LD_BIND_NOW=1))

    def nanoseconds(self, worst, scale):
        """The time of one call, with the backend's: the best of three."""
        environment = programs.environment(LD_BIND_NOW=1, BFC_HASH_SEED=1, SIMCUDA_DEVICES=None)
        command = [self.path, "one", scale, worst.call, worst.program]
        return min(int(programs.run(*command, env=environment)) for _ in range(3))

    def blocks_of_all(self, program, scale):
        """The basic blocks of libbfc that a call of a program runs on average."""
        libraries = f"{self.counting}:{programs.SIMULATION}"
        environment = programs.environment(LD_LIBRARY_PATH=libraries, LD_BIND_NOW=1, BFC_HASH_SEED=1, SIMCUDA_DEVICES=None)
        calls, blocks = map(int, programs.run(self.path, "all", scale, program, env=environment).split())
        return blocks / calls

    def instructions_of_all(self, program, scale):
        """The instructions of libbfc itself for a whole program, creation and destruction included, for each of its calls."""
        environment = programs.environment(LD_BIND_NOW=1, BFC_HASH_SEED=1, SIMCUDA_DEVICES=None)
        calls = int(programs.run(self.path, "all", scale, program, env=environment).split()[0])
        return callgrind.own(callgrind.run([self.path, "all", scale, program], LD_BIND_NOW=1)) / calls

    def measured(self, row, scale=SCALE):
        """A row's call; None if the program has none of its kind, or one that takes minutes to count."""
        worst = self.worst(row.program, scale).get(row.kind)
        return worst if worst and worst.blocks < COUNTABLE else None


class Search:
    def __init__(self, runner, scale):
        self.runner, self.scale, self.enough, self.found = runner, scale, ENOUGH * scale, {}

    def run(self, seeds, seed, seconds, most=float("inf")):
        """Tries programs and what comes of them. The same seed tries the same programs, as far as it gets."""
        for program in seeds:
            self._attempt(program)
        random, start, ran = Random(seed), time.monotonic(), 0
        while time.monotonic() - start < seconds and ran < most and self.found:
            one, second = (self.found[random.choice(sorted(self.found))] for _ in range(2))
            self._attempt(one.program.mutated(random, second.program))
            ran += 1
        print(f"Tried {ran} programs in {time.monotonic() - start:.0f} s, {len(self.found)} kinds of calls")

    def _attempt(self, program):
        for kind, worst in self.runner.worst(program, self.scale).items():
            # These give back whatever there is, in proportion to it.
            if kind.startswith(("trim", "limit")):
                continue
            if kind not in self.found or self._is_better(worst.blocks, self.found[kind].blocks):
                self.found[kind] = worst

    def _is_better(self, blocks, than):
        # With more of them, the programs derived from such a program take long to run, so fewer are better.
        return self.enough < blocks < than // 4 if than > self.enough else blocks > than

    def _simplified(self, kind, best):
        """The find with all left out of its program that nearly nothing depends on."""
        least, at, start = min(best.blocks // 20 * 19, self.enough), 0, time.monotonic()
        while time.monotonic() - start < SIMPLIFYING:
            candidates = list(best.program.simpler())
            if at == len(candidates):
                break
            worst = self.runner.worst(candidates[at], self.scale).get(kind)
            # What goes makes way for what comes next at the same place.
            best, at = (worst, at) if worst and worst.blocks >= least else (best, at + 1)
        return best

    def over_the_bound(self, rows, new_only=False):
        """Finds above the bound and above the known maximum of their kind, the worst of each kind; or of new kinds only."""
        finds = []
        for kind, worst in sorted(self.found.items()):
            before = known.most(rows, kind)
            most = max(bound(self.scale), before // 100 * (100 + TOLERANCE))
            has_row = new_only and before > bound(self.scale)
            if has_row or worst.blocks * IN_A_BLOCK <= most or before > self.enough:
                continue
            worst = self._simplified(kind, worst)
            instructions = self.runner.instructions(worst, self.scale)
            if instructions > most:
                finds.append(Row(instructions, kind, worst.program, "found by the search, not explained yet"))
        return sorted(finds, reverse=True, key=lambda row: row.instructions)


def exceeds(row, instructions):
    return instructions * 100 > row.instructions * (100 + TOLERANCE)


def search(runner, rows, scale, seed, seconds, most=float("inf"), new_only=False):
    found = Search(runner, scale)
    found.run([row.program for row in rows], seed, seconds, most)
    return found.over_the_bound(rows, new_only)


def remeasured(runner, rows):
    """The rows with the figures of this build."""
    for row in rows:
        if worst := runner.measured(row):
            yield row._replace(instructions=runner.instructions(worst, SCALE))
        else:
            print(f"Left out, for there is no {row.kind} in it any more: {row.program}")


def show(runner, program, scale):
    for kind, worst in sorted(runner.worst(program, scale).items(), key=lambda item: -item[1].blocks):
        print(f"{runner.instructions(worst, scale):>12}  {kind} (call {worst.call}, {worst.blocks} basic blocks)")


def benchmark(runner, rows, file):
    """The worst row of each kind at some numbers of chunks, as a table and as JSON."""
    print("\nThe worst call of each kind: instructions of libbfc, and microseconds")
    print(f"  {'at chunks':<40}" + "".join(f"{scale:>13}{'us':>11}" for scale in SCALES))
    results = []
    for row in sorted(rows, key=lambda row: -row.instructions):
        if row.instructions < known.most(rows, row.kind):
            continue
        at, cells = [], ""
        for scale in SCALES:
            # "-": it takes too long to get that far.
            if worst := runner.measured(row, scale):
                figures = runner.instructions(worst, scale), runner.nanoseconds(worst, scale)
                at.append({"chunks": scale, "instructions": figures[0], "nanoseconds": figures[1]})
                cells += f"{figures[0]:>13}{figures[1] / 1000:>11.1f}"
            else:
                cells += f"{'-':>13}{'-':>11}"
        print(f"  {row.kind:<40}{cells}  {row.why}", flush=True)
        results.append({"section": "cliffs", "name": row.kind, "program": str(row.program), "why": row.why, "at": at})
    file.write_text(json.dumps(results))


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask cliffs", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long to search")
    parser.add_argument("--scale", type=int, default=SCALE, help="allocations of a program at most, and its pool's chunks")
    parser.add_argument("--seed", type=int, default=1, help="the same number tries the same programs")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--program", type=Program.parse, help="count the worst calls of this program, as in known.txt")
    only.add_argument("--write", action="store_true", help="measure the rows of known.txt anew, and add what the search finds")
    only.add_argument("--benchmark", type=pathlib.Path, metavar="FILE", help="measure the worst row of each kind")
    arguments = parser.parse_args()
    if arguments.write and arguments.scale != SCALE:
        parser.error(f"the figures of known.txt are those at {SCALE} chunks: leave --scale out")
    runner, rows = Runner(), known.read()
    if arguments.program:
        return show(runner, arguments.program, arguments.scale)
    if arguments.benchmark:
        return benchmark(runner, rows, arguments.benchmark)
    if arguments.write:
        rows = list(remeasured(runner, rows))
        known.write(rows)
    print(f"Searching for {arguments.seconds} s at {arguments.scale} chunks, from seed {arguments.seed}", flush=True)
    finds = search(runner, rows, arguments.scale, arguments.seed, arguments.seconds)
    print(f"Kinds of calls over the bound and over known.txt: {len(finds)}")
    for find in finds:
        before = known.most(rows, find.kind)
        print(f"{find.instructions:>12}  {find.kind} ({f'{before} known' if before > bound(SCALE) else 'new'})\n{'':14}{find.program}")
    if arguments.write:
        known.write([*rows, *finds])
    return runner.close()


if __name__ == "__main__":
    sys.exit(main())
