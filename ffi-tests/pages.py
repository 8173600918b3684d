"""The code on the pages of the documentation, README.md and docs/*.md, which the tests run as it stands there.

A block that was run to its end leaves a mark, and conftest.py fails a run of a folder's tests if a block of its pages has
none: nothing counts as run that was only read.
"""

import os
import pathlib
import re
from typing import NamedTuple

from markdown_it import MarkdownIt

ROOT = pathlib.Path(__file__).parents[1]
SCRATCH = pathlib.Path(os.environ.get("LIBBFC_TESTS_SCRATCH", ROOT / "target/tests")) / "pages"

# Which folder of ffi-tests has the tests that run a page's code; the others are the folder docs's.
OWNERS = {
    "docs/cupy.md": "cupy",
    "docs/handlers.md": "cuda-headers",
    "docs/metrics.md": "metrics",
    "docs/numba.md": "cupy",
    "docs/arrow.md": "arrow",
    "docs/numpy.md": "numpy",
    "docs/onnxruntime.md": "onnxruntime",
    "docs/python.md": "python",
    "docs/pytorch-cpu.md": "pytorch-cpu",
    "docs/pytorch.md": "pytorch",
    "docs/rmm.md": "rmm",
    "docs/snapshots.md": "pytorch",
    "docs/tensorflow.md": "keras",
    "docs/tensorrt.md": "tensorrt",
}
# Blocks that no test runs, by their first lines, each with its reason.
EXCEPTIONS = {
    ("README.md", "cargo xtask demo"): "a minute or two; .ci/run runs it on each change",
    ("README.md", "cargo xtask test"): "all suites, of which this is one; .ci/run runs it on each change",
    ("docs/install.md", "pip install -v ."): "the suite python does it in a copy of the source",
    ("docs/python.md", "pip install -v ."): "the suite python does it in a copy of the source",
    ("docs/framework.md", "// Before: cudaMalloc"): "ffi-tests/docs/test_framework.py compiles and runs it",
    ("docs/framework.md", "// After: libbfc"): "ffi-tests/docs/test_framework.py compiles and runs it",
    (
        "docs/framework.md",
        "SIMCUDA_RACES=2 SIMCUDA_HOLD_NEW=1 SIMCUDA_STALE_ABORTS=1 cargo xtask simulate -- ./app",
    ): "ffi-tests/pytorch/test_simulate.py runs it",
    ("docs/rust.md", "use allocator_api2::vec::Vec;"): "needs a feature; an example in src/rust/allocator.rs",
    ("docs/rust.md", "let pool = bfc::Pool::new(0)?;"): "a part of examples/cuda-rust, which ffi-tests/docs/test_cuda_rust.py runs",
    ("docs/pytorch.md", "cargo xtask simulate --pytorch train.py"): "ffi-tests/pytorch/test_simulate.py runs it",
    ("docs/pytorch.md", "BFC_HISTORY_FILE=train.history python3 train.py"): "ffi-tests/pytorch/test_simulate.py does the same",
    ("docs/run.md", "cargo xtask simulate -- bfc run --limit 256MiB --report -- ./train"): "ffi-tests/pytorch/test_simulate.py runs it",
    (
        "docs/pytorch-cpu.md",
        "BFC_HISTORY_FILE=train.history BFC_HISTORY_STACKS=python python3 train.py",
    ): "ffi-tests/pytorch/test_simulate.py does the same for CUDA",
    ("docs/install.md", "cargo xtask package"): "the tests of installing make them, and look into them",
    ("docs/python.md", "cargo xtask wheel                # for systems like this one"): "the suites python and manylinux build both",
}
# What a block is written in, if it is code. A fence without a language has output, or a picture.
ENDINGS = {"c": "c", "cpp": "cpp", "rust": "rs", "cmake": "cmake", "sh": "sh", "python": "py", "json": "json"}
# A line to type: a command that is known, a path to one, or a variable before one.
COMMAND = re.compile(r"(\$ )?([A-Z_]+=\S* )*((bfc|cargo|cc|c\+\+|cmake|export|pip|python3?) |\./|\S*/bin/)|(\$ )?[A-Z_]+=\S* \S")


class Block(NamedTuple):
    name: str
    """Its language and its number among those of that language, from 1: `python-2`; of what is no code `text-1`."""
    language: str
    line: int
    text: str

    @property
    def first_line(self):
        return self.text.split("\n")[0]


def language(named, text):
    """What names no language and looks like code is taken for it, so that nothing escapes."""
    if named in ("", "text"):
        first = text.lstrip("\n").split("\n")[0]
        begins = {"sh": COMMAND.match(first), "c": first.startswith("#include"), "python": first.startswith(("import ", "from "))}
        return next((known for known, is_it in begins.items() if is_it), "text")
    return {"c++": "cpp", "shell": "sh", "bash": "sh", "console": "sh", "py": "python"}.get(named, named)


def blocks(text):
    """The blocks of a page, fenced and indented ones, in order."""
    found = []
    for token in MarkdownIt().parse(text):
        if token.type in ("fence", "code_block"):
            kind = language(token.info.strip(), token.content)
            number = sum(block.language == kind for block in found) + 1
            found.append(Block(f"{kind}-{number}", kind, token.map[0] + 1 + (token.type == "fence"), token.content))
    return found


def pages():
    """All pages, by their paths in the checkout."""
    return {str(path.relative_to(ROOT)): path.read_text() for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]}


class Page:
    """The code of one page: `Page("cupy")` of docs/cupy.md, `Page("README")`."""

    def __init__(self, name):
        self.path = "README.md" if name == "README" else f"docs/{name}.md"
        self.folder = SCRATCH / name
        self.all = blocks((ROOT / self.path).read_text())
        is_run = lambda block: block.language != "text" and (self.path, block.first_line) not in EXCEPTIONS
        self.blocks = [block for block in self.all if is_run(block)]

    def text(self, name):
        (text,) = (block.text for block in self.all if block.name == name)
        return text

    def of(self, kind):
        """The blocks of a language."""
        return [block for block in self.blocks if block.language == kind]

    def file(self, name):
        """A block as a file, for a compiler."""
        path = self.folder / f"{name}.{ENDINGS.get(name.rpartition('-')[0], 'txt')}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text(name))
        return path

    def ran(self, name):
        """A block was run to its end, or cannot run on this machine, and the test that says so is skipped."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{name}.ran").touch()

    def not_run(self):
        left = [block for block in self.blocks if not (self.folder / f"{block.name}.ran").exists()]
        return [f"{self.path}:{block.line}: {block.name} was not run to its end: {block.first_line}" for block in left]

    def forget(self):
        """Nothing has run yet."""
        for mark in self.folder.glob("*.ran"):
            mark.unlink()

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
        assert self.of("python"), f"there is no Python in {self.path}"
        for block in self.of("python"):
            there = {start: line for start, line in (instead or {}).items() if f"\n{start}" in "\n" + block.text}
            self.run(block.name, scope, instead=there)
        return scope


def of_folder(folder):
    """The pages whose code the tests in a folder of ffi-tests run."""
    own = [path for path in pages() if OWNERS.get(path, "docs") == folder]
    return [Page(pathlib.Path(path).stem) for path in own]
