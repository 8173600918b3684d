"""docs/gpu.md: what was run on which device, with which result, and what was not."""

import json
import re

from runner import results

NOT_RUN = "not run"
# What train.py writes for each of its models.
MODELS = {"gpt": "words", "resnet": "images"}
FIGURES = ["items per second", "median ms", "95th percentile ms", "peak allocated", "peak reserved", "taken of the device"]
HEAD = """# libbfc on GPU hardware

This page lists the checks that need a real NVIDIA GPU, with their results on each device on which they ran. Everything else that
this documentation says about CUDA was tested on the simulated driver (crates/simcuda), except where a page says that it was not
run. Do not edit this page: `cargo xtask gpu --page` writes it from the result files in docs/gpu.

## Running the checks

`cargo xtask gpu` builds the folder `target/gpu`. Copy it to a machine with an NVIDIA driver and Python 3.10 or newer. Rust, a CUDA
toolkit and a network are not needed. Checks whose compiler or framework is missing are skipped with the reason.

    target/gpu/run --minutes 6 --out results            # the most valuable checks first, until the time is up
    target/gpu/run --out more --skip-done results/results.jsonl    # continue where an earlier run ended
    target/gpu/run --out some --only rules              # one part

`results.jsonl` has one JSON object for each check. It is written as the checks end, so it is complete up to the moment at which a
run was interrupted. ffi-tests/gpu/README.md describes the parts.

"""
STATUSES = """A check is `passed`, `failed`, `crashed` (ended by a signal), `timed out`, `skipped` (something it needs is missing) or `not run`.
A rule `differs` if the driver answers otherwise than the simulated one.

"""


class Run:
    """One result file."""

    def __init__(self, path):
        self.name, records = path.stem, results.read(path)
        self.machine = next((record["machine"] for record in records if "machine" in record), {})
        self.rows = {(record["part"], record["row"]): record for record in records if "part" in record}
        self.driver = self.rows.get(("facts", "driver"), {}).get("observed", {})

    def title(self):
        return f"{self.machine.get('device')}, {self.machine.get('date', '')[:10]}"


def of(parts, paths):
    """The page, for the parts of the pack and some result files."""
    runs = [Run(path) for path in sorted(paths)]
    text = [HEAD, "## Devices\n\n"]
    if runs:
        text.append("| device | driver | system | date | rows | results |\n|---|---|---|---|---|---|\n")
        text += [_device(parts, run) for run in runs]
        text.append("\n")
    else:
        text.append("**None. No check has run on GPU hardware yet.**\n\n")
    text.append(STATUSES)
    if not runs:
        return "".join([*text, _summary(parts)])
    for part in parts:
        text.append(f"## {part.name.capitalize()}: {part.about}\n\n")
        text.append(_table(part, runs))
    return "".join(text)


def _summary(parts):
    """What the pack would check: without a result there is nothing to say of each check."""
    lines = ["| part | about | checks |\n|---|---|--:|\n"]
    lines += [_line([part.name, part.about, sum(len(task.rows) for task in part.tasks)]) for part in parts]
    return "".join(lines)


def _device(parts, run):
    driver, machine = run.driver, run.machine
    every = [(part.name, row) for part in parts for task in part.tasks for row in task.rows]
    ran = sum(run.rows.get(key, {}).get("status", NOT_RUN) != NOT_RUN for key in every)
    cells = [
        machine.get("device"),
        _driver(driver),
        f"{machine.get('system', '')}, Python {machine.get('python', '')}",
        machine.get("date", ""),
        f"{ran} of {len(every)}",
        f"[{run.name}.jsonl](gpu/{run.name}.jsonl)",
    ]
    return _line(cells)


def _driver(facts):
    """The driver's versions: the first line of /proc/driver/nvidia/version says more than the number."""
    module = re.search(r"\b\d{3}\.[\d.]+", facts.get("kernel module") or "")
    number = facts.get("cuDriverGetVersion", 0)
    cuda = f"CUDA {number // 1000}.{number % 1000 // 10}"
    return f"{module[0]}, {cuda}" if module else cuda


