"""The tables of probes. Modules register theirs with the decorators `rule` and `fact`."""

import dataclasses
from collections.abc import Callable
from typing import Any

RULES = {}
FACTS = {}
# Rows of the table of rules without a probe: the beginning of the rule's text, and the reason.
NOT_PROBED = {}


@dataclasses.dataclass
class Probe:
    name: str
    function: Callable[[Any], Any]
    needs: tuple[str, ...]
    row: str = ""
    expected: Any = None


def rule(name, row, expected, needs=()):
    """Registers a probe of a rule of the simulated driver.

    `row` is the beginning of the rule's text in crates/simcuda/README.md. `expected` is what the simulated driver does, as
    a JSON value. The functions in `needs` must exist in the driver, else the probe is skipped."""

    def register(function):
        _add(RULES, Probe(name, function, _names(needs), row, expected))
        return function

    return register


def fact(name, needs=()):
    """Registers a probe that measures something for which there is no expectation."""

    def register(function):
        _add(FACTS, Probe(name, function, _names(needs)))
        return function

    return register


def _add(probes, probe):
    if probe.name in probes:
        raise ValueError(f"two probes are called {probe.name}")
    probes[probe.name] = probe


def _names(needs):
    return (needs,) if isinstance(needs, str) else tuple(needs)
