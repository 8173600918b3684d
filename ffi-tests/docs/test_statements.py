"""The statements of the documentation that a program can check, each with the test that checks it.

`statements/PAGE.txt` lists those of a page: the statement as it stands there, then ` | `, then its tests or the command that
shows it. A statement that is reworded or removed has to be looked at again here, and so has one whose test is gone.
Each line of docs/reliability.md that begins with `- ` is a statement. docs/public-reports.md names its tests itself.
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
REPORTS = "docs/public-reports.md"
REPORT = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+")
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


def named(lines, what):
    """What the lines `    - WHAT: ...` of a page name, a list for each."""
    start = f"    - {what}: "
    return [line.removeprefix(start).split(", ") for line in lines if line.startswith(start)]


def test_each_promise_of_reliability_has_its_tests():
    promises = [line.removeprefix("- ") for line in (ROOT / RELIABILITY).read_text().splitlines() if line.startswith("- ")]
    listed = next(listed for listed in LISTS if listed.stem == "reliability")
    assert promises == [statement.text for statement in statements(listed)] and len(promises) > 20


def test_each_entry_has_its_tests():
    lines = (ROOT / REPORTS).read_text().splitlines()
    entries = [line for line in lines if line.startswith("- ")]
    listed = named(lines, "Tests")
    assert len(listed) == len(entries) > 25
    assert not [reason for tests in listed for test in tests if (reason := why_it_is_none(test.strip("` ")))]


def test_each_entry_has_its_reports():
    lines = (ROOT / REPORTS).read_text().splitlines()
    listed = named(lines, "Reports")
    reports = [report.strip("<> ") for each in listed for report in each]
    assert len(listed) == len(named(lines, "Tests"))
    assert len(set(reports)) == len(reports) >= 60
    assert not [report for report in reports if not REPORT.fullmatch(report)]


def test_each_page_has_a_list():
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} | {"README.md", "CHANGELOG.md", "include/bfc.h"}
    assert not pages - {REPORTS} - {str(page_of(listed).relative_to(ROOT)) for listed in LISTS}


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
