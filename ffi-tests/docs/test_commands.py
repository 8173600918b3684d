"""The commands on pages: those in blocks are run, in a folder with the programs that they name and on the simulated driver;
those that are named in passing exist."""

import os
import re
import shutil

import pytest
from markdown_it import MarkdownIt

import pages
from test_pages import OWN

# What stands for the installation and for a fresh folder below. Commands have neither.
INSTALLED, FRESH = "\1", "\2"
# What a reader puts something in the place of, and what it is here.
STAND_FOR = {
    "/path/to/": f"{INSTALLED}/lib/",
    "/usr/local/lib/": f"{INSTALLED}/lib/",
    "--prefix DIR": f"--prefix {FRESH}",
    "DIR": INSTALLED,
    "TRACE...": "tests/traces/mlp_tiny.trace.gz",
    "PROGRAM ARGS...": "./train",
    " ARGS...": " --epochs 3",
}
# A program that allocates device memory, in place of the reader's own, and the same in Python.
TRAIN = """int cudaMalloc(void **, unsigned long); int cudaFree(void *);
int main(void) {
  void *memory[8];
  for (int i = 0; i < 8; i++) if (cudaMalloc(&memory[i], 1000000) != 0) return 1;
  for (int i = 0; i < 8; i++) if (cudaFree(memory[i]) != 0) return 1;
  return 0;
}
"""
SCRIPT = """import ctypes
runtime = ctypes.CDLL('libcudart.so.12')
memory = ctypes.c_void_p()
assert runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(1000000)) == 0
assert runtime.cudaFree(memory) == 0
"""


def script(text, prefix, fresh):
    """The lines of a block as they are typed: without remarks, and with real names in the place of others."""

    def typed(line):
        command = line.removeprefix("$ ").split("   ")[0]
        for word, stands_for in STAND_FOR.items():
            command = command.replace(word, stands_for)
        # Quoted in its middle, a word is one all the same.
        return command.replace(INSTALLED, f"'{prefix}'").replace(FRESH, f"'{fresh}'")

    return "".join(f"{typed(line)}\n" for line in text.splitlines())


@pytest.mark.parametrize("page", [page for page in OWN if page.of("sh")], ids=lambda page: page.path)
def test_the_commands_of_a_page(page, compiled, run, plain, prefix, simulation_folder, root, tmp_path, subtests):
    # Those of a page are run in order, and later ones need what earlier ones have left.
    (tmp_path / "train.c").write_text(TRAIN)
    run("cc", tmp_path / "train.c", "-o", tmp_path / "train", simulation_folder / "libcudart.so.12")
    shutil.copy(tmp_path / "train", tmp_path / "smoke-test")
    for name in ("train.py", "serve.py"):
        (tmp_path / name).write_text(SCRIPT)
    # The page's own program, else that of the first page which has one.
    of = next(other for other in [page, *OWN] if other.of("c"))
    shutil.copy(of.file("c-1"), tmp_path / "app.c")
    compiled(tmp_path / "app.c", tmp_path / "app")
    (tmp_path / "tests").symlink_to(root / "tests")
    for block in page.of("sh"):
        with subtests.test(block.first_line):
            text = script(block.text, prefix, tmp_path / "installed")
            missing = [tool for tool in ("pkg-config", "python3", "cmake") if tool in text and shutil.which(tool) is None]
            if missing:
                page.ran(block.name)
                pytest.skip(f"there is no {missing[0]}")
            (tmp_path / "block.sh").write_text(text)
            # Chores run in the checkout, all else where nothing is in its way.
            is_chore = block.text.startswith("cargo ")
            variables = {"PATH": f"{prefix / 'bin'}:{os.environ['PATH']}"}
            variables |= {} if is_chore else {"LD_LIBRARY_PATH": str(simulation_folder), "HOME": str(tmp_path)}
            run("sh", "-eux", tmp_path / "block.sh", env=variables, cwd=root if is_chore else tmp_path)
            page.ran(block.name)


