"""What real programs do on the CPU: random weights, synthetic data. Each is a function that returns a step; a step returns what must be
the same for all allocators."""

import hashlib

MIB = 1 << 20
SEED = 20240601
THREADS = 64


# What makes the options of a session of ONNX Runtime; measure.py may put something here.
session_options = None


def in_each_thread():
    """What a new thread does first; measure.py puts something else here."""


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


def threads():
    """inference of a perceptron of four layers in 64 threads, 16 rows each"""
    torch = _torch()
    torch.set_num_threads(1)
    sizes = [(256, 512), (512, 512), (512, 512), (512, 64)]
    layers = [part for wide in sizes for part in (torch.nn.Linear(*wide), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).eval()
    rows = torch.rand(THREADS, 16, 256)

    def run(number):
        with torch.inference_mode():
            for _ in range(20):
                result = model(rows[number])
        return result.numpy().tobytes()

    return _in_threads(run)


def numpy_threads():
    """NumPy: a chain of operations on arrays of 512 KiB in 64 threads"""
    import numpy

    random = numpy.random.default_rng(SEED)
    a, b = random.random((THREADS, MIB // 16)), random.random((THREADS, MIB // 16))

    def run(number):
        for _ in range(20):
            total = numpy.maximum(a[number] * b[number] + a[number], 0.5) - b[number]
        return total[::1024].tobytes()

    return _in_threads(run)


def tensorflow_training():
    """TensorFlow: training of a convolutional network, 16 images of 64 by 64"""
    import tensorflow

    tensorflow.keras.utils.set_random_seed(SEED)
    tensorflow.config.experimental.enable_op_determinism()
    tensorflow.config.threading.set_intra_op_parallelism_threads(2)
    layers = tensorflow.keras.layers
    parts = [layers.Conv2D(wide, 3, padding="same", activation="relu", strides=1 + (wide > 64)) for wide in (32, 64, 128, 256)]
    model = tensorflow.keras.Sequential([*parts, layers.GlobalAveragePooling2D(), layers.Dense(10)])
    images = tensorflow.random.uniform((16, 64, 64, 3))
    classes = tensorflow.random.uniform((16,), maxval=10, dtype=tensorflow.int32)
    model(images)

    @tensorflow.function
    def train():
        with tensorflow.GradientTape() as tape:
            losses = tensorflow.nn.sparse_softmax_cross_entropy_with_logits(classes, model(images))
            loss = tensorflow.reduce_mean(losses)
        variables = model.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(0.01 * gradient)
        return loss

    return lambda: float(train()).hex()


def onnx_inference():
    """ONNX Runtime: a convolutional network, inference, 4 images of 224 by 224"""
    import numpy
    import onnxruntime
    from onnx import helper, numpy_helper

    random = numpy.random.default_rng(SEED)
    nodes, weights, last, deep = [], [], "images", 3
    for number, (wide, stride) in enumerate([(64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)]):
        values = random.standard_normal((wide, deep, 3, 3), dtype=numpy.float32) / deep
        weights.append(numpy_helper.from_array(values, f"weights{number}"))
        nodes.append(helper.make_node("Conv", [last, f"weights{number}"], [f"conv{number}"], pads=[1] * 4, strides=[stride] * 2))
        nodes.append(helper.make_node("Relu", [f"conv{number}"], [f"relu{number}"]))
        last, deep = f"relu{number}", wide
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["result"]))
    ends = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("images", (4, 3, 224, 224)), ("result", (4, deep, 1, 1)))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = session_options() if session_options else onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    images = random.random((4, 3, 224, 224), dtype=numpy.float32)
    return lambda: hashlib.sha256(session.run(None, {"images": images})[0].tobytes()).hexdigest()


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


def _in_threads(run):
    """A step in which 64 threads run at once, on however many cores."""
    from concurrent.futures import ThreadPoolExecutor

    executor = ThreadPoolExecutor(THREADS, initializer=in_each_thread)

    def step():
        parts = executor.map(run, range(THREADS))
        return hashlib.sha256(b"".join(parts)).hexdigest()

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


WITH_TORCH = (elementwise, small, threads, mlp, resnet_inference, vit_inference, convolution, gpt2, bert, lengths)
WITHOUT_TORCH = (numpy_chain, numpy_threads, arrow_query)
WITH_TENSORFLOW = (tensorflow_training,)
WITH_ONNX = (onnx_inference,)
ALL = {program.__name__: program for program in (*WITH_TORCH, *WITHOUT_TORCH, *WITH_TENSORFLOW, *WITH_ONNX)}
