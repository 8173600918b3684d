"""Programs of Debian's packages that tests need: a browser, a server."""

import os
import shutil
import subprocess

import pytest

import programs


def executable(name, package):
    """Returns the path of a program. If it is missing, its package is installed where this process may do so: as root, with
    apt-get. Otherwise the test is skipped with the reason."""
    found = shutil.which(name)
    if found:
        return found
    hint = f"{name} is not installed (Debian: apt-get install {package})"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(hint)
    # Processes of one test run would wait for each other's dpkg, or fail.
    with programs.alone("apt-get"):
        error = "" if shutil.which(name) else _install(package)
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{hint}: {error or 'the package does not have it'}")
    return found


def _install(package):
    """Installs a package. Returns the last line of the error, if there was one."""
    install = ["install", "--yes", "--no-install-recommends", package]
    # The lists may be missing or old, which only the first attempt shows.
    for arguments in (install, ["update"], install):
        done = subprocess.run(
            ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=300", *arguments],
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if arguments is install and done.returncode == 0:
            return ""
    return (done.stderr.strip().splitlines() or [f"apt-get ended with {done.returncode}"])[-1]
