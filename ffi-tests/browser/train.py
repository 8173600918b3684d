"""A transformer that PyTorch trains on the CPU with libbfc's memory, for pictures of a real program. Each module is a scope."""

import contextlib

import torch

import bfc
import bfc.torch_cpu

STEPS, BATCH, LENGTH, WIDTH, HEADS, LAYERS, WORDS = 6, 8, 128, 256, 4, 4, 4000


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)])
        self.project = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.join = torch.nn.Linear(WIDTH, WIDTH)
        self.feed = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, step):
        with bfc.scope("attention", step):
            parts = self.project(self.norms[0](x)).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            scores = torch.softmax(parts[0] @ parts[1].transpose(-1, -2) / 8, -1)
            x = x + self.join((scores @ parts[2]).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        with bfc.scope("feed forward", step):
            return x + self.feed(self.norms[1](x))


def train():
    # The backward pass stays on this thread, which has the scopes.
    torch.autograd.set_multithreading_enabled(False)
    with bfc.scope("weights"):
        embed, head = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Linear(WIDTH, WORDS)
        blocks = torch.nn.ModuleList([Block() for _ in range(LAYERS)])
    weights = [*embed.parameters(), *blocks.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(weights)
    for step in range(STEPS):
        words = torch.randint(WORDS, (BATCH, LENGTH + 1))
        with contextlib.ExitStack() as stack:
            stack.enter_context(bfc.scope("forward", step))
            x = embed(words[:, :-1])
            for number, block in enumerate(blocks):
                with bfc.scope(f"layer {number}", step):
                    x = block(x, step)
            with bfc.scope("loss", step):
                loss = torch.nn.functional.cross_entropy(head(x).flatten(0, 1), words[:, 1:].flatten())
        with bfc.scope("backward", step):
            loss.backward()
        del x, loss
        with bfc.scope("optimizer", step):
            optimizer.step()
            optimizer.zero_grad()
        bfc.history_mark(f"step {step} done")


torch.manual_seed(1)
torch.set_num_threads(1)
bfc.torch_cpu.use()
train()
