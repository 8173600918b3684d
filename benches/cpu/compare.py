"""Real programs on the CPU with the framework's own allocator, other allocators, and libbfc: `cargo xtask bench --only cpu`.

Each program has a process of its own for each allocator and round, and in each round the allocators take turns, so that what else the
machine does slows all alike. Ratios are those of one round; the tables have their medians, and the lowest and highest in parentheses."""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

import programs

HERE = pathlib.Path(__file__).parent
LARGE = str(1 << 40)
# The framework alone twice: what differs then is noise.
OWN, AGAIN, OURS = "framework alone", "framework again", "libbfc"
ALLOCATORS = {
    OWN: {},
    AGAIN: {},
    "glibc, tuned": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": LARGE},
    "jemalloc": {"LD_PRELOAD": "libjemalloc.so.2"},
    "tcmalloc": {"LD_PRELOAD": "libtcmalloc_minimal.so.4"},
    "mimalloc": {"LD_PRELOAD": "libmimalloc.so.2"},
    OURS: {},
    "libbfc, small pages": {"BFC_HUGE_PAGES": "never"},
}
OF_THE_USER = ("BFC_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "MIMALLOC_", "TCMALLOC_", "THP_MEM_ALLOC_ENABLE")
PACKAGES = {"libjemalloc.so.2": "libjemalloc2", "libtcmalloc_minimal.so.4": "libtcmalloc-minimal4", "libmimalloc.so.2": "libmimalloc2.0"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", type=pathlib.Path, required=True, help="a Python with PyTorch and transformers")
    parser.add_argument("--arrays", type=pathlib.Path, required=True, help="a Python with NumPy and pyarrow")
    parser.add_argument("--tensorflow", type=pathlib.Path, help="a Python with TensorFlow; without it such programs are left out")
    parser.add_argument("--onnx", type=pathlib.Path, help="a Python with ONNX Runtime and onnx; without it such programs are left out")
    parser.add_argument("--torch-libraries", default="", help="folders in which PyTorch's libraries are looked for")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a folder for cpu.json and cpu.md")
    parser.add_argument("--only", action="append", choices=programs.ALL, help="a program; may be repeated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="that a process measures")
    return parser.parse_args()


def shared_library(name):
    """The file of an allocator of Debian's, or None."""
    found = [file for folder in ("/usr/lib", "/usr/lib64") for file in pathlib.Path(folder).glob(f"**/{name}")]
    return next(map(str, found), None)


def variables(allocator):
    """The variables of an allocator, or the reason why it is left out."""
    found = dict(ALLOCATORS[allocator])
    preloaded = found.get("LD_PRELOAD")
    if preloaded is not None:
        file = shared_library(preloaded)
        if file is None:
            return None, f"{preloaded} is not there (Debian: apt-get install {PACKAGES[preloaded]})"
        found["LD_PRELOAD"] = file
    return found, None


def python_for(options, program):
    """The Python that has what a program needs, or None."""
    if programs.ALL[program] in programs.WITH_TENSORFLOW:
        return options.tensorflow
    if programs.ALL[program] in programs.WITH_ONNX:
        return options.onnx
    return options.torch if programs.ALL[program] in programs.WITH_TORCH else options.arrays


def measured(options, program, allocator, changes):
    is_torch = programs.ALL[program] in programs.WITH_TORCH
    python = python_for(options, program)
    # The user's settings of allocators are not a part of this; where libbfc is, is.
    kept = {name: value for name, value in os.environ.items() if name == "BFC_LIBRARY" or not name.startswith(OF_THE_USER)}
    environment = kept | changes
    # As many threads as cores, in every library.
    environment |= {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "0", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if is_torch:
        environment["LD_LIBRARY_PATH"] = options.torch_libraries
    name = "libbfc" if allocator.startswith("libbfc") else "other"
    command = [python, "-W", "ignore", HERE / "measure.py", program, name, str(options.seconds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{program} with {allocator} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def spread(values, digits=2):
    """The median, and the lowest and highest."""
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def milliseconds(seconds):
    found = 1e3 * statistics.median(seconds)
    return f"{found:,.0f}" if found >= 100 else f"{found:.3g}"


def speedups(runs, allocator):
    """How many times as fast a step is as with the framework alone, in each round."""
    own, its = ([statistics.median(run["steps"]) for run in runs[name]] for name in (OWN, allocator))
    return [a / b for a, b in zip(own, its)]


def overview(runs, title, cell):
    """A row for each program and a column for each allocator."""
    allocators = list(next(iter(runs.values())))
    lines = [f"| {title} | " + " | ".join(allocators) + " |", "|---|" + "--:|" * len(allocators)]
    for program, its in runs.items():
        lines.append(f"| {programs.ALL[program].__doc__} | " + " | ".join(cell(its, name) for name in allocators) + " |")
    return "\n".join(lines)


def overviews(runs):
    def speed(its, name):
        return spread(speedups(its, name))

    def median(key, scale=1):
        return lambda its, name: f"{statistics.median(run[key] for run in its[name]) / scale:,.0f}"

    return "\n\n".join(
        (
            overview(runs, "times as fast as the framework alone", speed),
            overview(runs, "first step, ms", lambda its, name: milliseconds(run["cold"] for run in its[name])),
            overview(runs, "resident at most, MiB", median("highest", 1 << 20)),
            overview(runs, "page faults a step", median("faults_a_step")),
        )
    )


def table(program, runs):
    lines = [
        f"### {programs.ALL[program].__doc__}",
        "",
        "| | step, ms | speed-up | first steps, ms | page faults a step | resident, MiB | at most, MiB |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for allocator, its in runs.items():
        steps = [statistics.median(run["steps"]) for run in its]
        lines.append(
            f"| {allocator} | {milliseconds(steps)} | {spread(speedups(runs, allocator))} "
            f"| {milliseconds(run['cold'] for run in its)} | {statistics.median(run['faults_a_step'] for run in its):,.0f} "
            f"| {statistics.median(run['resident'] for run in its) / (1 << 20):,.0f} "
            f"| {statistics.median(run['highest'] for run in its) / (1 << 20):,.0f} |"
        )
    return "\n".join(lines)


def main():
    options = arguments()
    chosen = {}
    for allocator in ALLOCATORS:
        chosen[allocator], why = variables(allocator)
        if why:
            print(f"{allocator} is left out: {why}")
    chosen = {allocator: changes for allocator, changes in chosen.items() if changes is not None}
    names = [name for name in options.only or programs.ALL if python_for(options, name)]
    runs = {program: {allocator: [] for allocator in chosen} for program in names}
    options.out.mkdir(parents=True, exist_ok=True)
    about = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), "kernel": platform.release()}
    count, done = options.rounds * len(names) * len(chosen), 0
    for number in range(options.rounds):
        for program in names:
            order = list(chosen)
            # No allocator is always the first, or always behind the same one.
            for allocator in order[number % len(order) :] + order[: number % len(order)]:
                run = measured(options, program, allocator, chosen[allocator])
                runs[program][allocator].append(run)
                done += 1
                print(f"{done} of {count}: {program}, {allocator}: {milliseconds(run['steps'])} ms a step", flush=True)
        # After each round, so that what was measured so far is there if it is interrupted.
        (options.out / "cpu.json").write_text(json.dumps({"schema": "bfc-cpu/1", **about, "runs": runs}))
    text = "\n\n".join([overviews(runs), *(table(program, runs[program]) for program in names)])
    (options.out / "cpu.md").write_text(text + "\n")
    print(f"\n{text}\n\nThe figures are in {options.out}")
    for program in names:
        results = {json.dumps(run["results"]) for its in runs[program].values() for run in its}
        if len(results) != 1:
            sys.exit(f"{program} has other results with another allocator")


if __name__ == "__main__":
    main()
