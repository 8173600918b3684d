"""Probes of the CUDA driver: small questions, each answered in a process of its own.

    python3 probes/probe.py --list            the names and their rules, as JSON, without the driver
    python3 probes/probe.py rules NAME        runs one probe
    python3 probes/probe.py facts NAME

The last line of the output is a JSON object: `{"observed": ..., "expected": ...}` for a rule of the simulated driver
(crates/simcuda/README.md), `{"observed": ...}` for a fact. A probe that does not apply exits with 77, and the last line of
its output is the reason.
"""

import importlib
import importlib.util
import json
import sys
import traceback

from registry import FACTS, RULES

SKIPPED = 77
GROUPS = {"facts": FACTS, "rules": RULES}
# In the order of the listing: what libbfc relies on most comes first.
TOPICS = ["rules_capture", "rules_captured", "rules_memory", "rules_virtual", "rules_contexts", "rules_streams", "facts"]


def load():
    for topic in TOPICS:
        if importlib.util.find_spec(topic):
            importlib.import_module(topic)


def run(group, name):
    """Runs a probe and returns the exit status."""
    from driver import Driver, Skip

    probes = GROUPS.get(group, {})
    if name not in probes:
        print(f"no probe {group} {name}; --list prints the names")
        return 2
    probe, cu = probes[name], None
    try:
        cu = Driver()
        for function in probe.needs:
            getattr(cu, function)
        result = {"observed": probe.function(cu)}
    except Skip as reason:
        print(reason)
        return SKIPPED
    except Exception:
        print("the last driver calls:", *(cu.calls if cu else ()), sep="\n  ")
        traceback.print_exc()
        return 1
    if group == "rules":
        result["expected"] = probe.expected
    print(json.dumps(result))
    return 0


def main(arguments):
    load()
    if arguments == ["--list"]:
        print(json.dumps({group: {probe.name: probe.row for probe in probes.values()} for group, probes in GROUPS.items()}))
        return 0
    if len(arguments) != 2:
        print(__doc__)
        return 2
    return run(*arguments)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.exit(status)
