"""libbfc's own instructions in an allocation and its free: the section `instructions` of the benchmark, whose rows go to a
file as JSON. The programs are those of ffi-tests/streams/bench.c."""

import json
import pathlib
import sys

import callgrind
import programs

WAYS = [
    ("plain", "fixed"),
    ("one_stream", "fixed"),
    ("two_streams", "fixed"),
    ("four_streams", "fixed"),
    ("two_streams", "cuda"),
    ("four_streams", "cuda"),
]
CALLS = ("bfc_alloc", "bfc_free", "bfc_alloc_async", "bfc_free_async")
# The first pairs warm the pool. The next ones, as many, are counted.
PAIRS = 10_000


def main():
    flags = ["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I", programs.PREFIX / "include"]
    libraries = ["-L", programs.LIB, "-lbfc", "-ldl"]
    program = programs.compiled("bench/streams", [programs.ROOT / "ffi-tests/streams/bench.c"], flags, libraries, "c")

    def count(way, backend, pairs):
        options = [f"--toggle-collect={call}" for call in CALLS]
        return callgrind.own(callgrind.run([program, "pairs", way, backend, pairs], options))

    rows = []
    print("\nInstructions of libbfc in an allocation and its free, by callgrind")
    for way, backend in WAYS:
        total = count(way, backend, 2 * PAIRS) - count(way, backend, PAIRS)
        row = {"section": "instructions", "name": f"{way}, {backend}", "pairs": PAIRS}
        rows.append(row | {"instructions": total, "libbfc": total / PAIRS})
        print(f"  {row['name']:<24}{total / PAIRS:>10.4f}   {total} in {PAIRS} pairs", flush=True)
    pathlib.Path(sys.argv[1]).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
