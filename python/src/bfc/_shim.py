"""Small pieces of C++ between a framework and libbfc, prebuilt or compiled when they are first needed.

They are compiled where C++ is required (an exception that PyTorch understands, a c10::Allocator, TensorFlow's symbols, ONNX
Runtime's tables), against the installed framework. The result is kept in the user's cache, under a hash of everything that it
depends on. It is built in a folder of its own, gets mode 0700 and is renamed, because a file that a group may write to is not
trusted at the next start.

A wheel by `cargo xtask wheel` has some prebuilt shims, for the tested releases of frameworks. The name of a prebuilt shim has
a hash of everything that it depends on, so one for another source or another release is never loaded.

torch_alloc is also compiled with the wheel without PyTorch, for machines with another release and without a compiler. Its
exception is declared like PyTorch's own torch::PyTorchError, by name and virtual functions. No header of PyTorch guarantees
that, so it is the last choice.

A wheel cannot contain links, so libbfc is in it once, under its SONAME: two files would be two libraries in one process.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Sequence

from . import include_dir, library_path

SOURCES = pathlib.Path(__file__).parent / "shims"
"""The sources, and the shims compiled with the wheel."""

_PREBUILT = "prebuilt"

_FLAGS = ("-shared", "-fPIC", "-O2", "-g0", "-fvisibility=hidden", "-Wl,-z,nodelete")


class ShimError(RuntimeError):
    """A shim could not be built: there is no compiler, or it failed. The message has the compiler's output."""


def build(
    name: str,
    *,
    flags: Iterable[str] = (),
    include_dirs: Iterable[os.PathLike[str] | str] = (),
    libraries: Iterable[os.PathLike[str] | str] = (),
    key: Iterable[str] = (),
    announced: str | None = None,
) -> pathlib.Path:
    """Compiles ``shims/NAME.cpp`` as a shared library, unless that was done before. Returns its path.

    It is linked with libbfc by the SONAME, so it may call all of ``bfc.h`` and ``bfc_adapters.h``: the libbfc.so that
    this process has loaded is found. The C++ compiler is ``CXX``, else ``c++``, ``g++`` or ``clang++``.

    :param flags: Additional arguments for the compiler, such as ``-std=c++17``.
    :param include_dirs: Those of the framework. That of libbfc is added.
    :param libraries: Files to link with. They are found by their SONAME at load time, so the framework must be imported
        when the shim is loaded.
    :param key: Further dependencies of the shim: the framework's version.
    :param announced: Its purpose. If it is compiled now, the logger ``bfc`` reports this in a warning before.
    :raises ShimError: what is missing, or the compiler's output.
    """
    try:
        folders = [os.fspath(folder) for folder in include_dirs]
        return _built(name, list(flags), folders, list(libraries), list(key), announced)
    except OSError as error:
        raise ShimError(f"{name} could not be compiled: {error}") from error


def _built(
    name: str,
    flags: list[str],
    include_dirs: list[str],
    libraries: list[os.PathLike[str] | str],
    key: list[str],
    announced: str | None,
) -> pathlib.Path:
    source = SOURCES / f"{name}.cpp"
    own = include_dir()
    compiler = _compiler()
    searched = [argument for folder in include_dirs for argument in ("-isystem", folder)]
    arguments = [*_FLAGS, *flags, f"-I{own}", *searched]
    linked = [os.fspath(library) for library in libraries] + [os.fspath(library_path())]
    # Machines of several kinds may share a home folder.
    about = [platform.machine(), *_about(compiler)]
    made_of = [source.read_text(encoding="utf-8"), *_headers(own), *about, *arguments, *linked, *key]
    digest = hashlib.sha256("\0".join(made_of).encode(errors="surrogateescape")).hexdigest()[:20]
    file = _folder() / f"{name}-{digest}.so"
    if not _is_ours(file):
        if announced is not None:
            _announce(name, announced, file.parent)
        _compile([*compiler, *arguments, os.fspath(source), *linked], file)
    return file


def _announce(name: str, purpose: str, folder: pathlib.Path) -> None:
    """Without a configuration Python shows a warning of a logger on stderr."""
    import logging

    is_kept = not any(os.fspath(folder) == kept.name for kept in _kept)
    until = f"once; the result is kept in {folder}" if is_kept else "in this process only: there is no cache folder to keep it in"
    logging.getLogger("bfc").warning("compiling %s.cpp for %s; this takes a few seconds, %s", name, purpose, until)


