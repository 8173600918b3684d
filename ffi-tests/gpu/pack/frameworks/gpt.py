"""A GPT of plain torch modules and texts for it, so that transformers is not needed."""

import dataclasses
import random

import torch
from torch import nn
from torch.nn import functional

ITEMS = "tokens"
# Steps that are not timed, and steps that are.
WARM_UP, STEPS = 10, 60


@dataclasses.dataclass(frozen=True)
class Shape:
    """The size of the model and of its batches. Lengths differ between batches, and so do the sizes of allocations."""

    words: int
    width: int
    layers: int
    heads: int
    rows: int
    shortest: int
    longest: int


# GPT-2 small, and a model for the simulated driver.
FULL = Shape(words=50304, width=768, layers=12, heads=12, rows=8, shortest=128, longest=1024)
TINY = Shape(words=500, width=64, layers=2, heads=4, rows=2, shortest=8, longest=64)


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads = shape.heads
        self.before = nn.LayerNorm(shape.width)
        self.mixed = nn.Linear(shape.width, 3 * shape.width)
        self.projected = nn.Linear(shape.width, shape.width)
        self.after = nn.LayerNorm(shape.width)
        self.wide = nn.Linear(shape.width, 4 * shape.width)
        self.narrow = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x):
        rows, length, width = x.shape
        parts = self.mixed(self.before(x)).split(width, dim=2)
        query, key, value = (part.view(rows, length, self.heads, -1).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projected(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.after(x))))


class Gpt(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.word = nn.Embedding(shape.words, shape.width)
        self.place = nn.Embedding(shape.longest, shape.width)
        self.layers = nn.Sequential(*(Layer(shape) for _ in range(shape.layers)))
        self.last = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.words, bias=False)

    def forward(self, words):
        places = torch.arange(words.shape[1], device=words.device)
        return self.head(self.last(self.layers(self.word(words) + self.place(places))))

    def loss(self, texts):
        said = self(texts[:, :-1])
        # Flat, because the loss of two dimensions has no deterministic kernel.
        return functional.cross_entropy(said.flatten(0, 1).float(), texts[:, 1:].flatten())


def training(shape):
    """Returns a new model on the current default device, and its optimizer."""
    model = Gpt(shape)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4)


def batches(shape, count, seed):
    """Returns batches of texts on the default device. The same seed gives the same texts, in which each row counts in steps of
    its own, so a model can learn them."""
    choose, found = random.Random(seed), []
    for _ in range(count):
        places = torch.arange(choose.randrange(shape.shortest, shape.longest) + 1, device="cpu")
        rows = [choose.randrange(shape.words) + places * choose.randrange(1, 5) for _ in range(shape.rows)]
        found.append((torch.stack(rows) % min(shape.words, 200)).to("cuda"))
    return found


def arguments(batch):
    """What Gpt.loss() takes."""
    return (batch,)


def items(batch):
    return batch[:, 1:].numel()
