"""The code on the pages that no framework is needed for, and the tables of pages."""

import json
import re
import shutil
import sys

import pytest

import pages
import programs
from pages import Page, blocks

OWN = pages.of_folder("docs")
RUN_HERE = {"c", "cpp", "rust", "python", "cmake", "sh", "json"}
BLOCKS = [(page, block) for page in OWN for block in page.blocks]


def each(*languages):
    found = [(page, block) for page, block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("page, block", found, ids=[f"{page.path}-{block.name}" for page, block in found])


@each("c", "cpp")
def test_compiled(page, block, compiled, run, tmp_path):
    # A program may write into its folder.
    run(compiled(page.file(block.name), tmp_path / "program"), cwd=tmp_path)
    page.ran(block.name)


@each("rust")
def test_rust(page, block, run, root, prefix, tmp_path):
    # In a project of its own, as the page says; with the versions of this workspace, so that nothing is fetched.
    crate = f'libbfc-sys = {{ path = "{root}/crates/bfc-sys" }}' if "bfc_sys" in block.text else f'libbfc = {{ path = "{root}" }}'
    manifest = f'[package]\nname = "page"\nedition = "2024"\n\n[dependencies]\n{crate}\n\n[workspace]\n'
    (tmp_path / "src").mkdir()
    (tmp_path / "Cargo.toml").write_text(manifest)
    (tmp_path / "src/main.rs").write_text(block.text)
    shutil.copy(root / "Cargo.lock", tmp_path)
    target = pages.SCRATCH / "cargo"
    variables = {"CARGO_INCREMENTAL": "0", "CARGO_PROFILE_DEV_DEBUG": "false"}
    # Where the linker and the loader find what bfc-sys does not bring along.
    variables |= {name: str(prefix / "lib") for name in ("LIBRARY_PATH", "LD_LIBRARY_PATH")}
    run("cargo", "run", "--offline", "--quiet", "--target-dir", target, env=variables, cwd=tmp_path)
    page.ran(block.name)


@each("python")
def test_python(page, block, run, prefix, root):
    variables = {"PYTHONPATH": str(root / "python/src"), "BFC_LIBRARY": str(prefix / "lib")}
    run(sys.executable, page.file(block.name), env=variables)
    page.ran(block.name)


@each("cmake")
def test_cmake(page, block, run, prefix, root, tmp_path):
    # A project around the lines of the page, unless they are one, with the page's first program in C.
    head = "" if "project(" in block.text else "cmake_minimum_required(VERSION 3.20)\nproject(page C)\nadd_executable(app app.c)\n"
    (tmp_path / "CMakeLists.txt").write_text(f"{head}{block.text}")
    (tmp_path / "app.c").symlink_to(page.file("c-1"))
    (tmp_path / "libbfc").symlink_to(root)
    options = [f"-DCMAKE_PREFIX_PATH={prefix}", f"-DBFC_CARGO_TARGET_DIR={programs.CMAKE_CARGO}"]
    run("cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build", *options)
    run("cmake", "--build", tmp_path / "build", env=programs.QUICK_BUILD)
    run(tmp_path / "build/app")
    page.ran(block.name)


LOGGED = {"BFC_LOG": "error", "BFC_REPORT_ON_FAILURE": "1"}
GUARDED = {"BFC_LOG": "error", "BFC_DEBUG": "guard"}


@pytest.mark.parametrize(
    "name, program, variables, block",
    [
        ("api", "c-1", {}, "text-1"),
        ("api", "c-2", {}, "text-2"),
        ("framework", "c-5", {}, "text-1"),
        ("framework", "c-6", {}, "text-2"),
        ("memory-map", "c-1", {}, "json-1"),
        ("reports", "c-1", {}, "text-1"),
        ("reports", "c-1", LOGGED, "text-3"),
        ("reports", "c-2", GUARDED, "text-5"),
    ],
)
def test_a_program_prints_what_its_page_shows(name, program, variables, block, compiled, run, tmp_path):
    page = Page(name)
    printed = run(compiled(page.file(program), tmp_path / "program"), env=variables)
    shown = page.text(block)
    if block.startswith("json"):
        assert shape(json.loads(printed)) == shape(json.loads(shown))
        page.ran(block)
    else:
        assert words(shown) in words(printed)


def test_the_report_is_what_the_page_of_the_history_shows(compiled, run, prefix, tmp_path):
    page = Page("history")
    run(compiled(page.file("c-1"), tmp_path / "program"), cwd=tmp_path)
    report = [prefix / "bin/bfc", "report", "program.history"]
    without = lambda text: re.sub(r"process \d+|\d+\.\d+ s", "", text).split()
    assert without(run(*report, cwd=tmp_path)) == without(page.text("text-1"))
    advice = run(*report, "--advice", cwd=tmp_path).partition("what would have helped")
    assert without("".join(advice[1:])) == without(page.text("text-2"))


def words(text):
    """The words of a text, without addresses, and without what the library's own tables take."""
    lines = [line for line in text.splitlines() if "allocator metadata" not in line]
    plain = lambda word: "0x" + word[2:].lstrip("0123456789abcdef") if word.startswith("0x") else word
    return " ".join(plain(word) for line in lines for word in line.split())


def shape(value, path=""):
    """The fields of a value and their kinds, at each place; of arrays those of all elements together."""
    if isinstance(value, dict):
        return set().union(*(shape(inner, f"{path}.{name}") for name, inner in value.items()))
    if isinstance(value, list):
        return set().union(*(shape(inner, f"{path}[]") for inner in value))
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return {f"{path}: {'a number' if number else 'a string' if isinstance(value, str) else value}"}


# The tables.


def wrong(texts, owners=pages.OWNERS, exceptions=pages.EXCEPTIONS):
    found = [f"{path} has an owner and is not there" for path in owners if path not in texts]
    for path, text in texts.items():
        if path not in owners:
            left = [block for block in blocks(text) if block.language not in RUN_HERE | {"text"} and (path, block.first_line) not in exceptions]
            found += [f"{path}:{block.line}: nothing runs {block.language}" for block in left]
    for (path, first_line), why in exceptions.items():
        if [block.first_line for block in blocks(texts.get(path, ""))].count(first_line) != 1:
            found.append(f"{path}: not one block begins with `{first_line}`")
        if len(why.split()) < 3:
            found.append(f"{path}: `{first_line}` is excepted without a reason")
    return found


def test_every_page_has_tests_that_run_its_code():
    assert not wrong(pages.pages())


def test_an_owner_without_a_page_code_that_nothing_runs_and_a_stale_exception_are_found():
    texts = {"a.md": "```cuda\nx\n```\n```c\n```\n", "b.md": "```cuda\nx\n```\n"}
    exceptions = {("a.md", "y"): "it is a picture", ("a.md", "x"): "why"}
    found = wrong(texts, {"b.md": "cupy", "c.md": "cupy"}, exceptions)
    assert len(found) == 3, found
    assert wrong(texts, {"b.md": "cupy"}, {}) == ["a.md:2: nothing runs cuda"]


PAGE = """# Title

    bfc info
    BFC_LOG=info bfc info

words

    some: output

```c
int x;

int y;
```
- item

  ```sh
  cc a.c
    more
  ```

words
    no block

```
+--+
```
"""


def test_blocks_are_found_with_their_languages():
    found = blocks(PAGE)
    assert [f"{block.name} {block.line}" for block in found] == ["sh-1 3", "text-1 8", "c-1 11", "sh-2 18", "text-2 26"]
    assert found[0].text == "bfc info\nBFC_LOG=info bfc info\n"
    assert found[2].text == "int x;\n\nint y;\n" and found[3].text == "cc a.c\n  more\n"


@pytest.mark.parametrize(
    "text, language",
    [
        ("bfc run -- ./a", "sh"),
        ("LD_PRELOAD=x ./train", "sh"),
        ("DIR/bin/bfc info", "sh"),
        ("$ ./app", "sh"),
        ("#include <bfc.h>", "c"),
        ("import torch", "python"),
        ("bfc: check: it did not", "text"),
        ("limit = 3", "text"),
    ],
)
def test_code_that_names_no_language_is_code_all_the_same(text, language):
    assert blocks(f"```\n{text}\n```\n")[0].language == language


def test_code_that_was_not_run_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "SCRATCH", tmp_path)
    page = Page("api")
    assert len(page.not_run()) == len(page.blocks) > 1
    page.ran("c-1")
    assert len(page.not_run()) == len(page.blocks) - 1
    page.forget()
    assert len(page.not_run()) == len(page.blocks)


def test_shapes_and_words_that_differ_are_found():
    assert shape({"a": 1, "b": [{"c": "x"}]}) == shape({"a": 2, "b": [{"c": "y"}, {"c": "z"}]})
    assert shape({"a": 1}) != shape({"a": "1"}) and shape({"a": None}) != shape({})
    assert words("at 0xabc (b c)\n") in words("a\nat 0x7f12 (b\nc)\n")
    assert words("at 0xabc (b c)\n") not in words("at 0x7f12 (b d)\n")
