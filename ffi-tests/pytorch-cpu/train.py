"""Trains small models on the CPU and tells what came of it, as JSON; with PyTorch's own allocator, or with libbfc's.

The losses and the weights must be the same, bit for bit, with every allocator. See README.md.
"""

import argparse
import gc
import hashlib
import json

import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader, Dataset

from storages import Storages, tensors

SEED = 20240601
STEPS = 12
CLASSES = 10
WORDS = 200


def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    # What modules made when they were imported is not libbfc's.
    before = {tensor.data_ptr() for tensor in tensors()}
    ours = None
    if options.libbfc:
        import bfc.torch_cpu as ours_

        ours = ours_
        if options.mutate != "native":
            ours.use(memory_limit=4 << 30)
    told = {}
    seen = {}
    for make in [language_model, Convolution]:
        name = make.__name__
        torch.manual_seed(SEED + (options.mutate == "seed"))
        told[name], seen[name] = train(make(), options, before if ours else None)
        gc.collect()
    if ours:
        seen["in the end"] = in_the_end(options)
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump({"same": told, "seen": seen}, file, indent=1)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, help="the file to write")
    parser.add_argument("--threads", type=int, default=1, help="that an operation may use")
    parser.add_argument("--workers", type=int, default=0, help="forked processes that make the batches")
    parser.add_argument("--libbfc", action="store_true", help="allocate through libbfc")
    parser.add_argument("--mutate", choices=["seed", "native", "leak"], help="a fault that the suite has to find")
    return parser.parse_args()


class Sequences(Dataset):
    """Words of random sequences of one length, each of which depends on the previous one."""

    def __len__(self):
        return STEPS * 4

    def __getitem__(self, index):
        choose = torch.Generator().manual_seed(SEED + index)
        start = torch.randint(0, WORDS, (1,), generator=choose)
        words = (start + 7 * torch.arange(48)) % WORDS
        return words, owner(words)


class Images(Dataset):
    """Noise, with a class that it hangs on."""

    def __len__(self):
        return STEPS * 8

    def __getitem__(self, index):
        choose = torch.Generator().manual_seed(SEED + index)
        image = torch.randn(3, 32, 32, generator=choose)
        return image, (image.mean() * 100).long() % CLASSES, owner(image)


def owner(tensor):
    """Whose memory it is: libbfc's ordinal, or -1."""
    import sys

    bfc = sys.modules.get("bfc")
    if bfc is None:
        return -1
    try:
        return bfc.owner(tensor.data_ptr())
    except bfc.Error:
        return -1


class language_model(nn.Module):
    """GPT-2 of transformers, with few and narrow layers."""

    data = Sequences
    rows = 4

    def __init__(self):
        super().__init__()
        shape = {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 64, "vocab_size": WORDS}
        self.model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0))

    def forward(self, words):
        return self.model(input_ids=words, labels=words).loss


class Convolution(nn.Module):
    """Two convolutions, with what stands between them."""

    data = Images
    rows = 8

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(32 * 16, CLASSES),
        )

    def forward(self, images, classes):
        return nn.functional.cross_entropy(self.layers(images), classes)


def train(model, options, before):
    """Some steps with AdamW: what must not depend on who allocates, and what this run has seen of libbfc."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = DataLoader(
        model.data(),
        batch_size=model.rows,
        num_workers=options.workers,
        multiprocessing_context="fork" if options.workers else None,
    )
    losses, makers = [], set()
    with Storages(owner) as storages:
        for *batch, owners in batches:
            makers.update(owners.tolist())
            optimizer.zero_grad(set_to_none=True)
            loss = model(*batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item().hex())
    told = {"losses": losses, "weights": digest(model), "state": digest(optimizer)}
    seen = {"storages": storages.facts(), "made in the workers by": sorted(makers)}
    if before is not None:
        seen["live"] = live(before)
    return told, seen


def digest(of):
    """A hash over all tensors of a model's or an optimizer's state, in order."""
    state = of.state_dict()
    if "state" in state:
        state = {f"{number}.{name}": value for number, kept in state["state"].items() for name, value in kept.items()}
    total = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        total.update(tensor.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


def live(before):
    """Of the tensors that there are now, how many, and how many of those libbfc has not given."""
    now = [tensor for tensor in tensors() if tensor.data_ptr() not in before and not tensor.is_shared()]
    return {"tensors": len(now), "of others": sum(owner(tensor) != 256 for tensor in now)}


def in_the_end(options):
    import bfc

    kept = torch.ones(1000) if options.mutate == "leak" else None
    gc.collect()
    try:
        statistics = bfc.stats(bfc.HOST)
    except bfc.Error as error:
        return {"error": str(error)}
    names = ["num_allocs", "num_frees", "num_failures", "bytes_in_use", "bytes_requested"]
    facts = {name: getattr(statistics, name) for name in names}
    bfc.check(bfc.HOST)
    del kept
    facts["left"] = bfc.stats(bfc.HOST).pool_bytes - bfc.trim(bfc.HOST)
    facts["report"] = bfc.report(bfc.HOST).splitlines()[0]
    return facts


if __name__ == "__main__":
    main()
