"""Trains a Keras model on the CPU and tells what came of it, as JSON; with the allocator of TensorFlow's that is usual, with
its BFC allocator, or with libbfc in that one's place.

The losses and the weights must be the same, bit for bit, with every allocator. See README.md.
"""

import argparse
import ctypes
import gc
import hashlib
import json
import os

SEED = 20240601


def main():
    options = arguments()
    if options.allocator == "bfc":
        os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
    if options.allocator == "libbfc":
        import bfc.tensorflow

        if options.mutate == "plain":
            # What happens if the shim is not in front: TensorFlow's own allocator serves.
            os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
        else:
            bfc.tensorflow.use(memory_limit=4 << 30)
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import tensorflow as tf

    probe = ctypes.CDLL(options.probe)
    probe.probe_begin()
    probe.probe_base_allocations.restype = probe.probe_tensor_allocations.restype = ctypes.c_int64
    probe.probe_tensor_allocator.restype = ctypes.c_char_p

    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(SEED + (options.mutate == "seed"))
    model, told = train(keras, tf)
    seen = {"allocator": probe.probe_tensor_allocator().decode(), "requests": probe.probe_tensor_allocations()}
    seen["requests of others"] = probe.probe_base_allocations()
    if options.allocator == "libbfc":
        seen["libbfc"] = account(model, tf, options)
    if options.allocator != "usual":
        kept = tf.random.normal((1000, 1000)) if options.mutate == "leak" else None
        seen["left"] = left(model, tf)
        del kept
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump({"same": told, "seen": seen}, file, indent=1)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, help="the file to write")
    parser.add_argument("--probe", required=True, help="probe.cpp, compiled")
    parser.add_argument("--threads", type=int, default=1, help="that an operation may use")
    parser.add_argument("--allocator", choices=["usual", "bfc", "libbfc"], default="usual")
    parser.add_argument("--mutate", choices=["seed", "plain", "leak"], help="a fault that the suite has to find")
    return parser.parse_args()


def train(keras, tf):
    """Two epochs over images of noise, in batches of a size that does not divide their number, compiled and eagerly."""
    model = keras.Sequential(
        [
            keras.Input((24, 24, 3)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Reshape((81, 32)),
            keras.layers.LSTM(24),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss)
    images = keras.random.normal((150, 24, 24, 3), seed=1)
    classes = tf.cast(tf.math.abs(tf.reduce_sum(images, axis=(1, 2, 3))), tf.int64) % 10
    data = tf.data.Dataset.from_tensor_slices((images, classes)).shuffle(150, seed=2).batch(32)
    history = model.fit(data, epochs=2, verbose=0)
    model.run_eagerly = True
    model.compile(optimizer=keras.optimizers.SGD(1e-2), loss=loss, run_eagerly=True)
    eager = model.fit(data.take(2), epochs=1, verbose=0)
    losses = history.history["loss"] + eager.history["loss"]
    return model, {"losses": [float(value).hex() for value in losses], "weights": digest(model)}


def digest(model):
    total = hashlib.sha256()
    for weight in model.get_weights():
        total.update(f"{weight.shape} {weight.dtype}".encode())
        total.update(weight.tobytes())
    return total.hexdigest()


def account(model, tf, options):
    """What libbfc and TensorFlow say of the same memory."""
    import bfc
    import bfc.tensorflow

    told = tf.config.experimental.get_memory_info("CPU:0")
    facts = {"allocators": [list(one) for one in bfc.tensorflow.allocators()] if options.mutate != "plain" else None}
    try:
        statistics = bfc.stats(bfc.HOST)
    except bfc.Error as error:
        return facts | {"error": str(error)}
    facts["as TensorFlow tells"] = told == {"current": statistics.bytes_in_use, "peak": statistics.peak_bytes_in_use}
    weights = [owner(bfc, variable.value) for variable in model.variables]
    results = [owner(bfc, tf.random.normal((size,)) * 2) for size in range(1, 3000, 100)]
    facts["variables"] = {"count": len(weights), "of others": sum(one != bfc.HOST for one in weights)}
    facts["results"] = {"count": len(results), "of others": sum(one != bfc.HOST for one in results)}
    bfc.check(bfc.HOST)
    facts["allocations"] = statistics.num_allocs
    facts["in use"] = statistics.bytes_in_use
    facts["report"] = bfc.report(bfc.HOST).splitlines()[0]
    return facts


def owner(bfc, tensor):
    """Whose memory a tensor is. A view of the buffer, and not numpy(), which copies."""
    tensor = tensor.read_value() if hasattr(tensor, "read_value") else tensor
    try:
        return bfc.owner(tensor._numpy().ctypes.data)
    except bfc.Error:
        return None


def left(model, tf):
    """What TensorFlow says is in use when nothing of the program's is alive any more: what it keeps for itself."""
    import keras
    from tensorflow.python.eager import context

    model.optimizer = None
    model.__dict__.clear()
    keras.backend.clear_session()
    context.context().clear_kernel_cache()
    for _ in range(3):
        gc.collect()
    return tf.config.experimental.get_memory_info("CPU:0")


if __name__ == "__main__":
    main()