@pytest.mark.parametrize(
    "text, typed",
    [
        ("bfc info        which library\n", "bfc info\n"),
        ("$ bfc run -- PROGRAM ARGS...   runs it\n", "bfc run -- ./train\n"),
        ("cargo xtask install --prefix DIR\n", "cargo xtask install --prefix '/n'\n"),
        ("cc -Wl,-rpath,DIR/lib\n", "cc -Wl,-rpath,'/p'/lib\n"),
        ("LD_PRELOAD=/path/to/x.so ./a ARGS...\n", "LD_PRELOAD='/p'/lib/x.so ./a --epochs 3\n"),
    ],
)
def test_a_block_becomes_what_is_typed(text, typed):
    assert script(text, "/p", "/n") == typed


# Named in passing: `bfc replay --find-limit`, `cargo xtask test --suite gpu`.


def spans(text):
    """The code spans of a page, without the ends of lines in them."""
    inline = [token for token in MarkdownIt().enable("table").parse(text) if token.type == "inline"]
    return [child.content for token in inline for child in token.children if child.type == "code_inline"]


def options(help):
    """The long options that a help has lines for."""
    return set(re.findall(r"^\s*(?:-\w, )?(--[a-z-]+)", help, re.MULTILINE))


@pytest.fixture(scope="session")
def helps(run, prefix, root):
    """The options of each subcommand of bfc and of each chore, by its words."""
    of_bfc = {f"bfc {name}": options(run(prefix / "bin/bfc", name, "--help")) for name in ("run", "report", "replay", "plan", "info", "diff", "top")}
    xtask = ["cargo", "run", "--quiet", "--package", "xtask", "--"]
    listed = run(*xtask, "--help", cwd=root).partition("Commands:")[2].partition("Options:")[0]
    chores = set(re.findall(r"^  (\w+)", listed, re.MULTILINE)) - {"help"}
    return of_bfc | {f"cargo xtask {name}": options(run(*xtask, name, "--help", cwd=root)) for name in chores}


@pytest.fixture(scope="session")
def suites(run, root):
    listed = run("cargo", "run", "--quiet", "--package", "xtask", "--", "test", "--list", cwd=root)
    return {line.split()[0] for line in listed.splitlines()}


def stranger(span, helps, suites):
    """What a code span names that there is not. A word in capitals stands for another."""
    start = re.match(r"(bfc|cargo xtask) ([a-z]+)", span)
    if start is None:
        return None
    if start[0] not in helps:
        return f"there is no {start[0]}"
    own = span.split(" -- ")[0].split()
    unknown = [word for word in own if word.startswith("--") and re.split(r"[=\[]", word)[0] not in helps[start[0]]]
    named = re.findall(r"--suite ([a-z-]+)", span)
    return next(iter([f"it has no {word}" for word in unknown] + [f"no suite {name}" for name in named if name not in suites]), None)


def test_commands_that_pages_name_exist(helps, suites):
    found = {path: [(span, stranger(span, helps, suites)) for span in spans(text)] for path, text in pages.pages().items()}
    assert not [f"{path}: `{span}`: {why}" for path, all in found.items() for span, why in all if why]


def of_run(page, known):
    named = {re.split("[ =]", span)[0] for span in spans(page) if span.startswith("--")}
    return sorted(known - {"--help", "--library"} - named), sorted(named - known)


def test_the_page_of_bfc_run_has_every_option_of_it(helps):
    assert of_run((pages.ROOT / "docs/run.md").read_text(), helps["bfc run"]) == ([], [])


def test_spans_and_commands_that_there_are_not_are_found():
    assert spans("A `bfc\nrun` b `c`.\n```sh\n`no`\n```\n\n    `no`\n\nA lone ` sign.\n\n| `d` |\n|--|\n| `e` |\n") == ["bfc run", "c", "d", "e"]
    known = {"bfc run": {"--limit", "--help"}, "cargo xtask test": {"--suite"}}
    told = lambda span: stranger(span, known, {"gpu"})
    assert told("bfc run --limit=3 -- x --other") is told("bfc --help") is told("cargo xtask test --suite gpu") is told("cargo xtask test --suite NAME") is None
    assert told("bfc walk") and told("bfc run --speed 3") and told("cargo xtask test --suite gpus") and told("cargo xtask tets")
    assert of_run("`--limit SIZE`", known["bfc run"]) == ([], []) and of_run("`--speed`", known["bfc run"]) == (["--limit"], ["--speed"])
