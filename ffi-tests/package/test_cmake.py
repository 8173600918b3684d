"""What CMake's `find_package(bfc ...)` accepts and refuses, and what it leads to."""

import re

import pytest

from build import HERE, PROBE, ROOT, VERSION, cmake_build, configure, run

MAJOR, MINOR, PATCH = map(int, VERSION.split("."))
ACCEPTED = ["", f"{MAJOR}", f"{MAJOR}.{MINOR}", f"{VERSION} EXACT", f"{VERSION}...{MAJOR}.{MINOR + 1}", "COMPONENTS static"]
REFUSED = [
    f"{MAJOR}.{MINOR}.{PATCH + 1}",
    f"{MAJOR}.{MINOR + 1}",
    f"{MAJOR + 1}.0",
    f"{MAJOR}.{MINOR} EXACT COMPONENTS nothing",
    f"{MAJOR}.{MINOR + 1}...{MAJOR}.99",
    # Below 1.0 a minor version may break things.
    *([f"0.{MINOR - 1}"] if MAJOR == 0 and MINOR > 0 else []),
]
EXAMPLES = [path for language in ("c", "cpp") for path in sorted((ROOT / "examples" / language).glob(f"*.{language}"))]


def find(tree, words, folder, status):
    return configure(HERE / "find", folder, tree, f"WORDS={words.replace(' ', ';')}", status=status)


@pytest.mark.parametrize("words", ACCEPTED)
def test_accepted(words, prefix, tmp_path):
    said = find(prefix, words, tmp_path, 0)
    assert f"-- found bfc {VERSION} in {prefix}/lib/cmake/bfc\n" in said


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words, prefix, tmp_path):
    status, said = find(prefix, words, tmp_path, None)
    assert status != 0
    # A refusal counts only if this package caused it. One because nothing was found proves nothing.
    assert f"{prefix}/lib/cmake/bfc/bfcConfig.cmake, version: {VERSION}" in said or "libbfc has no component" in said


def test_the_interposer(tree, tmp_path):
    assert f"-- interposer {tree}/lib/libbfc_preload.so\n" in find(tree, "", tmp_path, 0)


@pytest.fixture(scope="module")
def probes(tree, tmp_path_factory):
    return cmake_build(HERE / "find", tmp_path_factory.mktemp("probes"), tree)


@pytest.mark.parametrize("target", ["bfc", "static"])
def test_a_program_with_each_target(target, probes):
    assert run(probes / f"probe_{target}").split() == [VERSION, VERSION]


@pytest.mark.parametrize("libdir", ["lib", "lib64"])
def test_an_installed_program_with_the_library_beside_it(libdir, tree, tmp_path):
    """The project of docs/install.md."""
    source, prefix = tmp_path / "source", tmp_path / "prefix"
    source.mkdir()
    (project,) = re.findall(r"```cmake\n(cmake_minimum_required.*?)```", (ROOT / "docs/install.md").read_text(), re.DOTALL)
    (source / "CMakeLists.txt").write_text(project)
    (source / "app.c").write_text(PROBE.read_text())
    built = cmake_build(source, tmp_path / "build", tree, f"CMAKE_INSTALL_LIBDIR={libdir}")
    run("cmake", "--install", built, "--prefix", prefix)
    assert run(prefix / "bin/app").split() == [VERSION, VERSION]
    # It is the copy that was loaded, and not a link to the tree.
    soname = (prefix / libdir).glob("libbfc.so.?")
    assert [path.resolve().parent for path in soname] == [prefix / libdir]


@pytest.fixture(scope="module")
def examples(tree, tmp_path_factory):
    """The installed examples, built as README says: with the copy below the prefix, and nothing of the source."""
    return cmake_build(tree / "share/bfc/examples", tmp_path_factory.mktemp("examples"), tree)


@pytest.mark.parametrize("source", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_examples(source, examples):
    # They end with 0 if what they show is so.
    run(examples / f"example_{source.parent.name}_{source.stem}")


def test_the_runtime_among_the_examples(examples):
    assert "two threads: 100 steps\n" in run(examples / "example_runtime")
