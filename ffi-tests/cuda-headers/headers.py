"""NVIDIA's own headers, from its wheels, and a compiler that only looks."""

import os
import pathlib
import subprocess
import sysconfig

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = pathlib.Path(sysconfig.get_path("purelib"))
HEADERS = {12: PACKAGES / "nvidia/cuda_runtime/include", 13: PACKAGES / "nvidia/cu13/include"}


def compile(*arguments):
    """Compiles C without an output: the compiler's errors."""
    command = [os.environ.get("CC") or "cc", "-fsyntax-only", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    errors = "".join(f"{line}\n" for line in done.stderr.splitlines() if "error:" in line)
    assert (done.returncode == 0) == (errors == ""), done.stderr
    return errors
