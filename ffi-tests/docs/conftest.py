"""How the code of pages is compiled and run: with the installed library, and without what the user has set."""

import os
import subprocess

import pytest

COMPILERS = {"c": ("CC", "cc", "-std=c11"), "cpp": ("CXX", "c++", "-std=c++17")}


@pytest.fixture(scope="session")
def plain():
    """The variables of a program of a reader's."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("BFC_", "SIMCUDA_", "LD_"))}


@pytest.fixture(scope="session")
def run(plain):
    """Runs a command, which has to end well; what it prints."""

    def run(*command, env=(), cwd=None):
        done = subprocess.run(
            [str(word) for word in command],
            env=plain | dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"status {done.returncode}:\n{done.stdout}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def compiled(run, prefix):
    """Compiles a file against the installed library; the program."""

    def compiled(source, program, *more):
        variable, name, standard = COMPILERS[source.suffix[1:]]
        lib = prefix / "lib"
        command = [os.environ.get(variable) or name, standard, *"-Wall -Wextra -Wpedantic -Werror".split(), source]
        run(*command, "-I", prefix / "include", "-L", lib, "-lbfc", f"-Wl,-rpath,{lib}", *more, "-o", program)
        return program

    return compiled
