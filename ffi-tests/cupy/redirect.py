"""Has CuPy's runtime of CUDA be the simulated one.

CuPy's wheel is linked with NVIDIA's static runtime, which refuses to begin on a driver that is not NVIDIA's. So the first
instructions of each of its functions are overwritten, in the memory of this process, by a jump to the function of that name
in the simulated ``libcudart.so.13``. CuPy's own code stays what it is. Functions that the simulation does not have are let
be: they fail as before.
"""

import ctypes
import importlib.machinery
import mmap
import pathlib
import platform
import shutil
import subprocess
import sys
import sysconfig

RUNTIME = "libcudart.so.13"
# movabs rax, TARGET; jmp rax
JUMP = (b"\x48\xb8", b"\xff\xe0")
MODULE = "cupy_backends/cuda/api/runtime"
# Why it cannot be done on this machine; empty if it can.
IMPOSSIBLE = ""
if platform.machine() != "x86_64":
    IMPOSSIBLE = f"jumps of {platform.machine()} are not known here"
elif shutil.which("readelf") is None:
    IMPOSSIBLE = "there is no readelf"


def redirect():
    """Before anything of CuPy has called the runtime; the number of functions that were redirected."""
    file = _file()
    # It is loaded, and nothing in it has run.
    importlib.machinery.ExtensionFileLoader("cupy_backends.cuda.api.runtime", str(file))
    ctypes.PyDLL(str(file))
    base = _base(file)
    simulated = ctypes.CDLL(RUNTIME)
    count = 0
    for name, offset in _functions(file).items():
        target = getattr(simulated, name, None)
        if target is not None:
            _jump(base + offset, ctypes.cast(target, ctypes.c_void_p).value)
            count += 1
    return count


def _file():
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    folders = [pathlib.Path(folder) / f"{MODULE}{suffix}" for folder in sys.path]
    return next(file for file in folders if file.exists())


def _functions(file):
    """The runtime's functions in a library by name, with their offsets."""
    table = subprocess.run(["readelf", "-sW", file], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in table.splitlines():
        words = line.split()
        # Num, Value, Size, Type, Bind, Vis, Ndx, Name
        if len(words) == 8 and words[3] == "FUNC" and words[7].startswith("cuda") and words[6] != "UND":
            assert int(words[2]) >= len(JUMP[0]) + 8 + len(JUMP[1]), f"{words[7]} is too short"
            found[words[7]] = int(words[1], 16)
    return found


def _base(file):
    """Where a library was loaded: its first piece is mapped from the file's beginning."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            words = line.split(maxsplit=5)
            if len(words) == 6 and words[5].strip() == str(file.resolve()) and int(words[2], 16) == 0:
                return int(words[0].split("-")[0], 16)
    raise RuntimeError(f"{file} is not loaded")


def _jump(address, target):
    code = JUMP[0] + target.to_bytes(8, "little") + JUMP[1]
    start = address & -mmap.PAGESIZE
    length = address + len(code) - start
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for protection in (mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ | mmap.PROT_EXEC):
        if protect(start, length, protection):
            raise OSError(ctypes.get_errno(), f"mprotect of {start:#x}")
        if protection & mmap.PROT_WRITE:
            ctypes.memmove(address, code, len(code))
