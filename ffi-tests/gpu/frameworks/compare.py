"""Compares what train.py wrote with several allocators, and prints a table of it.

    compare.py NATIVE.json OTHER.json...

It fails if a file is not whole, if they are not of one machine, or if a loss is not the first file's to the last bit. On the
simulated driver, whose kernels compute nothing, losses are not compared, and it says so.
"""

import json
import math
import pathlib
import sys

NUMBERS = ["tokens per second", "peak allocated", "peak reserved", "peak taken of the device"]
MACHINE = ["name", "device", "device bytes", "torch", "cuda", "python"]
MiB = 1 << 20


def main():
    files = [pathlib.Path(argument) for argument in sys.argv[1:]]
    told = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    wrong = wrongs(told)
    for words in wrong:
        print(f"failed: {words}")
    if not wrong:
        print(table(told))
    sys.exit(1 if wrong else 0)


def wrongs(told):
    """What is wrong, in words; nothing if all is well."""
    if len(told) < 2:
        return ["there is nothing to compare with"]
    wrong = [f"{name}: {words}" for name, run in told.items() for words in missing(run)]
    if wrong:
        return wrong
    first_name, first = next(iter(told.items()))
    for name, run in told.items():
        if any(run["machine"][key] != first["machine"][key] for key in MACHINE):
            wrong.append(f"{name} and {first_name} are not of one machine with the same programs")
        if run["simulated"] != first["simulated"] or len(run["losses"]) != len(first["losses"]):
            wrong.append(f"{name} and {first_name} are not runs of the same kind")
    if not wrong and not first["simulated"]:
        wrong = wrong_losses(told)
    return wrong


def missing(run):
    """What of a file is not there or makes no sense."""
    absent = [key for key in ["allocator", "simulated", "machine", "losses", "speed", "is"] if key not in run]
    if absent:
        return [f"{key} is missing" for key in absent]
    wrong = [f"{key} of the machine is missing" for key in MACHINE + ["date"] if not run["machine"].get(key)]
    values = [(key, run["speed"].get(key, 0)) for key in NUMBERS]
    wrong += [f"{key} is {value}" for key, value in values if not (value > 0 and math.isfinite(value))]
    return wrong + ([] if run["losses"] else ["there are no losses"])


def wrong_losses(told):
    first_name, first = next(iter(told.items()))
    values = [float.fromhex(loss) for loss in first["losses"]]
    if not all(math.isfinite(value) for value in values) or not values[-1] < values[0]:
        return [f"{first_name} has learnt nothing: {values}"]
    wrong = []
    for name, run in told.items():
        pairs = enumerate(zip(first["losses"], run["losses"], strict=True))
        differing = next((f"step {step}: {a} and {b}" for step, (a, b) in pairs if a != b), None)
        if differing is None:
            continue
        if run["allocator"] == first["allocator"]:
            differing += "; with the same allocator twice, so these kernels are not deterministic and say nothing"
        wrong.append(f"the losses of {first_name} and {name} differ at {differing}")
    return wrong


def table(told):
    first = next(iter(told.values()))
    machine = first["machine"]
    lines = [
        f"{machine['device']} ({machine['device bytes'] // MiB} MiB), machine {machine['name']}, {machine['date']}",
        f"PyTorch {machine['torch']}, CUDA {machine['cuda']}, Python {machine['python']}",
        "",
        "| allocator | tokens per second | rounds | peak allocated, MiB | peak reserved, MiB | of the device, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for name, run in told.items():
        speed = run["speed"]
        rounds = " ".join(f"{value:.0f}" for value in speed["rounds"])
        sizes = " | ".join(f"{speed[key] / MiB:.0f}" for key in NUMBERS[1:])
        lines.append(f"| {name} | {speed['tokens per second']:.0f} | {rounds} | {sizes} |")
    if first["simulated"]:
        lines += [
            "",
            "A simulated driver: no kernel has run. No losses were compared, and no figure above means anything.",
        ]
    else:
        lines += ["", f"The losses of {len(first['losses'])} steps are the same to the last bit."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
