"""Runs the code on a page of docs/, as it stands there, for the tests of frameworks.

xtask lays each block of a page out as a file (xtask/src/pages/owned.rs) and names the folder in XTASK_PAGES. A block that
was run to its end leaves a mark beside it, and a suite fails if one has none.
"""

import os
import pathlib


class Page:
    """The code of one page, by the page's name without its ending."""

    def __init__(self, name):
        self.folder = pathlib.Path(os.environ["XTASK_PAGES"]) / name

    def file(self, name):
        """The file of a block, `python-1` for the first in Python."""
        (file,) = (path for path in self.folder.glob(f"{name}.*") if path.suffix != ".ran")
        return file

    def text(self, name):
        return self.file(name).read_text()

    def ran(self, name):
        """A block was run to its end by somebody else."""
        self.file(name).with_suffix(self.file(name).suffix + ".ran").touch()

    def run(self, name, scope=None, without=None, instead=None):
        """Runs a block in Python, in a scope of names, which it gives back.

        `without`: a word; the one line that has it is left out, and the block does not count as run.
        `instead`: what a reader changes, by how the line begins: {"LIBBFC =": ""} takes that one out.
        """
        lines = self.text(name).splitlines()
        kept = [line for line in lines if without is None or without not in line]
        assert without is None or len(kept) == len(lines) - 1, f"one line of {name} has {without}"
        for start, line in (instead or {}).items():
            (at,) = (number for number, text in enumerate(kept) if text.startswith(start))
            kept[at] = line
        scope = {"__name__": "__main__"} if scope is None else scope
        exec(compile("\n".join(kept) + "\n", str(self.file(name)), "exec"), scope)
        if without is None:
            self.ran(name)
        return scope

    def run_all(self, scope=None, instead=None):
        """Runs all blocks in Python in one scope, which it gives back: what the page shows is one program."""
        scope = {"__name__": "__main__"} if scope is None else scope
        names = sorted((path.stem for path in self.folder.glob("python-*.py")), key=lambda name: int(name[7:]))
        assert names, f"there is no Python in {self.folder}"
        for name in names:
            there = {start: line for start, line in (instead or {}).items() if f"\n{start}" in "\n" + self.text(name)}
            self.run(name, scope, instead=there)
        return scope
