"""The statements of the documentation that a program can check, each with the test that checks it.

`statements/PAGE.txt` lists those of a page: the statement as it stands there, then ` | `, then its tests or the command that
shows it. A statement that is reworded or removed has to be looked at again here, and so has one whose test is gone.
docs/reliability.md names its tests itself.
"""

import re
from typing import NamedTuple

import pytest

from pages import ROOT

LISTS = sorted((ROOT / "ffi-tests/docs/statements").glob("*.txt"))
ELSEWHERE = {name: f"{name}.md" for name in ("README", "CHANGELOG", "ARCHITECTURE", "CONTRIBUTING")} | {
    "bfc.h": "include/bfc.h",
    "bfc_adapters.h": "include/bfc_adapters.h",
}
# How the start of a test looks in each language; in others the name occurs somewhere.
DEFINED = {".py": r"(def|class) {}\b", ".rs": r"fn {}\b"}
RELIABILITY = "docs/reliability.md"
COMMANDS = ("cargo xtask ", "bfc ")


class Statement(NamedTuple):
    line: int
    text: str
    tests: list[str]


def statements(listed):
    found = []
    for number, line in enumerate(listed.read_text().splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            text, _, tests = line.rpartition(" | ")
            found.append(Statement(number, text.strip(), [test.strip() for test in tests.split(", ")]))
    return found


def page_of(listed):
    return ROOT / ELSEWHERE.get(listed.stem, f"docs/{listed.stem}.md")


def one_line(path):
    """The text of a page on one line; of a header without the stars of its comments."""
    text = path.read_text()
    if path.suffix == ".h":
        text = re.sub(r"^\s*(/\*\*|\*/|\*|//+)", " ", text, flags=re.MULTILINE)
    return " ".join(text.split())


def why_it_is_none(test):
    """Why this is no test that exists; None if it is one."""
    if test.startswith(COMMANDS):
        return None
    path, separator, name = test.partition("::")
    file = ROOT / path
    if not separator or not name:
        return f"{test!r} is neither PATH::NAME nor one of the commands {COMMANDS}"
    if not file.is_file():
        return f"there is no {path}"
    pattern = DEFINED.get(file.suffix, "{}").format(re.escape(name))
    return None if re.search(pattern, file.read_text()) else f"{path} has no {name}"


@pytest.mark.parametrize("listed", LISTS, ids=[listed.stem for listed in LISTS])
def test_each_statement_is_on_its_page_and_has_a_test(listed):
    page, wrong = one_line(page_of(listed)), []
    for statement in statements(listed):
        if not statement.text or " ".join(statement.text.split()) not in page:
            wrong.append(f"{listed.name}:{statement.line}: not on the page: {statement.text!r}")
        for reason in filter(None, map(why_it_is_none, statement.tests)):
            wrong.append(f"{listed.name}:{statement.line}: {reason}")
    assert not wrong, "\n".join(wrong)


def test_each_promise_of_reliability_has_its_tests():
    lines = (ROOT / RELIABILITY).read_text().splitlines()
    promises = [line for line in lines if line.startswith("- ")]
    listed = [line.removeprefix("    - Tests: ") for line in lines if line.startswith("    - Tests: ")]
    assert len(listed) == len(promises) > 20
    tests = [test.strip("` ") for line in listed for test in line.split(", ")]
    assert not list(filter(None, map(why_it_is_none, tests)))


def test_each_page_has_a_list():
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} | {"README.md", "CHANGELOG.md", "include/bfc.h"}
    pages.remove(RELIABILITY)
    assert not pages - {str(page_of(listed).relative_to(ROOT)) for listed in LISTS}


@pytest.mark.parametrize(
    "test, reason",
    [
        ("cargo xtask bench --only peers", None),
        ("ffi-tests/docs/test_statements.py::statements", None),
        ("ffi-tests/docs/test_statements.py::statement", "has no statement"),
        ("ffi-tests/docs/test_gone.py::f", "there is no"),
        ("tests", "is neither"),
        ("", "is neither"),
    ],
)
def test_a_test_that_is_gone_is_noticed(test, reason):
    found = why_it_is_none(test)
    assert found is None if reason is None else reason in found
