"""The package as it is installed: everything is in it and is found."""

import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import bfc
from bfc import _find

PACKAGE = pathlib.Path(bfc.__file__).parent


def run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        [os.fspath(word) if isinstance(word, pathlib.Path) else str(word) for word in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{done.returncode}\n{done.stdout}{done.stderr}"


@unittest.skipUnless((PACKAGE / "_prefix").exists() and "BFC_LIBRARY" not in os.environ, "it is not installed")
class Installed(unittest.TestCase):
    def test_the_library_is_the_package_s(self) -> None:
        self.assertEqual(bfc.library_path(), (PACKAGE / "_prefix/lib/libbfc.so.0").resolve())
        self.assertEqual(bfc.include_dir(), (PACKAGE / "_prefix/include").resolve())
        for file in ["include/bfc.h", "include/bfc.hpp", "lib/libbfc_preload.so", "lib/cmake/bfc/bfcConfig.cmake"]:
            self.assertTrue((PACKAGE / "_prefix" / file).exists(), file)
        self.assertFalse(any(path.is_symlink() for path in PACKAGE.rglob("*")))

    def test_the_command_finds_it(self) -> None:
        command = pathlib.Path(sys.executable).parent / "bfc"
        for words in ([command], [sys.executable, "-m", "bfc"]):
            said = run(*words, "info")
            self.assertTrue(said.startswith("0\n"), said)
            self.assertIn(str(bfc.library_path()), said)

    def test_a_program_is_compiled_and_linked_with_it(self) -> None:
        prefix = PACKAGE / "_prefix"
        with tempfile.TemporaryDirectory() as folder:
            source, program = pathlib.Path(folder, "a.c"), pathlib.Path(folder, "a")
            source.write_text('#include <bfc.h>\n#include <stdio.h>\nint main(void) { puts(bfc_version()); return 0; }\n')
            lib = prefix / "lib"
            said = run("cc", source, f"-I{prefix / 'include'}", f"-L{lib}", "-lbfc", f"-Wl,-rpath,{lib}", "-o", program)
            self.assertEqual(said, "0\n")
            self.assertEqual(run(program), f"0\n{bfc.version()}\n")


class Versions(unittest.TestCase):
    def test_the_package_has_the_version_of_its_header(self) -> None:
        header = (bfc.include_dir() / "bfc.h").read_text(encoding="utf-8")
        numbers = [line.split()[2] for line in header.splitlines() if line.startswith("#define BFC_VERSION_")]
        self.assertEqual(bfc.__version__, ".".join(numbers))
        self.assertRegex(bfc.version(), r"^\d+\.\d+\.\d+$")


class Named(unittest.TestCase):
    """BFC_LIBRARY."""

    def imported(self, named: object) -> str:
        return run(sys.executable, "-c", "import bfc; print(bfc.library_path())", BFC_LIBRARY=str(named))

    def test_a_file_and_a_folder(self) -> None:
        library = bfc.library_path()
        for named in [library, library.parent]:
            self.assertEqual(self.imported(named), f"0\n{library}\n")

    def test_there_is_no_falling_back(self) -> None:
        self.assertIn("ImportError: cannot open /nonexistent (from BFC_LIBRARY)", self.imported("/nonexistent"))
        self.assertIn("contains no libbfc.so", self.imported("/proc"))
        strlen = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value or 0
        libc = _find.mapped_file(strlen)
        said = self.imported(libc)
        self.assertIn("is not libbfc, or is older than this package", said)


if __name__ == "__main__":
    unittest.main()
