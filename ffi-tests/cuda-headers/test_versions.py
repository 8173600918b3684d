"""The headers that the others are compared with are the newest that there are."""

import importlib.metadata
import re
import subprocess
import sys

import pytest

from headers import HEADERS, ROOT

PACKAGE = "nvidia-cuda-runtime"


def test_the_newest_headers_have_the_version_that_the_list_says():
    said = re.search(r"NEWEST_HEADERS: .* = ([\d_]+);", (ROOT / "crates/cuda-sys/src/functions.rs").read_text())[1]
    version = re.search(r"^#define CUDA_VERSION (\d+)$", (HEADERS[max(HEADERS)] / "cuda.h").read_text(), re.MULTILINE)[1]
    assert version == said.replace("_", "")


def test_the_headers_are_the_newest_on_pypi():
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"PyPI does not say which is the newest: {done.stderr.strip().splitlines()[-1]}")
    newest = re.search(rf"^{PACKAGE} \((.*)\)", done.stdout, re.MULTILINE)[1]
    change = "change ffi-tests/cuda-headers/requirements.txt, crates/preload/hook-list/src/lib.rs and cuda_sys::NEWEST_HEADERS"
    assert importlib.metadata.version(PACKAGE) == newest, change
