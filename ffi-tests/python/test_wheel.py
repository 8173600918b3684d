"""The package bfc as a wheel, for this system and for glibc 2.28, in clean virtual environments elsewhere."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from auditwheel import wheel_abi

import elf
import programs
from pages import Page
from programs import LIB, ROOT, SIMULATION, check, compiler, run

TESTS = ROOT / "python/tests"
OLDEST_GLIBC = (2, 28)


def plain(**more):
    """The variables of a user without settings of ours or of Python's."""
    return programs.environment(**{"LD_LIBRARY_PATH": None, "SIMCUDA_DEVICES": None} | more)


class Installed:
    """A virtual environment with a wheel, in a folder where nothing of the source is."""

    def __init__(self, folder, wheel):
        self.folder, self.wheel = folder, wheel
        run(sys.executable, "-m", "venv", folder / "venv", env=plain())
        self.python = folder / "venv/bin/python"
        run(self.python, "-m", "pip", "install", "--no-index", "--no-deps", wheel, env=plain())
        (self.package,) = folder.glob("venv/lib/python*/site-packages/bfc")
        self.lib = self.package / "_prefix/lib"

    def run(self, name, *arguments, **more):
        """A command of the environment. What shims are compiled for these tests is theirs."""
        done = subprocess.run(
            [str(word) for word in (self.folder / "venv/bin" / name, *arguments)],
            env=plain(XDG_CACHE_HOME=self.folder / "cache") | more,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


def installed(kind):
    # Another user has to be able to read it, who tries the package in one test.
    folder = programs.SCRATCH / "wheel" / kind
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = ["--manylinux"] if kind == "manylinux" else []
    # One at a time: both stage the library in the package's source.
    with programs.alone("wheel"):
        said = run("cargo", "run", "--quiet", "--package", "xtask", "--", "wheel", *options, env=dict(os.environ))
        (wheel,) = [line for line in said.splitlines() if line.endswith(".whl") and not line.startswith(" ")]
        shutil.copy(wheel, folder)
    return Installed(folder, folder / pathlib.Path(wheel).name)


@pytest.fixture(scope="module")
def of_this_system():
    return installed("linux")


@pytest.fixture(scope="module")
def of_old_systems():
    return installed("manylinux")


KINDS = [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in ("of_this_system", "of_old_systems")]
both = pytest.mark.parametrize("kind", KINDS)
this_system = pytest.mark.xdist_group("of_this_system")
old_systems = pytest.mark.xdist_group("of_old_systems")


@both
def test_the_packages_own_tests(kind, request):
    said = request.getfixturevalue(kind).run("python", "-m", "unittest", "discover", "--start-directory", TESTS)
    # Some are for an installed package only, and this is one: none is skipped.
    assert said.splitlines()[-1] == "OK", said


@both
def test_bfc_run_on_the_simulated_driver(kind, request):
    installed = request.getfixturevalue(kind)
    said = installed.run("bfc", "run", "--check", "--", installed.python, TESTS / "interposed.py", LD_LIBRARY_PATH=str(SIMULATION))
    assert "interposition took hold" in said and str(installed.lib / "libbfc.so.0") in said, said


def wrong(package, lib, oldest=None):
    """What the libraries of a wheel are not: files and no links, for old systems, and with the system's unwinder."""
    libraries = [lib / "libbfc.so.0", lib / "libbfc_preload.so", package / "shims/torch_alloc.so"]
    libraries += sorted(package.glob("shims/prebuilt/torch-*/*.so"))
    found = [f"{path.name} is no file" for path in libraries if path.is_symlink() or not path.is_file()]
    if oldest:
        found += [f"{path.name} needs glibc {elf.too_new_glibc(path, oldest)}" for path in libraries if elf.too_new_glibc(path, oldest)]
    if "libgcc_s.so.1" not in elf.needed(libraries[0]):
        found.append("it has an unwinder of its own: a C++ exception could not pass through it")
    if (lib / "libbfc.so").read_text().splitlines()[-1] != "INPUT(libbfc.so.0)":
        found.append("libbfc.so does not lead the linker to the library")
    return found


@this_system
def test_its_libraries_are_files(of_this_system):
    assert not wrong(of_this_system.package, of_this_system.lib)


@old_systems
def test_its_libraries_run_on_old_systems(of_old_systems):
    assert not wrong(of_old_systems.package, of_old_systems.lib, OLDEST_GLIBC)
    # PyTorch's library is there where its shims are used. `auditwheel show` has no option for that, `repair` has.
    arguments = dict(disable_isa_ext_check=False, allow_graft=False)
    found = wheel_abi.analyze_wheel_abi(None, None, of_old_systems.wheel, frozenset({"libc10.so"}), **arguments)
    assert found.overall_policy.name.startswith("manylinux_2_28_"), found


@old_systems
def test_the_libraries_of_this_system_would_be_found_out(of_old_systems, tmp_path):
    shutil.copytree(of_old_systems.package, tmp_path / "bfc")
    shutil.copy(LIB / "libbfc.so.0", tmp_path / "bfc/_prefix/lib")
    assert wrong(tmp_path / "bfc", tmp_path / "bfc/_prefix/lib", OLDEST_GLIBC)


@old_systems
def test_a_cpp_exception_passes_through_the_library(of_old_systems, tmp_path):
    # zig would have replaced the unwinder.
    prefix = of_old_systems.package / "_prefix"
    command = [compiler("cpp"), "-std=c++17", TESTS / "unwinding.cpp", "-I", prefix / "include", "-L", prefix / "lib"]
    check([*command, "-lbfc", f"-Wl,-rpath,{prefix / 'lib'}", "-o", tmp_path / "unwinding"])
    run(tmp_path / "unwinding", env=plain(BFC_BACKEND="host", BFC_MEMORY_LIMIT="64M"))


@this_system
def test_the_examples_in_docstrings(of_this_system):
    of_this_system.run("python", TESTS / "doctests.py")


@this_system
def test_the_python_of_the_page(of_this_system):
    page = Page("python")
    program = page.folder / "program.py"
    page.folder.mkdir(parents=True, exist_ok=True)
    program.write_text("\n".join(block.text for block in page.of("python")))
    of_this_system.run("python", program)
    for block in page.of("python"):
        page.ran(block.name)


@this_system
def test_the_commands_of_the_page(of_this_system, tmp_path):
    page = Page("python")
    shutil.copy(TESTS / "interposed.py", of_this_system.folder / "train.py")
    path = f"{of_this_system.folder / 'venv/bin'}:{os.environ['PATH']}"
    for block in page.of("sh"):
        done = subprocess.run(
            ["sh", "-e", page.file(block.name)], cwd=of_this_system.folder, env=plain(PATH=path, LD_LIBRARY_PATH=SIMULATION)
        )
        assert done.returncode == 0, block.text
        page.ran(block.name)


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    cache = tmp_path_factory.mktemp("mypy")
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", cache]

    def mypy(*arguments, cwd):
        done = subprocess.run([str(word) for word in (*command, *arguments)], cwd=cwd, env=plain(), capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return mypy


def test_mypy_strict(mypy):
    status, said = mypy("--package", "bfc", cwd=ROOT / "python/src")
    assert status == 0, said


@this_system
def test_mypy_finds_a_programs_mistake_by_py_typed(of_this_system, mypy, tmp_path):
    (tmp_path / "typed.py").write_text("import bfc\n\naddress: str = bfc.alloc(0, 1)\n")
    _, said = mypy("--python-executable", of_this_system.python, tmp_path / "typed.py", cwd=tmp_path)
    assert 'Incompatible types in assignment (expression has type "int"' in said
