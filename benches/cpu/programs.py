"""What real programs do on the CPU: random weights, synthetic data. Each is a function that returns a step; a step returns what must be
the same for all allocators."""

import hashlib

MIB = 1 << 20
SEED = 20240601


def _torch():
    import torch

    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    return torch


def elementwise():
    """a chain of elementwise operations on tensors of 64 MiB"""
    torch = _torch()
    a, b = torch.rand(16 * MIB), torch.rand(16 * MIB)

    def step():
        total = ((a * b + a).relu() - b) * 0.5
        return float(total[::MIB].sum()).hex()

    return step


def small():
    """a hundred additions of 64 elements"""
    torch = _torch()
    a, b = torch.rand(64), torch.rand(64)

    def step():
        total = a
        for _ in range(100):
            total = total + b
        return float(total.sum()).hex()

    return step


def mlp():
    """training of a perceptron of four layers, 512 rows"""
    torch = _torch()
    sizes = [(784, 2048), (2048, 2048), (2048, 2048), (2048, 10)]
    layers = [part for wide in sizes for part in (torch.nn.Linear(*wide), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers[:-1])
    rows, classes = torch.rand(512, 784), torch.randint(10, (512,))
    return _training(torch, model, lambda: torch.nn.functional.cross_entropy(model(rows), classes))


def resnet_inference():
    """ResNet-50, inference, 4 images of 224 by 224"""
    torch = _torch()
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig()).eval()
    images = torch.rand(4, 3, 224, 224)
    return _inference(torch, lambda: model(images).logits)


def vit_inference():
    """ViT-B/16, inference, 2 images of 224 by 224"""
    torch = _torch()
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig()).eval()
    images = torch.rand(2, 3, 224, 224)
    return _inference(torch, lambda: model(images).logits)


def convolution():
    """training of ResNet-18, 16 images of 64 by 64"""
    torch = _torch()
    from transformers import ResNetConfig, ResNetForImageClassification

    shape = ResNetConfig(depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic", num_labels=10)
    model = ResNetForImageClassification(shape)
    images, classes = torch.rand(16, 3, 64, 64), torch.randint(10, (16,))
    return _training(torch, model, lambda: model(images, labels=classes).loss)


def gpt2():
    """training of GPT-2 small (124M), 128 tokens"""
    torch = _torch()
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config())
    words = torch.randint(50000, (1, 128))
    return _training(torch, model, lambda: model(input_ids=words, labels=words).loss)


def bert():
    """training of BERT-base, 2 rows of 128 tokens"""
    torch = _torch()
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig())
    words = torch.randint(30000, (2, 128))
    return _training(torch, model, lambda: model(input_ids=words, labels=words).loss)


def lengths():
    """training of a small GPT with rows of random lengths, 16 to 512"""
    torch = _torch()
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_head=8, n_embd=256, vocab_size=5000))
    choose = torch.Generator().manual_seed(SEED)

    def loss():
        length = int(torch.randint(16, 513, (1,), generator=choose))
        words = torch.randint(5000, (4, length), generator=choose)
        return model(input_ids=words, labels=words).loss

    return _training(torch, model, loss)


def numpy_chain():
    """NumPy: a chain of operations on arrays of 64 MiB"""
    import numpy

    random = numpy.random.default_rng(SEED)
    a, b = random.random(8 * MIB), random.random(8 * MIB)

    def step():
        total = numpy.maximum(a * b + a, 0.5) - b
        return float(total[::MIB].sum()).hex()

    return step


def arrow_query():
    """Arrow: filter, compute, cast and take over two million rows"""
    import numpy
    import pyarrow
    from pyarrow import compute

    random = numpy.random.default_rng(SEED)
    rows = 2_000_000
    table = pyarrow.table({"key": random.integers(0, 1000, rows), "price": random.random(rows), "amount": random.random(rows)})
    order = random.integers(0, rows // 4, rows // 4)

    def step():
        kept = table.filter(compute.greater(table["price"], 0.5))
        value = compute.multiply(kept["price"], kept["amount"])
        value = compute.add(value, compute.cast(kept["key"], "float64"))
        taken = value.take(order)
        return compute.sum(taken).as_py().hex()

    return step


def _training(torch, model, loss_of):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.item().hex()

    return step


def _inference(torch, run):
    def step():
        with torch.inference_mode():
            return hashlib.sha256(run().numpy().tobytes()).hexdigest()

    return step


WITH_TORCH = (elementwise, small, mlp, resnet_inference, vit_inference, convolution, gpt2, bert, lengths)
WITHOUT_TORCH = (numpy_chain, arrow_query)
ALL = {program.__name__: program for program in (*WITH_TORCH, *WITHOUT_TORCH)}
