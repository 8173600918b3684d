"""A residual network of the shape of ResNet-50 in plain torch modules, so that torchvision is not needed, and images for it."""

import dataclasses
import random

import torch
from torch import nn
from torch.nn import functional

ITEMS = "images"
# Steps that are not timed, and steps that are. cuDNN chooses kernels for each size once, in the first steps.
WARM_UP, STEPS = 12, 60


@dataclasses.dataclass(frozen=True)
class Shape:
    width: int
    blocks: tuple[int, ...]
    """In each of the four stages."""
    classes: int
    sizes: tuple[tuple[int, int], ...]
    """The batches: how many images, and of how many pixels a side."""


FULL = Shape(64, (3, 4, 6, 3), 1000, ((96, 128), (64, 160), (48, 192), (32, 224), (64, 224), (96, 192)))
TINY = Shape(8, (1, 1, 1, 1), 10, ((2, 32), (3, 48)))


class Block(nn.Module):
    """Three convolutions beside a connection that skips them."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.inner = nn.Sequential(
            *_convolution(inputs, width, 1, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, outputs, 1, 1),
        )
        is_same = inputs == outputs and stride == 1
        self.skip = nn.Identity() if is_same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x):
        return functional.relu(self.inner(x) + self.skip(x), inplace=True)


def _convolution(inputs, outputs, kernel, stride):
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs)


class ConvNet(nn.Module):
    def __init__(self, shape):
        super().__init__()
        parts = [*_convolution(3, shape.width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
        inputs = shape.width
        for stage, count in enumerate(shape.blocks):
            width = shape.width << stage
            for number in range(count):
                parts.append(Block(inputs, width, 2 if stage > 0 and number == 0 else 1))
                inputs = 4 * width
        self.body = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, shape.classes))

    def loss(self, images, labels):
        return functional.cross_entropy(self.body(images).float(), labels)


def training(shape):
    """Returns a new model on the current default device, and its optimizer."""
    model = ConvNet(shape).to(memory_format=torch.channels_last)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def batches(shape, count, seed):
    """Returns the images and labels of each batch: parts of the same tensors, cut out in arguments(). Every size comes up once
    before any comes up again."""
    choose = random.Random(seed)
    rows, pixels = (max(numbers) for numbers in zip(*shape.sizes))
    images = torch.randn(rows, 3, pixels, pixels, device="cuda")
    labels = torch.randint(shape.classes, (rows,), device="cuda")
    found = []
    while len(found) < count:
        for rows, pixels in choose.sample(shape.sizes, len(shape.sizes)):
            found.append((images[:rows, :, :pixels, :pixels], labels[:rows]))
    return found[:count]


def arguments(batch):
    """What ConvNet.loss() takes. The images are new ones in each step, as if they had just been loaded."""
    images, labels = batch
    return images.contiguous(memory_format=torch.channels_last), labels


def items(batch):
    return len(batch[1])
