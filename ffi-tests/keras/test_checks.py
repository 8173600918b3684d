"""What else a program meets that has libbfc in the place of TensorFlow's BFC allocator."""

import ctypes
import gc
import importlib.util
import os
import pathlib
import random
import sys
import threading

import bfc
import bfc.tensorflow
import pytest
from bfc._shim import ShimError

from conftest import QUIET
from pages import Page

sys.path.append(str(pathlib.Path(__file__).parents[1] / "pytorch-cpu"))
from failures import Refusing

pytestmark = [pytest.mark.own_process(env=QUIET | {"BFC_LOG": "warn"}), pytest.mark.usefixtures("no_complaint"), pytest.mark.filterwarnings("ignore")]

MiB = 1 << 20


def owner(tensor):
    return bfc.owner(tensor._numpy().ctypes.data)


def test_out_of_memory():
    """TensorFlow's own error, which says whose memory it was; and training goes on with smaller batches."""
    bfc.tensorflow.use(memory_limit=48 * MiB, retry_timeout_ms=0, name_operations=True)
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(1e-4), loss="mse")

    def fit(rows):
        inputs = tf.ones((rows, 256))
        return model.fit(inputs, tf.ones((rows, 1)), batch_size=rows, epochs=3, verbose=0).history["loss"]

    losses = fit(100)
    for rows in [1 << 15, 1 << 17, 1 << 34]:
        try:
            fit(rows)
            raise AssertionError(f"{rows} rows were served")
        except tf.errors.ResourceExhaustedError as error:
            assert "OOM when allocating tensor with shape" in error.message, error.message
            assert "by allocator bfc_cpu_allocator_for_gpu (libbfc, device 256)" in error.message, error.message
            print(error.message[:300])
    gc.collect()
    losses += fit(100)
    assert losses[-1] < losses[2] < losses[0], losses
    assert bfc.stats(bfc.HOST).num_failures >= 3
    report = bfc.report(bfc.HOST)
    assert 'memory of allocator "TensorFlow"' in report and "largest holders" in report, report
    assert "VarHandleOp" in report, report
    bfc.check(bfc.HOST)


def test_waiting():
    """A tensor that finds no memory waits for what another thread gives back."""
    # Practically forever.
    bfc.tensorflow.use(memory_limit=8 * MiB, retry_timeout_ms=600_000)
    import tensorflow as tf

    held = tf.zeros((6 * MiB,), tf.uint8)
    failures = bfc.stats(bfc.HOST).num_failures
    served = []
    other = threading.Thread(target=lambda: served.append(owner(tf.zeros((5 * MiB,), tf.uint8))))
    other.start()
    while bfc.stats(bfc.HOST).num_failures < failures + 2:
        assert other.is_alive(), "it did not wait"
    assert not served
    del held
    other.join()
    assert served == [bfc.HOST]


def test_random_sizes():
    """A thousand sizes and more, from a source that refuses more than half of the regions: each failure is TensorFlow's
    error, and what is in the tensors stays."""
    bfc.tensorflow.use(retry_timeout_ms=0)
    choose = random.Random(7)
    with Refusing(bfc.HOST, share=0.6, limit=32 * MiB) as source:
        import tensorflow as tf

        kept, failed, served = [], 0, 0
        for number in range(3000):
            size = choose.choice([0, 1, 255, 256, 257, choose.randrange(1, 5000), choose.randrange(1, 4 * MiB)])
            tensor = None
            try:
                tensor = tf.random.stateless_uniform((size // 4,), (number, 1), None, None, tf.int32)
            except tf.errors.ResourceExhaustedError:
                failed += 1
            else:
                served += 1
                values = tensor._numpy()
                if size >= 4:
                    assert owner(tensor) == bfc.HOST
                kept.append((tensor, hash(values.tobytes())))
            while len(kept) > 40 or (kept and choose.random() < 0.4):
                tensor, value = kept.pop(choose.randrange(len(kept)))
                assert hash(tensor._numpy().tobytes()) == value, "another tensor has written here"
            tensor = values = None
            if number % 3 == 0:
                # Else the source would hardly be asked.
                bfc.trim(bfc.HOST)
            if number % 500 == 0:
                bfc.check(bfc.HOST)
        assert served > 1000 and failed > 20 and source.refused > 50, (served, failed, source.refused)
        print(f"{served} served, {failed} failed, {source.refused} regions refused")
        # What TensorFlow keeps for itself stays with it; the program ends without the pool's end.
        kept.clear()
        gc.collect()
        assert bfc.stats(bfc.HOST).bytes_in_use < MiB, bfc.report(bfc.HOST)
        print("done", flush=True)
        os._exit(0)


def test_too_late():
    """Where it cannot work there is an error with the reason, and nothing has changed."""
    import tensorflow as tf

    try:
        bfc.tensorflow.use()
        raise AssertionError("it seems to work")
    except RuntimeError as error:
        assert "imported already" in str(error)
    assert "TF_CPU_ALLOCATOR_USE_BFC" not in os.environ
    try:
        bfc.tensorflow.allocators()
        raise AssertionError("it seems to work")
    except RuntimeError as error:
        assert "was not called" in str(error)
    assert tf.ones((10,)).shape == (10,)


def test_others_in_front():
    """Where another library has these functions already it says which, and nothing has changed."""
    [folder] = importlib.util.find_spec("tensorflow").submodule_search_locations
    ctypes.CDLL(f"{folder}/libtensorflow_framework.so.2", mode=ctypes.RTLD_GLOBAL)
    try:
        bfc.tensorflow.use(memory_limit=MiB)
        raise AssertionError("it seems to work")
    except RuntimeError as error:
        assert "libtensorflow_framework.so.2's already" in str(error), error
    assert "TF_CPU_ALLOCATOR_USE_BFC" not in os.environ
    try:
        bfc.stats(bfc.HOST)
        raise AssertionError("an allocator is left")
    except bfc.Error as error:
        assert error.name == "BFC_ERROR_NO_ALLOCATOR"


def test_no_compiler():
    """Without a compiler it says so, and nothing has changed."""
    try:
        os.environ["CXX"] = "/no/such/compiler"
        os.environ["XDG_CACHE_HOME"] = "/nonexistent"
        bfc.tensorflow.use()
        raise AssertionError("it seems to work")
    except ShimError as error:
        assert "/no/such/compiler" in str(error)
    assert "TF_CPU_ALLOCATOR_USE_BFC" not in os.environ
    assert "tensorflow" not in sys.modules


def test_until_the_end():
    """Tensors that live until the interpreter ends; and a limit that comes from TensorFlow's variable."""
    os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = "300"
    try:
        bfc.tensorflow.use(memory_fraction=7)
        raise AssertionError("a share of 7")
    except bfc.Error as error:
        assert error.name == "BFC_ERROR_INVALID_ARGUMENT"
    bfc.tensorflow.use()
    bfc.tensorflow.use()
    assert bfc.tensorflow.allocators() == []
    import tensorflow as tf

    sys.kept = tf.random.normal((1000,))
    cycle = [tf.Variable(sys.kept)]
    cycle.append(cycle)
    sys.function = tf.function(lambda tensor: tensor @ tensor)
    assert sys.function(tf.ones((100, 100)))[0, 0] == 100
    assert bfc.stats(bfc.HOST).bytes_limit == 300 * MiB
    [one] = bfc.tensorflow.allocators()
    assert one == ("bfc_cpu_allocator_for_gpu", bfc.HOST, 0, 0), one


def test_the_page():
    Page("tensorflow").run_all()
