"""What has to be compiled before some rows can run. It is started first and runs beside the first parts: the machine has
cores to spare, and a compiler takes longer than most rows."""

import concurrent.futures
import functools
import os
import pathlib
import re
import shutil
import time

from runner import process
from runner.job import BFC, PACK, TimeIsUp, environment, python


class Prepared:
    """Compilers at work in the background, and where they leave their results."""

    def __init__(self, scratch, results, end):
        self.scratch, self.results, self.end = scratch, results, end
        self.pool = concurrent.futures.ThreadPoolExecutor(2, "prepare")
        self.futures = {}

    def start(self, names):
        for name in names:
            self.futures[name] = self.pool.submit({"saxpy": self._saxpy, "shims": self._shims}[name])

    def get(self, name, seconds):
        """How it ended, and the file that it made, or None. Waits at most `seconds`."""
        try:
            return self.futures[name].result(timeout=seconds)
        except concurrent.futures.TimeoutError:
            raise TimeIsUp(f"{name} was still being compiled") from None

    def shutdown(self):
        """Lets compilers go on until the end of the run at most."""
        self.pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, command, env):
        return process.run(command, self.end - time.monotonic(), env)

    def tool(self, name):
        """A program of the CUDA toolkit."""
        folder = pathlib.Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda")
        return shutil.which(name) or shutil.which(name, path=folder / "bin")

    @functools.cached_property
    def absent(self):
        """Why there is no device that libbfc can use, or None."""
        ended = self._run([BFC, "info"], environment(BFC_LIBRARY=None))
        found = re.search(r"^ *cuda, device 0 +(.*)$", ended.out, re.MULTILINE)
        if found and found[1] == "yes":
            return None
        return f"no device: {found[1].removeprefix('no: ') if found else ended.reason()}"

    def _saxpy(self):
        """interposed/saxpy.cu by nvcc."""
        compiler = self.tool("nvcc")
        if compiler is None:
            return process.Ended(process.SKIPPED, "there is no nvcc, in PATH or in CUDA_HOME/bin\n", "", 0.0), None
        path = self.scratch / "saxpy"
        # An old nvcc does not know `native`.
        for target in (["-arch=native"], []):
            command = [compiler, "-O2", "-cudart", "static", *target, PACK / "interposed/saxpy.cu", "-o", path]
            ended = self._run(command, environment(BFC_LIBRARY=None))
            self.results.log(f"prepare: nvcc {' '.join(target)} ({ended.status}, {ended.seconds:.1f} s)", ended.text)
            if path.exists() or ended.code is None:
                break
        return ended, path if path.exists() else None

    def _shims(self):
        """bfc.torch's shims against the PyTorch that is installed."""
        variables = environment(XDG_CACHE_HOME=self.scratch / "cache")
        ended = self._run(python("frameworks/shim.py"), variables)
        self.results.log(f"prepare: shims ({ended.status}, {ended.seconds:.1f} s)", ended.text)
        return ended, None
