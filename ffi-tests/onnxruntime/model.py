"""Writes the model that the tests run: some layers of several kinds, over inputs of any number of rows and steps.

    python model.py FILE

Its weights are random, and the same each time.
"""

import sys

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 64
HIDDEN = 96


def weights(random):
    """The initializers: 0.3 MB."""

    def tensor(name, *shape):
        values = random.standard_normal(shape, dtype=numpy.float32) * numpy.float32(0.1)
        return numpy_helper.from_array(values, name)

    return [
        tensor("embed", WIDTH, HIDDEN),
        tensor("embed_bias", HIDDEN),
        *(tensor(name, HIDDEN, HIDDEN) for name in ("query", "key", "value")),
        tensor("scale", HIDDEN),
        tensor("shift", HIDDEN),
        tensor("filters", HIDDEN, HIDDEN, 3),
        tensor("gates", 2, 4 * 32, HIDDEN),
        tensor("recurrent", 2, 4 * 32, 32),
        tensor("out", 2 * 32, 10),
    ]


def nodes():
    """Dense layers, attention, a convolution, a bidirectional LSTM."""
    make = helper.make_node
    return [
        make("MatMul", ["x", "embed"], ["embedded"]),
        make("Add", ["embedded", "embed_bias"], ["biased"]),
        make("Gelu", ["biased"], ["h"]),
        *(make("MatMul", ["h", name], [name + "s"]) for name in ("query", "key", "value")),
        make("Transpose", ["keys"], ["turned"], perm=[0, 2, 1]),
        make("MatMul", ["querys", "turned"], ["scores"]),
        make("Softmax", ["scores"], ["shares"], axis=-1),
        make("MatMul", ["shares", "values"], ["mixed"]),
        make("Add", ["mixed", "h"], ["summed"]),
        make("LayerNormalization", ["summed", "scale", "shift"], ["normal"], axis=-1),
        make("Transpose", ["normal"], ["channels"], perm=[0, 2, 1]),
        make("Conv", ["channels", "filters"], ["filtered"], pads=[1, 1]),
        make("Relu", ["filtered"], ["positive"]),
        make("Transpose", ["positive"], ["steps"], perm=[2, 0, 1]),
        make("LSTM", ["steps", "gates", "recurrent"], ["states"], hidden_size=32, direction="bidirectional"),
        make("Transpose", ["states"], ["by_row"], perm=[2, 0, 1, 3]),
        make("Reshape", ["by_row", "flat"], ["joined"]),
        make("MatMul", ["joined", "out"], ["logits"]),
        make("Softmax", ["logits"], ["y"], axis=-1),
        make("ReduceMean", ["normal"], ["mean"], keepdims=0),
    ]


def model():
    random = numpy.random.default_rng(7)
    flat = numpy_helper.from_array(numpy.array([0, -1, 2 * 32], dtype=numpy.int64), "flat")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes(),
        "layers",
        [value("x", TensorProto.FLOAT, ["rows", "steps", WIDTH])],
        [value("y", TensorProto.FLOAT, ["rows", "steps", 10]), value("mean", TensorProto.FLOAT, [])],
        [*weights(random), flat],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return made


if __name__ == "__main__":
    onnx.save(model(), sys.argv[1])
