"""Shims: compiled once, found again, and their failures in words."""

import ctypes
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import bfc
from bfc import _shim, _torch_shims

SOURCE = """
#include <bfc_adapters.h>
extern "C" __attribute__((visibility("default"))) const char *version() { return bfc_version(); }
"""

# As lld and mold do, which write another file and rename it: its permissions are those of the umask.
LINKED_AS_BY_LLD = """#!/bin/sh
c++ "$@" || exit
case "$1" in --version) exit ;; esac
for out; do :; done
cat "$out" > "$out.new" && chmod =rwx "$out.new" && mv "$out.new" "$out"
"""

# Ends between its two files.
INTERRUPTED = """#!/bin/sh
for out; do :; done
case "$1" in --version) exit ;; esac
touch "$out.tmp1"
echo interrupted >&2
exit 1
"""

BUILD = """
import os, pathlib, sys
from bfc import _shim
_shim.SOURCES = pathlib.Path(sys.argv[1])
if len(sys.argv) > 2:
    os.setreuid(*map(int, sys.argv[2:]))
print(_shim.build("test"))
"""


def mode(path: pathlib.Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


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

    def compiler(self, script: str) -> None:
        """A script in the place of the compiler."""
        file = self.folder / "c++.sh"
        file.write_text(script)
        file.chmod(0o755)
        patch = mock.patch.dict(os.environ, CXX=str(file))
        patch.start()
        self.addCleanup(patch.stop)

    def umask(self, mask: int) -> None:
        before = os.umask(mask)
        self.addCleanup(os.umask, before)

    def build_again(self) -> pathlib.Path:
        """The second start."""
        with mock.patch.object(_shim, "_compile", side_effect=AssertionError("compiled again")):
            return _shim.build("test")

    def test_a_package_without_prebuilt_shims_names_what_has_them(self) -> None:
        nowhere = self.folder / "prebuilt/torch-9/torch_alloc.so"
        why = _torch_shims._why_not(nowhere)
        self.assertEqual(why, "no prebuilt shim fits it; wheels by `cargo xtask wheel` have some")
        nowhere.parent.mkdir(parents=True)
        (nowhere.parent / "torch_cpu.so").touch()
        why = _torch_shims._why_not(nowhere)
        self.assertEqual(why, "no prebuilt shim fits it; releases with prebuilt shims: 9")

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

    def test_it_is_compiled_once_whatever_the_linker_and_the_umask(self) -> None:
        for script in [LINKED_AS_BY_LLD, '#!/bin/sh\nexec c++ "$@"\n']:
            self.compiler(script)
            for mask in [0o002, 0o000, 0o077]:
                with self.subTest(script=script, mask=oct(mask)):
                    shutil.rmtree(self.folder / "cache", ignore_errors=True)
                    self.umask(mask)
                    file = _shim.build("test")
                    self.assertEqual(file.parent, self.folder / "cache/libbfc/shims")
                    self.assertEqual(mode(file), 0o700)
                    self.assertEqual(self.build_again(), file)

    def test_its_folders_are_the_user_s_alone_whatever_the_umask(self) -> None:
        """A user who may write to one of them may replace the next one."""
        self.umask(0)
        file = _shim.build("test")
        self.assertEqual([mode(folder) for folder in list(file.parents)[:3]], [0o700] * 3)

    def test_a_linker_that_is_interrupted_leaves_nothing(self) -> None:
        self.compiler(INTERRUPTED)
        with self.assertRaisesRegex(_shim.ShimError, "interrupted"):
            _shim.build("test")
        self.assertEqual(os.listdir(self.folder / "cache/libbfc/shims"), [])

    def started(self, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", BUILD, str(self.folder), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_processes_that_start_at_once_end_up_with_one_file(self) -> None:
        said = {process.communicate()[0] for process in [self.started() for _ in range(3)]}
        (file,) = said
        self.assertEqual(os.listdir(self.folder / "cache/libbfc/shims"), [pathlib.Path(file.strip()).name])

    @unittest.skipUnless(os.getuid() == 0, "it takes root to be another user in part")
    def test_files_are_the_effective_user_s(self) -> None:
        root, nobody = 0, 65534
        self.folder.chmod(0o755)
        for real, effective in [(root, nobody), (nobody, root)]:
            with self.subTest(real=real, effective=effective):
                cache = self.folder / "cache"
                shutil.rmtree(cache, ignore_errors=True)
                cache.mkdir(mode=0o700)
                os.chown(cache, effective, -1)
                said = self.started(str(real), str(effective)).communicate()[0]
                if "Permission denied" in said:
                    self.skipTest("others may not read the package or the compiler")
                self.assertTrue(said.startswith(f"{cache}/libbfc/shims/test-"), said)

    def test_a_path_that_is_not_utf_8(self) -> None:
        folder = os.path.join(self.folder, os.fsdecode(b"\xff"))
        os.mkdir(folder)
        self.assertTrue(_shim.build("test", include_dirs=[folder]).exists())

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
        with mock.patch.object(tempfile, "mkdtemp", side_effect=OSError(28, "No space left on device")):
            with self.assertRaisesRegex(_shim.ShimError, "No space left"):
                _shim.build("test")

    def test_a_cache_that_cannot_be_written_to_is_done_without(self) -> None:
        (self.folder / "cache").write_text("a file")
        instead = _shim.build("test")
        self.assertTrue(instead.exists())
        # A forked child that ends as Python does removes it, and so may a job that cleans /tmp.
        shutil.rmtree(instead.parent)
        self.assertTrue(_shim.build("test").exists())


if __name__ == "__main__":
    unittest.main()
