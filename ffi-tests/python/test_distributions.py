"""What goes to registries: the sdist, the wheel that is built from it, and the crates.

They fetch hatchling and crates.
"""

from __future__ import annotations

import email
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile

import pytest

from programs import QUICK_BUILD, environment

# Beside the wheel for old systems, which takes as long.
pytestmark = pytest.mark.xdist_group("of_this_system")
ROOT = pathlib.Path(__file__).parents[2]
MANIFEST = (ROOT / "Cargo.toml").read_text()
LICENCES = ["LICENSE-APACHE", "LICENSE-MIT"]
# The command is in the distribution, and in no crate.
ALL_LICENCES = [*LICENCES, "LICENSE-THIRD-PARTY"]


def run(*command: object, cwd: pathlib.Path = ROOT, code: int = 0, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment(**{"LD_LIBRARY_PATH": None} | (env or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}"
    return done.stdout


@functools.cache
def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder outside of the checkout, which goes with the process."""
    return tempfile.TemporaryDirectory(prefix="libbfc-distributions-")


@functools.cache
def python() -> pathlib.Path:
    """The interpreter of a clean virtual environment."""
    folder = pathlib.Path(scratch().name, "venv")
    venv.create(folder, with_pip=True)
    return folder / "bin/python"


@functools.cache
def sdist() -> pathlib.Path:
    run(python(), "-m", "pip", "install", "build==1.6.1")
    folder = pathlib.Path(scratch().name, "sdist")
    run(python(), "-m", "build", "--sdist", "--outdir", folder)
    (found,) = folder.iterdir()
    return found


@functools.cache
def wheel() -> pathlib.Path:
    """Built from the sdist, where there is no checkout and no git. Not optimised: what is in it matters here."""
    folder = pathlib.Path(scratch().name)
    git = folder / "git/git"
    git.parent.mkdir()
    git.write_text(f"#!/bin/sh\necho \"$@\" >>{folder}/git/called\nexit 1\n")
    git.chmod(0o755)
    # All times in an sdist are the same, by which cargo would take what it built of another one for new.
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"), "python/sdist")
    stamp, content = target / "sdist.sha256", hashlib.sha256(sdist().read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != content:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        stamp.write_text(content)
    options = {
        "PATH": f"{git.parent}:{os.environ['PATH']}",
        "CARGO_TARGET_DIR": str(target),
    } | QUICK_BUILD
    run(python(), "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder / "wheel", sdist(), cwd=folder, env=options)
    assert not (folder / "git/called").exists()
    (found,) = (folder / "wheel").iterdir()
    return found


def metadata(text: bytes) -> email.message.Message:
    found = email.message_from_bytes(text)
    (version,) = re.findall(r'^version = "(.+)"$', MANIFEST, re.MULTILINE)
    assert (found["Name"], found["Version"]) == ("libbfc", version)
    assert found["License-Expression"] == "(Apache-2.0 OR MIT) AND Apache-2.0 AND ISC AND MIT AND Zlib"
    assert found.get_all("License-File") == ALL_LICENCES
    assert found["Requires-Python"] == ">=3.10"
    urls = re.findall(r'^(repository|homepage|documentation) = "(.+)"$', MANIFEST, re.MULTILINE)
    assert found.get_all("Project-URL", []) == [f"{name.capitalize()}, {url}" for name, url in urls]
    for minor in range(10, 15):
        assert f"Programming Language :: Python :: 3.{minor}" in found.get_all("Classifier", [])
    return found


def test_without_cargo_pip_fails_at_once_and_fetches_nothing(tmp_path: pathlib.Path) -> None:
    command = [python(), "-m", "pip", "install", "--no-index", ROOT]
    start = time.monotonic()
    # Without an index it would fail otherwise if anything were to be fetched.
    said = run(*command, code=1, env={"PATH": str(tmp_path), "PIP_CONFIG_FILE": os.devnull})
    seconds = time.monotonic() - start
    assert "cannot build without cargo, which is not on the PATH: install Rust, see https://rustup.rs" in said
    assert seconds < 5, f"{seconds:.1f} s"


@pytest.mark.parametrize("options", [[], ["--editable"]], ids=["wheel", "editable"])
def test_pip_learns_the_metadata_without_a_build(tmp_path: pathlib.Path, options: list[str]) -> None:
    cargo, report = tmp_path / "bin/cargo", tmp_path / "report.json"
    cargo.parent.mkdir()
    cargo.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\nexit 1\n")
    cargo.chmod(0o755)
    command = [python(), "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--report", report, *options, ROOT]
    run(*command, env={"PATH": f"{cargo.parent}:{os.environ['PATH']}"})
    assert not (tmp_path / "called").exists()
    (found,) = json.loads(report.read_text())["install"]
    (version,) = re.findall(r'^version = "(.+)"$', MANIFEST, re.MULTILINE)
    assert (found["metadata"]["name"], found["metadata"]["version"]) == ("libbfc", version)
    assert len(found["metadata"]["project_url"]) == 3


def test_the_sdist_is_the_source() -> None:
    with tarfile.open(sdist()) as archive:
        (root,) = {name.split("/")[0] for name in archive.getnames()}
        names = {name.split("/", 1)[1] for name in archive.getnames()}
        file = archive.extractfile(f"{root}/PKG-INFO")
        assert file is not None
        metadata(file.read())
    assert {"Cargo.toml", "Cargo.lock", "pyproject.toml", "xtask/src/main.rs", "crates/cuda-sys/LICENSE-MIT", "crates/os/LICENSE-MIT"} <= names
    assert not [name for name in names if name.startswith(("target/", ".git/")) or "/_prefix/" in name]


def test_a_wheel_is_built_from_the_sdist_without_git() -> None:
    with zipfile.ZipFile(wheel()) as archive:
        names = archive.namelist()
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        metadata(archive.read(f"{info}/METADATA"))
        for name in ALL_LICENCES:
            assert archive.read(f"{info}/licenses/{name}") == (ROOT / name).read_bytes()
    run(python(), "-m", "pip", "install", "--no-index", wheel())
    folder = pathlib.Path(scratch().name)
    said = run(folder / "venv/bin/bfc", "info", cwd=folder)
    assert str(folder / "venv/lib") in said, said


def test_the_wheel_works_with_each_python_that_is_there() -> None:
    """With pyenv: PYENV_VERSION=3.10.13:3.12.1 and so on."""
    tried = []
    for name in [f"python3.{minor}" for minor in range(10, 16)]:
        found = shutil.which(name)
        if found is None or subprocess.run([found, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode:
            continue
        folder = pathlib.Path(scratch().name, name)
        run(found, "-m", "venv", folder)
        run(folder / "bin/python", "-m", "pip", "install", "--no-index", wheel())
        tests = ["unittest", "discover", "--start-directory", ROOT / "python/tests"]
        run(folder / "bin/python", "-m", *tests, cwd=folder, env={"XDG_CACHE_HOME": str(folder / "cache")})
        tried.append(name)
    print(*tried)
    assert tried


def test_a_package_that_bfc_of_pypi_has_replaced_is_reported() -> None:
    run(python(), "-m", "pip", "install", "--no-index", "--force-reinstall", wheel())
    folder = pathlib.Path(scratch().name)
    module = [python(), "-m", "bfc", "info"]
    run(*module, cwd=folder)
    (init,) = folder.glob("venv/lib/python3*/site-packages/bfc/__init__.py")
    for replaced in ["__version__ = '0.1.0'\n", None]:
        init.unlink()
        if replaced is not None:
            init.write_text(replaced)
        for command in (module, [python(), "-c", "import bfc.torch"]):
            assert "run `pip uninstall bfc`" in run(*command, cwd=folder, code=1)


def test_the_crates_are_packaged_and_build_outside_of_the_checkout(tmp_path: pathlib.Path) -> None:
    internal = ("cuda-sys", "os", "hostmem", "formats", "core", "sys")
    packages = ["--package=libbfc", *(f"--package=libbfc-{name}" for name in internal)]
    run("cargo", "package", *packages, "--allow-dirty", "--target-dir", tmp_path)
    by_cargo = {".cargo_vcs_info.json", "Cargo.toml", "Cargo.toml.orig", "Cargo.lock"}
    for name, most in [
        ("libbfc", {"src", "include", "examples", "build.rs", "CHANGELOG.md"}),
        ("libbfc-cuda-sys", {"src", "tests"}),
        ("libbfc-os", {"src"}),
        ("libbfc-hostmem", {"src"}),
        ("libbfc-formats", {"src"}),
        ("libbfc-core", {"src"}),
        ("libbfc-sys", {"src"}),
    ]:
        (crate,) = (tmp_path / "package").glob(f"{name}-[0-9]*.crate")
        with tarfile.open(crate) as archive:
            found = {member.name.split("/")[1] for member in archive if member.isfile()}
            archive.extractall(tmp_path / "unpacked", filter="data")
        assert found - by_cargo == most | {"README.md", *LICENCES}

    # The examples in the documentation and the example program, from what was packed alone: each crate for the registry's.
    (library,) = (tmp_path / "unpacked").glob("libbfc-[0-9]*")
    names = [f"libbfc-{name}" for name in internal]
    folders = {name: next((tmp_path / "unpacked").glob(f"{name}-[0-9]*")) for name in names}
    patches = [f'--config=patch.crates-io.{name}.path="{folder}"' for name, folder in folders.items()]
    options = ["--offline", "--target-dir", tmp_path / "unpacked/target"]
    features = "--features=allocator-api2,serde"
    passed = run("cargo", "test", "--doc", features, *patches, *options, cwd=library)
    assert re.search(r"test result: ok\. [1-9]\d* passed", passed)
    assert "bytes would fit" in run("cargo", "run", "--quiet", "--example", "allocate", *patches, *options, cwd=library)
