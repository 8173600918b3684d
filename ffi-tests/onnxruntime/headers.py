"""Fetches ONNX Runtime's C headers, which its wheel does not carry: of two versions, each from a package that has them. What
was fetched before is not fetched again. Each header is the one whose hash is below.
"""

import contextlib
import hashlib
import io
import lzma
import os
import pathlib
import tarfile
import urllib.request

NPM = "https://registry.npmjs.org/com.github.asus4.onnxruntime/-/com.github.asus4.onnxruntime-0.4.9.tgz"
# It has them for iOS, where they are the same. What follows them, 110 of 150 MB, is not read.
NPM_FOLDER = "package/Plugins/iOS~/onnxruntime.xcframework/ios-arm64_x86_64-simulator/onnxruntime.framework/Headers/"
DEBIAN = "https://deb.debian.org/debian/pool/main/o/onnxruntime/libonnxruntime-dev_1.21.0+dfsg-1_amd64.deb"
DEBIAN_FOLDER = "./usr/include/onnxruntime/"

HASHES = {
    "29": {
        "onnxruntime_c_api.h": "acc0cf4b3f28d39339c76770d76164bb7a0637dc89f5fde764b4017b632f6743",
        "onnxruntime_ep_c_api.h": "e6c986c9e98583f8113b2c6bc3864814883b806d501cf24da4d239c45753e235",
        "onnxruntime_error_code.h": "5ce3b054e798eced8d14f5b86e98692fd33470463f96194ce0700a2d53dd8721",
    },
    "21": {
        "onnxruntime_c_api.h": "7783e9664bdb0b1b36145b5c8587dd1bc9a399aa000edf2e3dd03003cafc6882",
    },
}


def from_npm(names):
    """The files of that name, out of a compressed tar that is read as far as needed."""
    found = {}
    with urllib.request.urlopen(NPM, timeout=60) as response, tarfile.open(fileobj=response, mode="r|gz") as files:
        for file in files:
            name = file.name.removeprefix(NPM_FOLDER)
            if name in names:
                found[name] = files.extractfile(file).read()
            if len(found) == len(names):
                return found
    raise LookupError(f"{NPM} has only {sorted(found)}")


def from_debian(names):
    """The same out of a Debian package: an ar archive of tars."""
    with urllib.request.urlopen(DEBIAN, timeout=60) as response:
        package = response.read()
    at = len(b"!<arch>\n")
    while not package[at:].startswith(b"data.tar.xz"):
        size = int(package[at + 48 : at + 58])
        at += 60 + size + size % 2
    size = int(package[at + 48 : at + 58])
    data = lzma.decompress(package[at + 60 : at + 60 + size])
    with tarfile.open(fileobj=io.BytesIO(data)) as files:
        return {name: files.extractfile(DEBIAN_FOLDER + name).read() for name in names}


def is_whole(folder, hashes):
    with contextlib.suppress(OSError):
        return all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == hashes[name] for name in hashes)
    return False


def fetch(folder, hashes, source):
    if is_whole(folder, hashes):
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in source(hashes.keys()).items():
        found = hashlib.sha256(content).hexdigest()
        if found != hashes[name]:
            # No lack of anything: it ends the program, and the suite.
            raise RuntimeError(f"{name} is another one than it was: its SHA-256 is {found}")
        # Another process may do the same.
        written = folder / f".{name}.{os.getpid()}"
        written.write_bytes(content)
        written.rename(folder / name)


def found(folder):
    """Where the headers of each version are, by the number of the API, or the error by which they cannot be had."""
    versions = {}
    for version, source in {"29": from_npm, "21": from_debian}.items():
        try:
            fetch(folder / version, HASHES[version], source)
            versions[version] = folder / version
        except (OSError, EOFError, LookupError, tarfile.TarError, ValueError) as error:
            versions[version] = error
    return versions
