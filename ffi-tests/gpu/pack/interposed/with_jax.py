"""JAX with XLA_PYTHON_CLIENT_ALLOCATOR=platform: XLA requests each buffer from the driver.

A small model is trained. Its losses must be the same with and without the interposer, and close to those of the CPU.
`with_jax.py cpu` trains on the CPU only, to check the program without a GPU."""

import os
import sys

from outcome import finish, first_line, skip

# Read when JAX is imported. Both the device and the CPU are needed, whatever the caller has set.
os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"
os.environ.pop("JAX_PLATFORMS", None)

try:
    import jax
    import jax.numpy as jnp
    import numpy
except Exception as error:  # a library that JAX loads may be missing too
    skip(f"JAX cannot be imported ({first_line(error)}): pip install jax[cuda13]")

SEED = 20240601
STEPS = 40
WIDTHS = [20, 128, 64, 1]
# Each size is compiled once for each device, which takes most of the time.
ROWS = [64, 333]
# XLA chooses kernels by measuring them, which may round differently in each run.
SAME_KERNELS = {"xla_gpu_deterministic_ops": True, "xla_gpu_autotune_level": 0}


def main():
    kind = sys.argv[1] if len(sys.argv) > 1 else "gpu"
    try:
        device = jax.devices(kind)[0]
    except RuntimeError as error:
        skip(f"JAX finds no device ({first_line(error)}): pip install jax[cuda13], and check nvidia-smi")
    losses, errors = train(device), []
    for step, (found, expected) in enumerate(zip(losses, train(jax.devices("cpu")[0]))):
        # Only the order of sums differs.
        if not abs(found - expected) <= 1e-3 * max(1.0, abs(expected)):
            errors.append(f"the loss of step {step} is {found}, on the CPU {expected}")
    if not losses[-1] < losses[0]:
        errors.append(f"the model did not learn: the loss went from {losses[0]} to {losses[-1]}")
    # Each step makes new weights and biases of each layer.
    arrays = STEPS * 2 * (len(WIDTHS) - 1)
    finish(errors[:20], arrays, [f"loss of step {step}: {loss.hex()}" for step, loss in enumerate(losses)])


def loss_of(layers, rows, targets):
    for weights, biases in layers[:-1]:
        rows = jnp.tanh(rows @ weights + biases)
    weights, biases = layers[-1]
    return jnp.mean((rows @ weights + biases - targets) ** 2)


def step_of(layers, rows, targets):
    loss, slopes = jax.value_and_grad(loss_of)(layers, rows, targets)
    return loss, jax.tree.map(lambda value, slope: value - 0.05 * slope, layers, slopes)


def train(device):
    """Returns the losses. The batches have several sizes, and numpy makes all random numbers."""
    step_on_device = jax.jit(step_of, compiler_options=SAME_KERNELS)
    random = numpy.random.default_rng(SEED)
    layers = []
    for inputs, outputs in zip(WIDTHS, WIDTHS[1:]):
        weights = random.normal(0, inputs**-0.5, (inputs, outputs)).astype(numpy.float32)
        layers.append((weights, numpy.zeros(outputs, numpy.float32)))
    layers = jax.device_put(layers, device)
    losses = []
    with jax.default_matmul_precision("highest"):
        for step in range(STEPS):
            rows = random.normal(size=(ROWS[step % len(ROWS)], WIDTHS[0])).astype(numpy.float32)
            targets = numpy.sin(rows.sum(axis=1, keepdims=True) / 4)
            batch = jax.device_put((rows, targets), device)
            loss, layers = step_on_device(layers, *batch)
            losses.append(float(loss))
    return losses


if __name__ == "__main__":
    main()
