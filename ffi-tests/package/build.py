"""Building against an installed tree, as a client without cargo does."""

import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
PROBE = HERE / "probe.c"
BIN = pathlib.Path(sys.executable).parent


def run(*command, status=0, **environment):
    """Runs a program to its end: all that it says. `status` None accepts every one, and gives it too."""
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"} | {name: str(value) for name, value in environment.items()}
    command = [str(word) for word in command]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert status is None or done.returncode == status, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout if status is not None else (done.returncode, done.stdout)


def compile(source, program, flags):
    """Compiles a program in C: its path."""
    warnings = "-std=c11 -Wall -Wextra -Wpedantic -Werror".split()
    run(os.environ.get("CC") or "cc", *warnings, source, "-o", program, *flags)
    return program


def configure(source, folder, tree, *defines, status=0):
    """Configures a CMake project that looks for the package in a tree: what CMake says."""
    # The programs' own assertions are what it is about.
    defines = [f"-D{define}" for define in (f"CMAKE_PREFIX_PATH={tree}", "CMAKE_BUILD_TYPE=Debug", *defines)]
    return run("cmake", "-S", source, "-B", folder, "-G", "Ninja", *defines, status=status)


def cmake_build(source, folder, tree, *defines):
    """Configures such a project and builds it: the folder of its programs."""
    configure(source, folder, tree, *defines)
    run("cmake", "--build", folder)
    return folder
