"""``python -m bfc``: the ``bfc`` command that was installed with this package."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import shutil
import sys

# Raises where another distribution has replaced a part of the package.
from . import _library as _library


def _command() -> pathlib.Path | None:
    """Returns the command of this package, else one next to the library, else the first on the PATH."""
    try:
        for file in importlib.metadata.files("libbfc") or []:
            if file.name == "bfc" and file.parent.name == "bin":
                return pathlib.Path(str(file.locate())).resolve()
    except importlib.metadata.PackageNotFoundError:
        pass
    from . import library_path

    library = library_path()
    beside = [library.parent / "bfc", library.parent.parent / "bin" / "bfc"]
    found = shutil.which("bfc")
    candidates = [*beside, *([pathlib.Path(found)] if found else [])]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def main() -> None:
    """Replaces this process by the command."""
    command = _command()
    if command is None:
        sys.exit("python -m bfc: the bfc command was not found; pip install -v . in libbfc's source")
    os.execv(command, ["bfc", *sys.argv[1:]])


if __name__ == "__main__":
    main()
