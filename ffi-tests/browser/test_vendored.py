"""The vendored libraries are npm's, and their licences come with the command."""

import hashlib
import io
import json
import tarfile
import urllib.error
import urllib.request

import pytest

import programs

VENDOR = programs.ROOT / "crates/cli/assets/report/vendor"
PACKAGES = json.loads((VENDOR / "packages.json").read_text())


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def test_each_vendored_file_is_the_listed_one():
    listed = {name.rpartition("/")[2]: wanted for package in PACKAGES.values() for name, wanted in package["files"].items()}
    there = {path.name: sha256(path.read_bytes()) for path in VENDOR.iterdir() if path.name != "packages.json"}
    assert there == listed


def test_the_scripts_are_not_minified():
    # A distribution takes no script without its source.
    longest = {path.name: max(map(len, path.read_text().splitlines())) for path in VENDOR.glob("*.js")}
    assert longest and max(longest.values()) < 1000, longest


@pytest.mark.parametrize("package", PACKAGES)
def test_the_listed_files_are_those_of_npm(package):
    version, files = PACKAGES[package]["version"], PACKAGES[package]["files"]
    url = f"https://registry.npmjs.org/{package}/-/{package}-{version}.tgz"
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            archive = tarfile.open(fileobj=io.BytesIO(response.read()))
    except urllib.error.HTTPError:
        raise
    except OSError as error:
        pytest.skip(f"npm's registry cannot be reached: {error}")
    found = {name: sha256(archive.extractfile(f"package/{name}").read()) for name in files}
    assert found == files
    paragraphs = archive.extractfile("package/LICENSE").read().decode().strip().split("\n\n")
    # Debian's format has a dot for an empty line.
    ours = " ".join(word for word in (programs.ROOT / "LICENSE-THIRD-PARTY").read_text().split() if word != ".")
    missing = [" ".join(paragraph.split()) for paragraph in paragraphs if " ".join(paragraph.split()) not in ours]
    assert set(missing) <= {"The MIT License (MIT)"}


def test_the_licences_are_installed(prefix):
    installed = prefix / "share/doc/bfc/LICENSE-THIRD-PARTY"
    assert installed.read_text() == (programs.ROOT / "LICENSE-THIRD-PARTY").read_text()
