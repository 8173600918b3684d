"""Linking by the pkg-config file, and the interposer that it names."""

import pytest

import elf
from build import PROBE, VERSION, compile, run


def pkg_config(tree, *options):
    return run("pkgconf", *options, "bfc", PKG_CONFIG_PATH=tree / "lib/pkgconfig").split()


# As bfc.pc says: the archive alone by its file name.
@pytest.mark.parametrize(
    "options, before, renamed, is_shared",
    [
        pytest.param([], [], {}, True, id="a shared link"),
        pytest.param(["--static"], [], {"-lbfc": "-l:libbfc.a"}, False, id="the archive"),
        pytest.param(["--static"], ["-static"], {}, False, id="a static program"),
    ],
)
def test_linking(tree, options, before, renamed, is_shared, tmp_path):
    flags = pkg_config(tree, "--cflags", "--libs", *options)
    assert "-lbfc" in flags
    program = compile(PROBE, tmp_path / "probe", [*before, *(renamed.get(flag, flag) for flag in flags)])
    assert any(name.startswith("libbfc.so") for name in elf.needed(program)) == is_shared
    said = run(program, **({"LD_LIBRARY_PATH": tree / "lib"} if is_shared else {}))
    assert said.split() == [VERSION, VERSION]


def test_the_interposer(tree, tmp_path):
    (interposer,) = pkg_config(tree, "--variable=preload_library")
    # Any program will do: the interposer finds libbfc.so beside itself, and says that it is there.
    run(tree / "bin/bfc", "--version", LD_PRELOAD=interposer, BFC_PRELOAD_CHECK=tmp_path / "check")
    assert " loaded " in (tmp_path / "check").read_text()
