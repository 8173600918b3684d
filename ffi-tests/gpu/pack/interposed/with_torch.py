"""PyTorch trains a small model and uses four streams.

Its losses and sums must be the same with and without the interposer, and the losses close to those of the CPU.

    with_torch.py              without PyTorch's caching allocator: each tensor is a cudaMalloc and a cudaFree
    with_torch.py --caching    with it, as most programs run: segments come from cudaMalloc, and empty_cache() frees them
    with_torch.py --cpu        on the CPU only, to check the program without a GPU
"""

import argparse
import hashlib
import os
import random

from outcome import finish, first_line, is_simulated, skip

parser = argparse.ArgumentParser()
parser.add_argument("--caching", action="store_true")
parser.add_argument("--cpu", action="store_true")
options = parser.parse_args()

# Read when PyTorch is imported or CUDA is initialized.
for name in ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"]:
    os.environ.pop(name, None)
if not options.caching:
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

try:
    import torch
    from torch import nn
except Exception as error:  # a library that PyTorch loads may be missing too
    skip(f"PyTorch cannot be imported ({first_line(error)}): pip install torch")

SEED = 20240601
STEPS = 40
STREAMS = 4
STREAM_STEPS = 200
KEPT = 12
CLASSES = 10


def main():
    device = "cpu" if options.cpu else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        skip(f"PyTorch {torch.__version__} finds no device: check nvidia-smi, and install a build of PyTorch with CUDA")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False

    if device == "cuda" and is_simulated():
        # cuDNN needs a device.
        torch.backends.cudnn.enabled = False

    losses, errors = train(device), []
    for step, (found, expected) in enumerate(zip(losses, train("cpu"))):
        # Only the order of sums differs.
        if not abs(found - expected) <= 1e-3 * max(1.0, abs(expected)):
            errors.append(f"the loss of step {step} is {found}, on the CPU {expected}")
    if not losses[-1] < losses[0]:
        errors.append(f"the model did not learn: the loss went from {losses[0]} to {losses[-1]}")
    facts = [f"loss of step {step}: {loss.hex()}" for step, loss in enumerate(losses)]
    allocations = STEPS * len(list(model().parameters()))
    if device == "cuda":
        made, digest = on_streams(errors)
        allocations += made
        facts.append(f"on streams: {digest}")
        if options.caching:
            # Of the driver it requests segments only.
            allocations = torch.cuda.memory_stats()["segment.all.allocated"]
    if device == "cuda" and is_simulated():
        # Its kernels compute nothing, so there is nothing to compare.
        errors, facts = [], []
    finish(errors[:20], allocations, facts)


def model():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 12 * 12, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


def train(device):
    """Returns the losses. The batches have different sizes, and all random numbers are made on the host."""
    torch.manual_seed(SEED)
    choose = random.Random(SEED)
    layers = model().to(device)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        images = torch.randn(choose.randrange(16, 200), 1, 12, 12)
        # Something that can be learnt: which row is the brightest.
        labels = images.sum(dim=(1, 3)).argmax(dim=1) % CLASSES
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(layers(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def on_streams(errors):
    """Frees tensors while kernels of their streams still run, and makes others that may get their memory."""
    choose = random.Random(SEED + 1)
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    kept, digest = [], hashlib.sha256()
    for step in range(STREAM_STEPS):
        if options.caching and step % 50 == 49:
            # The segments that the cache returns are requested again soon.
            torch.cuda.empty_cache()
        stream = streams[step % STREAMS]
        count, seed = choose.randrange(1, 1 << choose.randrange(1, 21)), choose.randrange(1000)
        with torch.cuda.stream(stream):
            x = torch.arange(count, dtype=torch.int32, device="cuda") + seed
            torch.cuda._sleep(200_000)  # cycles: about a tenth of a millisecond
            y = 3 * x + seed
            del x
        kept.append((step, stream, count, seed, y))
        del y
        if len(kept) > KEPT:
            check(errors, digest, *kept.pop(choose.randrange(len(kept))))
    for entry in kept:
        check(errors, digest, *entry)
    return 4 * STREAM_STEPS, digest.hexdigest()


def check(errors, digest, step, stream, count, seed, y):
    stream.synchronize()
    found, expected = y.cpu(), 3 * (torch.arange(count, dtype=torch.int32) + seed) + seed
    digest.update(str(found.tolist() if count < 4096 else found.sum().item()).encode())
    if not torch.equal(found, expected):
        errors.append(f"step {step} on streams: {(found != expected).sum().item()} of {count} values are wrong")


if __name__ == "__main__":
    main()
