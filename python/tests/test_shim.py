"""Shims: compiled once, found again, and their failures in words."""

import ctypes
import os
import pathlib
import tempfile
import unittest
from unittest import mock

import bfc
from bfc import _shim

SOURCE = """
#include <bfc_adapters.h>
extern "C" __attribute__((visibility("default"))) const char *version() { return bfc_version(); }
"""


class Shims(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for patch in [
            mock.patch.object(_shim, "SOURCES", self.folder),
            mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache")),
        ]:
            patch.start()
            self.addCleanup(patch.stop)
        (self.folder / "test.cpp").write_text(SOURCE)

    def test_it_calls_the_library_that_is_loaded(self) -> None:
        file = _shim.build("test")
        self.assertEqual(file.parent, self.folder / "cache/libbfc/shims")
        version = ctypes.CDLL(os.fspath(file)).version
        version.restype = ctypes.c_char_p
        self.assertEqual(version().decode(), bfc.version())

    def test_it_is_compiled_once(self) -> None:
        first = _shim.build("test")
        with mock.patch.object(_shim, "_compile", side_effect=AssertionError("compiled again")):
            self.assertEqual(_shim.build("test"), first)
            for other in [{"flags": ["-DX"]}, {"key": ["2"]}, {"include_dirs": [self.folder]}]:
                with self.assertRaisesRegex(AssertionError, "compiled again"):
                    _shim.build("test", **other)
            (self.folder / "test.cpp").write_text(SOURCE + "// another\n")
            with self.assertRaisesRegex(AssertionError, "compiled again"):
                _shim.build("test")

    def test_a_compiler_s_complaint_is_told(self) -> None:
        (self.folder / "test.cpp").write_text("nonsense")
        with self.assertRaisesRegex(_shim.ShimError, "nonsense"):
            _shim.build("test")
        self.assertEqual(os.listdir(self.folder / "cache/libbfc/shims"), [], "nothing is left")

    def test_there_is_no_compiler(self) -> None:
        with mock.patch.dict(os.environ, CXX="/nonexistent/c++"), self.assertRaisesRegex(_shim.ShimError, "from CXX"):
            _shim.build("test")

    def test_what_another_user_could_have_put_there_is_not_taken(self) -> None:
        file = _shim.build("test")
        file.chmod(0o777)
        with mock.patch.object(_shim, "_compile", side_effect=AssertionError("compiled again")):
            with self.assertRaisesRegex(AssertionError, "compiled again"):
                _shim.build("test")
        self.assertEqual(_shim.build("test"), file)
        file.parent.chmod(0o777)
        self.assertNotEqual(_shim.build("test").parent, file.parent)

    def test_a_user_without_a_home(self) -> None:
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=""):
            with mock.patch.object(pathlib.Path, "expanduser", side_effect=RuntimeError("no home")):
                self.assertTrue(_shim.build("test").exists())

    def test_a_file_that_was_cut_off_is_not_taken(self) -> None:
        file = _shim.build("test")
        file.write_bytes(b"")
        self.assertGreater(_shim.build("test").stat().st_size, 0)

    def test_no_room_is_said_in_words(self) -> None:
        with mock.patch.object(tempfile, "mkstemp", side_effect=OSError(28, "No space left on device")):
            with self.assertRaisesRegex(_shim.ShimError, "No space left"):
                _shim.build("test")

    def test_a_cache_that_cannot_be_written_to_is_done_without(self) -> None:
        (self.folder / "cache").write_text("a file")
        self.assertTrue(_shim.build("test").exists())


if __name__ == "__main__":
    unittest.main()
