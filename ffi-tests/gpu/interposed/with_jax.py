"""JAX with XLA_PYTHON_CLIENT_ALLOCATOR=platform: XLA asks the driver for each buffer. A small model is trained, and its
losses are the same whoever serves them, and nearly those of the CPU.

`with_jax.py cpu` does all of it on the CPU, to try this file where there is no GPU."""

import os
import subprocess
import sys

from outcome import finish, skip

# Trying which kernel is the fastest would make another choice in each run, and other roundings.
SAME_KERNELS = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"


def prepare():
    """All of it is read when JAX is loaded. A flag that it does not know ends the process, so another one tries."""
    os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"
    # Both the device and the CPU are wanted, whatever the user has set.
    os.environ.pop("JAX_PLATFORMS", None)
    flags = f"{os.environ.get('XLA_FLAGS', '')} {SAME_KERNELS}".strip()
    trial = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    program = "import jax; jax.jit(lambda x: x + 1)(1)"
    if subprocess.run([sys.executable, "-c", program], env=trial, capture_output=True, check=False).returncode == 0:
        os.environ["XLA_FLAGS"] = flags
    else:
        print("XLA does not know all of", SAME_KERNELS, file=sys.stderr)


try:
    import numpy
    import importlib.util

    if importlib.util.find_spec("jax") is None:
        skip("JAX is not here")
    prepare()
    import jax
    import jax.numpy as jnp
except Exception as error:  # a library that it needs may be missing too
    skip(f"JAX is not here: {error!r}".splitlines()[0])

SEED = 20240601
STEPS = 60
WIDTHS = [20, 128, 64, 1]


def main():
    kind = sys.argv[1] if len(sys.argv) > 1 else "gpu"
    try:
        device = jax.devices(kind)[0]
    except RuntimeError as error:
        skip(f"JAX finds no device that it can use: {error}".splitlines()[0])
    losses, wrong = train(device), []
    for step, (found, expected) in enumerate(zip(losses, train(jax.devices("cpu")[0]))):
        # What is left of it is that sums are rounded in another order.
        if not abs(found - expected) <= 1e-3 * max(1.0, abs(expected)):
            wrong.append(f"the loss of step {step} is {found}, on the CPU {expected}")
    if not losses[-1] < losses[0]:
        wrong.append(f"nothing was learnt: the loss was {losses[0]} and is {losses[-1]}")
    # The weights and offsets of each layer are new in each step.
    arrays = STEPS * 2 * (len(WIDTHS) - 1)
    finish(wrong[:20], arrays, [f"loss of step {step}: {loss.hex()}" for step, loss in enumerate(losses)])


def loss_of(layers, rows, targets):
    for weights, offsets in layers[:-1]:
        rows = jnp.tanh(rows @ weights + offsets)
    weights, offsets = layers[-1]
    return jnp.mean((rows @ weights + offsets - targets) ** 2)


@jax.jit
def step_of(layers, rows, targets):
    loss, slopes = jax.value_and_grad(loss_of)(layers, rows, targets)
    return loss, jax.tree.map(lambda value, slope: value - 0.05 * slope, layers, slopes)


def train(device):
    """The losses of some steps; batches of three sizes. All random numbers are numpy's."""
    choose = numpy.random.default_rng(SEED)
    layers = []
    for inputs, outputs in zip(WIDTHS, WIDTHS[1:]):
        weights = choose.normal(0, inputs**-0.5, (inputs, outputs)).astype(numpy.float32)
        layers.append((weights, numpy.zeros(outputs, numpy.float32)))
    layers = jax.device_put(layers, device)
    losses = []
    with jax.default_matmul_precision("highest"):
        for step in range(STEPS):
            rows = choose.normal(size=([64, 100, 333][step % 3], WIDTHS[0])).astype(numpy.float32)
            targets = numpy.sin(rows.sum(axis=1, keepdims=True) / 4)
            loss, layers = step_of(layers, jax.device_put(rows, device), jax.device_put(targets, device))
            losses.append(float(loss))
    return losses


if __name__ == "__main__":
    main()
