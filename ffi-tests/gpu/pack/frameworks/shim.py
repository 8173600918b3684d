"""Compiles the shim of bfc.torch.use() for the PyTorch that is installed, into the user's cache, without initializing CUDA.
Programs that start later find it there. Other functions of bfc.torch, such as mem_pool(), need no shim."""

import logging
import time

import torch_with
from outcome import result, skip


def main():
    torch = torch_with.imported()
    if torch.version.cuda is None:
        skip(f"PyTorch {torch.__version__} is built without CUDA: {torch_with.INSTALL}")
    from bfc import _torch_shims
    from bfc._shim import ShimError

    logging.getLogger("bfc").setLevel(logging.ERROR)
    release = _torch_shims.installed(torch)
    begin = time.perf_counter()
    try:
        shim = _torch_shims.find("torch_alloc", torch)
    except ShimError as error:
        print(error)
        skip(f"the shim of bfc.torch.use() cannot be compiled: {torch_with.shim_reason(error)}")
    seconds = round(time.perf_counter() - begin, 2)
    how = "prebuilt" if shim == release.prebuilt("torch_alloc") else "compiled"
    result(shim=how, seconds=seconds, torch=release.version)


if __name__ == "__main__":
    main()
