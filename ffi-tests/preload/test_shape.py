"""What libbfc_preload.so shows the linker and the loader."""

import re
import subprocess

import pytest

import elf
from stage import INTERPOSER, LIB, ROOT

LIBRARY = next(path.name for path in LIB.glob("libbfc.so.*"))
# Beside ours: the compiler's, which register frames, and that of Rust's standard library, which notes the arguments.
ALLOWED = {
    ".init_array": ("bfc_preload9lifecycle6loaded", ["frame_dummy", "3std3sys4args"]),
    ".fini_array": ("bfc_preload9lifecycle8unloaded", ["__do_global_dtors_aux"]),
}


def test_dlsym_and_the_hooks_are_exported_and_no_others():
    hooks = re.findall(r"^        (\w+): \w+, \w+, \"", (ROOT / "crates/preload/hook-list/src/lib.rs").read_text(), re.MULTILINE)
    more = re.findall(r"^        (\w+) as \"", (ROOT / "crates/preload/src/unanalyzed_list.rs").read_text(), re.MULTILINE)
    assert len(hooks) > 40 and len(more) > 20
    assert elf.exports(INTERPOSER) == sorted([*hooks, *more, "dlsym"])


def test_it_runs_with_an_old_glibc():
    assert not elf.too_new_glibc(INTERPOSER)


def test_soname_nodelete_now_runpath_and_what_is_loaded():
    assert not elf.dynamic(INTERPOSER, INTERPOSER.name, needed=[LIBRARY], runpath="$ORIGIN")


@pytest.mark.parametrize("section", ALLOWED)
def test_what_runs_when_it_is_loaded_and_when_the_process_ends_is_ours(section):
    ours, others = ALLOWED[section]
    called = elf.called_at(INTERPOSER, section)
    assert any(ours in name for name in called)
    assert not [name for name in called if not any(part in name for part in [ours, *others])]


@pytest.fixture(scope="module")
def bad_library(tmp_path_factory):
    """A library with everything that is not wanted."""
    folder = tmp_path_factory.mktemp("bad")
    local = '__attribute__((tls_model("initial-exec"))) __thread int of_each_thread;\n'
    begin = "__attribute__((constructor)) static void begin(void) { of_each_thread++; }\n"
    (folder / "bad.c").write_text(local + begin + "void leaked(void) { begin(); }\n")
    (folder / "other.c").write_text("int other;\n")
    flags = "-shared -fPIC -Wl,-z,lazy -Wl,-soname,libbad.so.9 -Wl,-rpath,/nowhere -Wl,--no-as-needed".split()
    subprocess.run(["cc", "-shared", "-fPIC", folder / "other.c", "-o", folder / "libother.so"], check=True)
    subprocess.run(["cc", *flags, folder / "bad.c", folder / "libother.so", "-o", folder / "libbad.so"], check=True)
    return folder / "libbad.so"


def test_a_bad_library_fails(bad_library):
    wrong = elf.dynamic(bad_library, "libbad.so.0", needed=["libmissing.so"])
    for part in ["SONAME", "NOW", "NODELETE", "RUNPATH", "libmissing.so is not", "libother.so is", "STATIC_TLS"]:
        assert any(part in line for line in wrong), part
    assert "leaked" in elf.exports(bad_library)
    assert "begin" in elf.called_at(bad_library, ".init_array")
    assert elf.too_new_glibc(INTERPOSER, newest=(2, 2))