def _table(part, runs):
    columns = [run.title() for run in runs]
    # Rules have several checks, one after the other.
    first = ["rule", "check"] if part.tasks and part.tasks[0].about else ["check"]
    lines = [_line([*first, *columns]), "|---" * (len(first) + len(columns)) + "|\n"]
    rule = None
    for task in part.tasks:
        # The many rows of the conformance suite say nothing one by one unless they fail.
        if part.name == "conformance":
            name = task.rows[0].partition(":")[0] if task.rows else "none"
            lines.append(_line([f"{name}, {len(task.rows)} tests", *(_summed(part, task, run) for run in runs)]))
            continue
        for row in task.rows:
            about = [] if len(first) == 1 else ["" if task.about == rule else f"{task.about} …"]
            rule = task.about
            lines.append(_line([*about, row, *(_cell(run.rows.get((part.name, row))) for run in runs)]))
    figures = [_figures(run) for run in runs] if part.name == "costs" else []
    return "".join([*lines, "\n", *figures])


def _summed(part, task, run):
    rows = [run.rows.get((part.name, row), {}) for row in task.rows]
    found = {}
    for row in rows:
        status = row.get("status", NOT_RUN)
        found[status] = found.get(status, 0) + 1
    bad = [row["row"].partition(": ")[2] for row in rows if row.get("status") in results.BAD]
    text = ", ".join(f"{count} {status}" for status, count in found.items())
    return f"{text}: {', '.join(bad)}" if bad else text


def _cell(record):
    if record is None:
        return NOT_RUN
    status = record["status"]
    if status == "differs":
        return f"differs: {_value(record['observed'])}; the simulation: {_value(record['expected'])}"
    if "observed" in record and "expected" not in record:
        return _value(record["observed"])
    if "served" in record and status == "passed":
        return f"passed, {record['served']} allocations served, {record['driver_calls_saved']} driver calls saved"
    return f"{status}: {record['why']}" if record.get("why") else status


def _value(value):
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(one)}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(_value(one) for one in value)
    return value if isinstance(value, str) else json.dumps(value)


def _figures(run):
    """The costs and trainings of one run."""
    records = [record for (part, _), record in run.rows.items() if part == "costs"]
    costs = [figure for record in records for figure in record.get("costs", [])]
    sizes = sorted({figure["bytes"] for figure in costs})
    text = []
    for pattern in dict.fromkeys(figure["pattern"] for figure in costs):
        text.append(f"Nanoseconds for an allocation and its free, {pattern}, on {run.title()}:\n\n")
        text.append(_line(["allocator", *(f"{size:,} bytes" for size in sizes)]) + "|---" * (len(sizes) + 1) + "|\n")
        of_pattern = [figure for figure in costs if figure["pattern"] == pattern]
        for allocator in dict.fromkeys(figure["allocator"] for figure in of_pattern):
            found = {figure["bytes"]: figure["nanoseconds"] for figure in of_pattern if figure["allocator"] == allocator}
            values = [found.get(size) for size in sizes]
            text.append(_line([allocator, *("" if value is None else f"{value:,.0f}" for value in values)]))
        text.append("\n")
    return "".join(text + _trainings(run, records))


def _trainings(run, records):
    trainings = {record["row"]: record["training"] for record in records if "training" in record}
    text = []
    for model, unit in MODELS.items():
        if not trainings:
            break
        text.append(f"{model}, {unit} per second, milliseconds of a step, and memory in bytes, on {run.title()}:\n\n")
        text.append(_line(["allocator", *FIGURES]) + "|---" * (len(FIGURES) + 1) + "|\n")
        for row, training in trainings.items():
            text.append(_line([row, *(f"{training[model][figure]:,.5g}" for figure in FIGURES)]))
        text.append("\n")
    return text


def _line(cells):
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"
