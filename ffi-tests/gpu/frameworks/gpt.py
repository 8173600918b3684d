"""A small GPT of plain torch modules, and texts for it: transformers need not be there."""

import dataclasses
import random

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Shape:
    """How large the model and its batches are. Lengths differ from batch to batch, so the sizes of what is allocated do."""

    words: int
    width: int
    layers: int
    heads: int
    rows: int
    shortest: int
    longest: int


# Of GPT-2 small; and one for a driver whose kernels compute nothing.
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
        # In one dimension: that of two has no deterministic kernel.
        return functional.cross_entropy(said.flatten(0, 1).float(), texts[:, 1:].flatten())


def texts(shape, seed):
    """Batches without end, the same for each seed, made on the host: words in steps of the row's own, which can be
    learnt."""
    choose = random.Random(seed)
    while True:
        places = torch.arange(choose.randrange(shape.shortest, shape.longest) + 1)
        rows = [choose.randrange(shape.words) + places * choose.randrange(1, 5) for _ in range(shape.rows)]
        yield torch.stack(rows) % min(shape.words, 200)
