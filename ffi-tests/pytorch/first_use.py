"""The first use of bfc.torch or bfc.torch_cpu: `first_use.py torch|torch_cpu [VERSION]`. Prints the file of the shim.

With VERSION, PyTorch reports that version.
"""

import os
import sys

import torch

import bfc
import bfc.torch
import bfc.torch_cpu

module, *version = sys.argv[1:]
if version:
    torch.__version__ = torch.torch_version.TorchVersion(version[0])
if module == "torch":
    bfc.torch.use(backend="cuda")
    assert bfc.owner(torch.empty(1000, dtype=torch.uint8, device="cuda").data_ptr()) == 0
else:
    bfc.torch_cpu.use()
    assert bfc.owner(torch.empty(1000, dtype=torch.uint8).data_ptr()) == bfc.HOST
with open("/proc/self/maps") as maps:
    shims = {line.split(maxsplit=5)[5].strip() for line in maps if "/torch_alloc" in line or "/torch_cpu-" in line}
print(*sorted(shims))
