"""Small models that have the layers of large ones. Their kernels compute nothing here: what matters is which tensors
come and go, and when."""

import torch
from torch import nn

WORDS = 500
CLASSES = 10


class Perceptron(nn.Module):
    """Layers one after another, on rows of any number."""

    inputs = 784

    def __init__(self, width=1024):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(self.inputs, width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.GELU(),
            nn.Linear(width, CLASSES),
        )

    def forward(self, rows):
        return self.layers(rows)

    def batch(self, choose):
        return torch.randn(choose.randrange(16, 256), self.inputs)


class Transformer(nn.Module):
    """Two blocks of attention over sequences of random lengths."""

    width = 128

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, self.width)
        layer = nn.TransformerEncoderLayer(self.width, nhead=4, dim_feedforward=512, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(self.width, CLASSES)

    def forward(self, words):
        return self.head(self.blocks(self.embedding(words)).mean(dim=1))

    def batch(self, choose):
        return torch.randint(0, WORDS, (choose.randrange(4, 17), choose.randrange(10, 129)))


class Convolution(nn.Module):
    """Images of random sizes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(64 * 16, CLASSES),
        )

    def forward(self, images):
        return self.layers(images)

    def batch(self, choose):
        side = 8 * choose.randrange(2, 9)
        return torch.randn(choose.randrange(4, 33), 3, side, side)