def prebuilt_file(name: str, release: str, key: Iterable[str]) -> pathlib.Path:
    """Returns the path of the prebuilt shim for a release of a framework, if there is one for exactly this source and ``key``.

    :param release: The folder's name: ``torch-2.15.0+cu132``.
    :param key: The dependencies of the shim other than its source, the headers of libbfc and the platform.
    """
    source = (SOURCES / f"{name}.cpp").read_text(encoding="utf-8")
    made_of = [source, *_headers(include_dir()), *_platform(), release, *key]
    digest = hashlib.sha256("\0".join(made_of).encode(errors="surrogateescape")).hexdigest()[:20]
    return SOURCES / _PREBUILT / release / f"{name}-{digest}.so"


def prebuilt_releases(prefix: str) -> list[str]:
    """Returns the releases with prebuilt shims whose folders have this prefix, without the prefix."""
    folders = sorted((SOURCES / _PREBUILT).glob(f"{prefix}*"))
    return [folder.name.removeprefix(prefix) for folder in folders if any(folder.glob("*.so"))]


def _platform() -> list[str]:
    """Returns the processor and the C library, whose oldest supported version is in the wheel's tag."""
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        libc = ""
    return [platform.machine(), (libc.split() or ["another C library"])[0]]


def _compiler() -> list[str]:
    """Returns the compiler with its own arguments, if CXX has any."""
    named = shlex.split(os.environ.get("CXX", ""))
    for words in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        found = shutil.which(words[0])
        if found:
            return [found, *words[1:]]
    looked = " ".join(named) + " (from CXX)" if named else "c++, g++ or clang++"
    raise ShimError(f"there is no C++ compiler: {looked} was not found; install one (Debian: apt-get install g++)")


def _about(compiler: Sequence[str]) -> list[str]:
    """Identifies the compiler. Another version at the same path is a different compiler."""
    try:
        done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ShimError(f"{compiler[0]} does not start: {error}") from None
    return [*compiler, done.stdout]


def _headers(folder: pathlib.Path) -> list[str]:
    files = [*folder.glob("bfc*.h*"), *folder.glob("bfc/*.hpp")]
    return [file.read_text(encoding="utf-8", errors="replace") for file in sorted(files) if file.is_file()]


def _folder() -> pathlib.Path:
    """Returns the user's cache. If there is none that belongs to the user alone and that libraries can be loaded from, returns a
    folder for this process."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        cache = pathlib.Path(named) if os.path.isabs(named) else pathlib.Path("~/.cache").expanduser()
        folder = cache / "libbfc" / "shims"
        # Each folder by itself, because mkdir does not apply the mode to parents that it creates.
        for made in (cache, cache / "libbfc", folder):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_loaded_from = not os.statvfs(folder).f_flag & os.ST_NOEXEC
        is_writable = os.access(folder, os.W_OK | os.X_OK, effective_ids=True)
        if is_loaded_from and is_writable and _is_private(folder.stat()):
            return folder
    # The second if a user has no home folder.
    except (OSError, RuntimeError):
        pass
    return _temporary()


def _is_private(status: os.stat_result) -> bool:
    """Returns whether only this user can have written there. Files are created by the effective user."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _is_ours(file: pathlib.Path) -> bool:
    """Returns whether it was compiled before, by this user."""
    try:
        status = file.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and _is_private(status) and status.st_size > 0


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _temporary() -> pathlib.Path:
    # It may have been removed, by a forked child that exited like a Python program, or as an old file.
    if not _kept or not os.path.isdir(_kept[-1].name):
        _kept.append(tempfile.TemporaryDirectory(prefix="bfc-shims-"))
    return pathlib.Path(_kept[-1].name)


def _compile(command: Sequence[str], file: pathlib.Path) -> None:
    """Builds it in a folder of its own first: another process may look for the file, or build it too, and an interrupted linker
    may leave files next to its output."""
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.stem}-") as folder:
        made = os.path.join(folder, file.name)
        done = subprocess.run([*command, "-o", made], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ShimError(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
        # A linker that creates its output anew (lld, mold) gives it the permissions of the umask, and a file that a group may write
        # to is not accepted the next time.
        os.chmod(made, 0o700)
        # Otherwise the file may be incomplete after a crash.
        with open(made, "rb") as written:
            os.fsync(written.fileno())
        os.rename(made, file)
