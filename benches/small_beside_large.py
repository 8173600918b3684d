"""How much memory PyTorch programs hold that need little between large tensors, over the most that they had in use.

    cargo xtask simulate --pytorch benches/small_beside_large.py bfc
    cargo xtask simulate --pytorch benches/small_beside_large.py torch

docs/algorithm.md has the result. Kernels compute nothing on the simulated driver: only the sizes count.
"""

import random
import sys

import torch
from torch import nn

MIB = 1 << 20
kept = []


def tensor(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def in_turn():
    """A large block comes and goes, and a small result of each turn stays."""
    for _ in range(50):
        tensor(400 * MIB)
        kept.append(tensor(512))


def two_in_turn():
    for _ in range(50):
        first, second = tensor(300 * MIB), tensor(200 * MIB)
        del first
        kept.append(tensor(2000))
        first = tensor(300 * MIB)
        del first, second
        kept.append(tensor(2000))


def train(lengths, width=512, words=8000):
    embedding, head = nn.Embedding(words, width).cuda(), nn.Linear(width, words).cuda()
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
    body = nn.TransformerEncoder(layer, 4).cuda()
    parameters = [each for part in (embedding, body, head) for each in part.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    for length in lengths:
        inputs, targets = (torch.randint(0, words, (8, length), device="cuda") for _ in range(2))
        loss = nn.functional.cross_entropy(head(body(embedding(inputs))).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        kept.extend([loss.detach(), nn.utils.clip_grad_norm_(parameters, 1.0)])
        optimizer.step()


def seven_lengths():
    train([random.choice([64, 96, 128, 200, 256, 384, 512]) for _ in range(40)])


def longer_and_longer():
    train([64 + 16 * step for step in range(30)])


PROGRAMS = [in_turn, two_in_turn, seven_lengths, longer_and_longer]


def main(allocator, name=None):
    if name is None:
        # A process for each, because the allocator of a process does not change.
        import subprocess

        for program in PROGRAMS:
            subprocess.run([sys.executable, __file__, allocator, program.__name__], check=True)
        return
    random.seed(1)
    memory = torch.cuda
    if allocator == "bfc":
        import bfc.torch as memory

        memory.use()
    next(program for program in PROGRAMS if program.__name__ == name)()
    held, used = memory.max_memory_reserved(), memory.max_memory_allocated()
    print(f"{name:<20}{held / used:6.3f}   {held // MIB} MiB held, {used // MIB} MiB in use")


main(*sys.argv[1:])
