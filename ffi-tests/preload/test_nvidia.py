"""NVIDIA's own runtimes on the simulated driver, as far as they go there: all that they ask for, they get from the
interposer, and they answer as without."""

import pathlib
import sysconfig

import pytest

from stage import RUNTIMES, compile, environment, judge, preloaded, run, saw

PACKAGES = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia"
FOLDERS = {11: PACKAGES / "cuda_runtime/lib", 12: PACKAGES / "cuda_runtime/lib", 13: PACKAGES / "cu13/lib"}
# What each of them has to find by version, and gets from us.
FOUND = """
    cuMemAlloc_v2 cuMemFree_v2 cuMemGetInfo_v2 cuMemAllocPitch_v2 cuMemAllocManaged cuMemAllocAsync cuMemAllocAsync_ptsz
    cuMemFreeAsync cuMemFreeAsync_ptsz cuMemHostAlloc cuMemFreeHost cuPointerGetAttributes cuIpcGetMemHandle
    cuStreamBeginCapture_v2 cuStreamDestroy_v2 cuCtxSynchronize
""".split()


# The wheel of 11 has no archive.
@pytest.mark.parametrize("major, how", [(11, "shared"), (12, "shared"), (12, "static"), (13, "shared"), (13, "static")])
def test_what_nvidias_own_runtime_asks_for(major, how, check):
    if how == "shared":
        command = [compile("real_runtime", "real_runtime.c", None), FOLDERS[major] / RUNTIMES[major]]
    else:
        # Up to 12 a part of the archive is one of its own.
        archives = [path for path in (FOLDERS[major] / name for name in ("libcudart_static.a", "libculibos.a")) if path.exists()]
        command = [compile(f"real_static{major}", "real_runtime.c", None, ["-DLINKED_STATICALLY", *archives, "-lrt"])]
    said = run(*command, env=preloaded(BFC_PRELOAD_CHECK=check))
    there = [f"looked-up dlsym cuGetProcAddress{'_v2' if major > 11 else ''}"]
    there += [f"looked-up cuGetProcAddress {name}" for name in FOUND]
    if major >= 12:
        # It asks for the lookup itself too, in both its versions.
        there += [f"looked-up cuGetProcAddress cuGetProcAddress{end}" for end in ("", "_v2")]
    later = ["looked-up cuGetProcAddress cuCtxSynchronize_v2"]
    judge(saw(check), there + (later if major >= 13 else []), ["called", "served"] + (later if major < 13 else []))
    assert run(*command, env=environment()) == said
