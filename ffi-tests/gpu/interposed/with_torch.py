"""PyTorch without its caching allocator: each tensor is a cudaMalloc and a cudaFree. A small model is trained, and its
losses are the same whoever serves them, and nearly those of the CPU.

`with_torch.py cpu` does all of it on the CPU, to try this file where there is no GPU."""

import hashlib
import os
import random
import sys

# Both are read when CUDA comes to life.
os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

from outcome import finish, skip

try:
    import torch
    from torch import nn
except Exception as error:  # a library that it needs may be missing too
    skip(f"PyTorch is not here: {error!r}".splitlines()[0])

SEED = 20240601
STEPS = 40
STREAMS = 4
CLASSES = 10


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        skip("PyTorch finds no device that it can use")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False

    losses, wrong = train(device), []
    for step, (found, expected) in enumerate(zip(losses, train("cpu"))):
        # What is left of it is that sums are rounded in another order.
        if not abs(found - expected) <= 1e-3 * max(1.0, abs(expected)):
            wrong.append(f"the loss of step {step} is {found}, on the CPU {expected}")
    if not losses[-1] < losses[0]:
        wrong.append(f"nothing was learnt: the loss was {losses[0]} and is {losses[-1]}")
    facts = [f"loss of step {step}: {loss.hex()}" for step, loss in enumerate(losses)]
    arrays = STEPS * len(list(model().parameters()))
    if device == "cuda":
        more, digest = on_streams(wrong)
        arrays += more
        facts.append(f"on streams: {digest}")
    finish(wrong[:20], arrays, facts)


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
    """The losses of some steps; batches of other sizes each time. All random numbers are the host's."""
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


def on_streams(wrong):
    """Tensors that are freed while kernels of a stream still run, and others that get their memory."""
    choose = random.Random(SEED + 1)
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    kept, digest, steps = [], hashlib.sha256(), 300
    for step in range(steps):
        stream = streams[step % STREAMS]
        count, seed = choose.randrange(1, 1 << choose.randrange(1, 21)), choose.randrange(1000)
        with torch.cuda.stream(stream):
            x = torch.arange(count, dtype=torch.int32, device="cuda") + seed
            torch.cuda._sleep(200_000)  # cycles: about a tenth of a millisecond
            y = 3 * x + seed
            del x
        kept.append((step, stream, count, seed, y))
        del y
        if len(kept) > 12:
            look_at(wrong, digest, *kept.pop(choose.randrange(len(kept))))
    for entry in kept:
        look_at(wrong, digest, *entry)
    return 4 * steps, digest.hexdigest()


def look_at(wrong, digest, step, stream, count, seed, y):
    stream.synchronize()
    found, expected = y.cpu(), 3 * (torch.arange(count, dtype=torch.int32) + seed) + seed
    digest.update(str(found.tolist() if count < 4096 else found.sum().item()).encode())
    if not torch.equal(found, expected):
        wrong.append(f"step {step} on streams: {(found != expected).sum().item()} of {count} values are wrong")


if __name__ == "__main__":
    main()
