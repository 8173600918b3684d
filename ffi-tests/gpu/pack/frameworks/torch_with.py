"""PyTorch with one of its own allocators or with libbfc, for the programs of this folder. A process has one of them."""

import importlib
import os
import pathlib
import sys
from typing import NamedTuple

# What the programs of both folders have in common.
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "interposed"))
from outcome import first_line, is_simulated, skip

INSTALL = "pip install torch, a build with CUDA"


class Allocator(NamedTuple):
    label: str
    """For tables."""
    name: str
    """What torch.cuda.get_allocator_backend() returns."""
    source: str
    """The only driver function that its memory comes from."""
    settings: str = ""
    """The value of PYTORCH_ALLOC_CONF."""
    use: dict | None = None
    """The arguments of bfc.torch.use()."""


ALLOCATORS = {
    "native": Allocator("PyTorch native", "native", "cuMemAlloc"),
    "expandable": Allocator("PyTorch expandable_segments", "native", "cuMemCreate", "expandable_segments:True"),
    "async": Allocator("PyTorch cudaMallocAsync", "cudaMallocAsync", "cuMemAllocAsync", "backend:cudaMallocAsync"),
    "bfc": Allocator("libbfc cuda", "pluggable", "cuMemAlloc", use={"backend": "cuda"}),
    "bfc_vmm": Allocator("libbfc cuda_vmm", "pluggable", "cuMemCreate", use={"backend": "cuda_vmm"}),
    # cuda_vmm where the device supports it, as on every GPU of the last years.
    "bfc_default": Allocator("libbfc", "pluggable", "cuMemCreate", use={}),
}


def load(name):
    """Returns PyTorch with an allocator in use, and the module that has its memory statistics. Ends the program as skipped if
    PyTorch, the device or the backend is missing."""
    allocator = ALLOCATORS[name]
    os.environ.pop("PYTORCH_NO_CUDA_MEMORY_CACHING", None)
    # Read when PyTorch is imported. The second is the first's name before PyTorch 2.10.
    for variable in ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"]:
        os.environ.pop(variable, None)
        if allocator.settings:
            os.environ[variable] = allocator.settings
    torch = imported()
    if torch.version.cuda is None:
        skip(f"PyTorch {torch.__version__} is built without CUDA: {INSTALL}")
    if not torch.cuda.is_available():
        skip(f"PyTorch {torch.__version__} finds no device: check that nvidia-smi lists one")
    memory = torch.cuda if allocator.use is None else _use_libbfc(torch, allocator)
    if is_simulated():
        # cuDNN needs a device.
        torch.backends.cudnn.enabled = False
    return torch, memory


def imported():
    """PyTorch. Without it, or without a library that it loads, the program ends as skipped."""
    try:
        return importlib.import_module("torch")
    except Exception as error:
        skip(f"PyTorch cannot be imported ({first_line(error)}): {INSTALL}")


def shim_reason(error):
    """Why a shim could not be compiled and what to do, in a line."""
    lines = str(error).splitlines()
    wrong = next((line for line in lines if "error:" in line), None)
    # Without a compiler the message already says what to do.
    remedy = "set CXX to a compiler for C++17, and reinstall PyTorch if its headers are missing"
    return lines[0] if wrong is None else f"{wrong} ({remedy})"


def _use_libbfc(torch, allocator):
    import bfc
    import bfc.torch
    from bfc._shim import ShimError

    try:
        bfc.torch.use(**allocator.use)
    except ShimError as error:
        skip(f"bfc.torch.use() cannot compile its shim: {shim_reason(error)}")
    try:
        torch.empty(1, device="cuda")
    except RuntimeError:
        # libbfc's own error says whether there is such a backend. Its allocator does not exist after a failure.
        try:
            bfc.create(0, **allocator.use)
        except bfc.Error as error:
            if error.name == "BFC_ERROR_BACKEND_UNAVAILABLE":
                skip(f"libbfc has no such backend here: {first_line(error)}")
        raise
    return bfc.torch
