"""Compares what train.py wrote with several allocators, and prints a table.

    compare.py NATIVE.json OTHER.json...

It fails if a file is incomplete, if the files are not from one machine, or if a loss differs from that of the first file in a
single bit. On the simulated driver, whose kernels compute nothing, losses are not compared."""

import json
import math
import pathlib
import sys

MODELS = ["gpt", "resnet"]
TIMES = ["median ms", "5th percentile ms", "95th percentile ms"]
SIZES = ["peak allocated", "peak reserved", "taken of the device"]
NUMBERS = ["items per second", *TIMES, *SIZES, "reserved over allocated", "steps"]
MACHINE = ["device", "device bytes", "torch", "cuda", "python"]
MiB = 1 << 20


def main():
    files = [pathlib.Path(argument) for argument in sys.argv[1:]]
    runs = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    found = errors(runs)
    for error in found:
        print(f"failed: {error}")
    if not found:
        print(table(runs))
    sys.exit(1 if found else 0)


def errors(runs):
    """Returns what is wrong with the runs."""
    if len(runs) < 2:
        return ["two files are needed to compare"]
    found = [f"{name}: {error}" for name, run in runs.items() for error in errors_of(run)]
    if found:
        return found
    first_name, first = next(iter(runs.items()))
    for name, run in runs.items():
        if any(run["machine"][key] != first["machine"][key] for key in MACHINE):
            found.append(f"{name} and {first_name} are not from one machine with the same versions")
        if run["simulated"] != first["simulated"] or len(run["losses"]) != len(first["losses"]):
            found.append(f"{name} and {first_name} are not runs of the same kind")
        if any(run[model]["steps"] != first[model]["steps"] for model in MODELS):
            found.append(f"{name} and {first_name} have different numbers of steps")
    if not found and not first["simulated"]:
        found = errors_of_losses(runs)
    return found


def errors_of(run):
    """Returns what is missing in a file or cannot be."""
    absent = [key for key in ["allocator", "simulated", "machine", "losses", *MODELS, "is"] if key not in run]
    if absent:
        return [f"{key} is missing" for key in absent]
    found = [f"{key} of the machine is missing" for key in [*MACHINE, "date"] if not run["machine"].get(key)]
    # Every event of the simulated driver may have the same time.
    numbers = [key for key in NUMBERS if not (run["simulated"] and key in TIMES)]
    values = [(model, key, run[model].get(key, 0)) for model in MODELS for key in numbers]
    found += [f"{key} of {model} is {value}" for model, key, value in values if not (value > 0 and math.isfinite(value))]
    return found + ([] if run["losses"] else ["there are no losses"])


def errors_of_losses(runs):
    first_name, first = next(iter(runs.items()))
    values = [float.fromhex(loss) for loss in first["losses"]]
    if not all(math.isfinite(value) for value in values) or not values[-1] < values[0]:
        return [f"the model of {first_name} did not learn: {values}"]
    found = []
    for name, run in runs.items():
        pairs = enumerate(zip(first["losses"], run["losses"], strict=True))
        difference = next((f"step {step}: {a} and {b}" for step, (a, b) in pairs if a != b), None)
        if difference is None:
            continue
        if run["allocator"] == first["allocator"]:
            difference += " (the same allocator twice: these kernels are not deterministic, so the losses prove nothing)"
        found.append(f"the losses of {first_name} and {name} differ at {difference}")
    return found


def table(runs):
    first = next(iter(runs.values()))
    machine = first["machine"]
    lines = [
        f"{machine['device']} ({machine['device bytes'] // MiB} MiB), {machine['date']}",
        f"PyTorch {machine['torch']}, CUDA {machine['cuda']}, Python {machine['python']}",
    ]
    for model in MODELS:
        items = first[model]["items"]
        columns = ["allocator", f"{items} per second", "median step, ms", "5th to 95th percentile, ms"]
        columns += [*(f"{size}, MiB" for size in SIZES), "reserved / allocated"]
        lines += ["", f"{model}, {first[model]['steps']} steps", ""]
        lines += [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {name} | {' | '.join(cells(run[model]))} |" for name, run in runs.items()]
    if first["simulated"]:
        lines += ["", "Simulated driver: no kernel has run, no losses were compared, and the figures have no meaning."]
    else:
        lines += ["", f"The losses of {len(first['losses'])} steps are the same bit by bit."]
    return "\n".join(lines)


def cells(figures):
    median, fifth, ninety_fifth = (figures[key] for key in TIMES)
    return [
        f"{figures['items per second']:.0f}",
        f"{median:.2f}",
        f"{fifth:.2f} to {ninety_fifth:.2f}",
        *(f"{figures[key] / MiB:.0f}" for key in SIZES),
        f"{figures['reserved over allocated']:.3f}",
    ]


if __name__ == "__main__":
    main()
