"""The behavior that programs rely on and the interposer preserves: the programs of behaviour/, each of their cases a test."""

import difflib
import pathlib

import pytest

from stage import SIMULATION, compile, environment, preloaded, run, settings

# Programs that say what they see: compared with themselves without the interposer.
FACTS = ["facts", "life_facts"]
# Settings under which they are, the usual ones first.
SETTINGS = ["", "BFC_PRELOAD_FREE=sync", "BFC_PRELOAD_PINNED=1", "BFC_PRELOAD_ASYNC=1"]
# Programs whose cases are tests of their own, and what they are linked to.
PROGRAMS = [
    *((name, 12) for name in "free captures devices async pinned limits room waits idle life ipc others signals".split()),
    ("others", 13),
    ("others", "static"),
]
# What each simulated device has.
MEMORY = "4294967296"
# The differences that docs/interposition-differences.md explains, in blocks: the place, and the lines without the interposer (`-`)
# and with it (`+`).
LISTED = pathlib.Path(__file__).with_name("behaviour") / "differences.diff"


def program(name, link=12):
    flags = ["-D_GNU_SOURCE", "-Wl,--no-as-needed", SIMULATION / "libcuda.so.1"]
    # The interposer calls its functions in place of the C library's.
    flags += ["-rdynamic"] if name == "signals" else []
    return compile(f"behaviour_{name}_{link}", f"behaviour/{name}.c", link, flags)


def cases(name, link=12):
    """A program's cases, each with the environment that it wants."""
    found = [line.split(" ", 1) for line in run(program(name, link), "--list", env=environment()).splitlines()]
    assert found, f"{name} has no cases"
    return found


def everything():
    return [pytest.param(name, link, case, more, id=f"{name}-{link}-{case}") for name, link in PROGRAMS for case, more in cases(name, link)]


@pytest.mark.parametrize("name, link, case, more", everything())
def test_behaviour(name, link, case, more):
    run(program(name, link), case, env=preloaded(SIMCUDA_MEMORY=MEMORY) | settings(more))


def allowed():
    """The differences that are listed, by place: program, case, and settings. A place without settings stands for all of them
    that have no block of their own."""
    found = {}
    for block in LISTED.read_text().split("\n\n"):
        first, *lines = block.splitlines()
        assert first.startswith("# ") and all(line.startswith(("-", "+")) for line in lines), block
        assert found.setdefault(first.removeprefix("# "), lines) is lines, f"{first} has two blocks"
    return found


def differences(without, preloaded):
    """Lines that appear only without the interposer (`-`), or only with it (`+`)."""
    old, new = without.splitlines(), preloaded.splitlines()
    found = []
    for kind, start, end, new_start, new_end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            found += [f"-{line}" for line in old[start:end]] + [f"+{line}" for line in new[new_start:new_end]]
    return found


PLACES = [f"{name} {case} {more}".strip() for name in FACTS for case, _ in cases(name) for more in SETTINGS]


@pytest.mark.parametrize("place", PLACES)
def test_with_and_without(place):
    name, case, more = [*place.split(" ", 2), ""][:3]
    old = run(program(name), case, env=environment(SIMCUDA_MEMORY=MEMORY))
    assert len(old.splitlines()) > 2, "it says next to nothing"
    new = run(program(name), case, env=preloaded(SIMCUDA_MEMORY=MEMORY) | settings(more))
    listed = allowed().get(place) or allowed().get(f"{name} {case}") or []
    assert sorted(differences(old, new)) == sorted(listed)


def test_the_listed_differences_are_about_what_there_is():
    assert not set(allowed()) - set(PLACES)


def test_lines_that_are_not_in_both_are_found():
    assert differences("a\nb\n", "a\nb\n") == []
    assert sorted(differences("a\nb\nc\n", "a\nx\nc\n")) == ["+x", "-b"]
    assert differences("a\n", "") == ["-a"]
    assert len(differences("a\nb\n", "b\na\n")) == 2
