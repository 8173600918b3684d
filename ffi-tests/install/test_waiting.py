"""What commands show while they take long, where standard error is no terminal."""

import os
import pathlib
import re
import shutil
import subprocess

# Starts a build that takes a while and fails. All else is cargo's.
CARGO = """#!/bin/sh
[ "$1" = build ] || exec {cargo} "$@"
printf '   Compiling libbfc v0.1.0\\n    Building [==>     ] 12/45: libbfc, os(build)   \\r' >&2
sleep 12
printf 'error: no room on device\\n  --> src/lib.rs:1:1\\n' >&2
exit 1
"""


def test_a_build_shows_how_far_it_is(root, tmp_path):
    subprocess.run(["cargo", "build", "--quiet", "--package", "xtask"], cwd=root, check=True)
    cargo = tmp_path / "cargo"
    cargo.write_text(CARGO.format(cargo=shutil.which("cargo")))
    cargo.chmod(0o755)
    xtask = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"), "debug/xtask")
    done = subprocess.run([xtask, "simulate", "true"], env=os.environ | {"CARGO": str(cargo)}, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert re.search(r"^ +cargo build: ([5-9]|1[01])s 12/45: libbfc, os\(build\)$", done.stderr, re.MULTILINE), done.stderr
    # What the compiler says is passed on, and what cargo says of its progress is not.
    assert "error: no room on device\n  --> src/lib.rs:1:1\n" in done.stderr and "Compiling" not in done.stderr


def test_a_python_without_venv_names_the_package_that_has_it(root, tmp_path):
    subprocess.run(["cargo", "build", "--quiet", "--package", "xtask"], cwd=root, check=True)
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    xtask = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"), "debug/xtask")
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LIBBFC_TESTS_CACHE": str(tmp_path / "cache")}
    command = [xtask, "test", "--suite", "layers"]
    said = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    # The name of the step says nothing of a remedy, as if it had failed already.
    assert "python3 -m venv failed (is Python new enough, and Debian's python3-venv installed?)" in said
