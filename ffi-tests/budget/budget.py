"""The instructions of an allocation and of a free on recorded programs, with all that they call: `cargo xtask budget`
compares them with benches/instructions.tsv, and `cargo xtask budget --write` measures the file anew.

The programs run on a simulated device whose addresses are always the same, so the means depend only on the code and its
compiler."""

import argparse
import itertools
import subprocess
import sys

import callgrind
from programs import PREFIX, ROOT

FILE = ROOT / "benches/instructions.tsv"
TRACES = ("gpt2", "serve_mix", "bert_var")
CALLS = ("bfc_alloc", "bfc_free")
# How much more a call may take.
TOLERANCE = 0.03


def compiler():
    return subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


def parsed(text):
    """The compiler, and the mean by trace and call."""
    by, *rows = [line for line in text.splitlines() if not line.startswith("#")]
    columns = [row.split("\t") for row in rows]
    return by, {(trace, call): float(mean) for trace, call, mean in columns}


# How much more a call may take while a history is recorded.
EVENT = 88


def measured(trace, call, **variables):
    program = [PREFIX / "bin/bfc", "replay", "--repeat", "1", "--device-capacity", "80GiB"]
    command = [*program, ROOT / f"tests/traces/{trace}.trace.gz"]
    return callgrind.mean(callgrind.run(command, [f"--toggle-collect={call}"], **variables), call)


def is_over(mean, budget):
    return mean > budget * (1 + TOLERANCE)


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask budget", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the figures to benches/instructions.tsv")
    write = parser.parse_args().write
    text = FILE.read_text()
    by, budget = parsed(text)
    means, lines = {}, []
    for trace, call in itertools.product(TRACES, CALLS):
        means[trace, call] = measured(trace, call)
        lines.append(f"{trace}\t{call}\t{means[trace, call]:.1f}\n")
        # One takes seconds.
        print(lines[-1], end="", flush=True)
    if write:
        head = [line for line in text.splitlines(keepends=True) if line.startswith("#")]
        FILE.write_text("".join([*head, f"{compiler()}\n", *lines]))
    elif by != compiler():
        sys.exit(f"benches/instructions.tsv is by {by}, and this is {compiler()}: cargo xtask budget --write")
    elif over := [f"{key}: {mean:.1f}" for key, mean in means.items() if is_over(mean, budget.get(key, 0))]:
        sys.exit("calls over their budget, or without one: " + ", ".join(over))


if __name__ == "__main__":
    main()
