"""bfc.rmm with the real package rmm, on the simulated driver. Its library calls what runtime.cpp has in the place of
NVIDIA's runtime; the two functions of cuda.bindings that bfc.rmm and rmm call have the same runtime inside, and are
replaced below.
"""

import ctypes
import pathlib
import random
import sys
import threading

from cuda.bindings import runtime

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from pages import Page  # noqa: E402

simulated = ctypes.CDLL("libcudart.so.13")
driver = ctypes.CDLL("libcuda.so.1")
driver.simcuda_used.restype = ctypes.c_uint64
driver.simcuda_misuses.restype = ctypes.c_uint64


def get_device():
    device = ctypes.c_int()
    status = simulated.cudaGetDevice(ctypes.byref(device))
    return runtime.cudaError_t(status), device.value


def set_device(device):
    return (runtime.cudaError_t(simulated.cudaSetDevice(device)),)


runtime.cudaGetDevice, runtime.cudaSetDevice = get_device, set_device

import bfc
import bfc.rmm
import rmm
from rmm.pylibrmm.stream import DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, Stream

MIB = 1 << 20


def contents(buffer):
    """DeviceBuffer.tobytes() copies by the runtime within cuda.bindings."""
    host = ctypes.create_string_buffer(buffer.size)
    to_host = 2
    assert simulated.cudaMemcpy(host, ctypes.c_void_p(buffer.ptr), ctypes.c_size_t(buffer.size), to_host) == 0
    return host.raw


def page_is_true():
    """The blocks of Python on the page, as they stand there."""
    names = Page("rmm").run_all({})
    assert bfc.stats(0).num_allocs > 0
    names.clear()
    assert bfc.stats(0).bytes_in_use == 0
    bfc.destroy(0)


def buffers_are_of_libbfc():
    bfc.create(0, memory_limit=64 * MIB)
    made = bfc.rmm.use()
    assert rmm.mr.get_current_device_resource() is made
    buffer = rmm.DeviceBuffer.to_device(b"hello, device")
    assert bfc.owner(buffer.ptr) == 0 and bfc.requested_size(0, buffer.ptr) == 13
    assert bfc.stats(0).bytes_requested == 13
    assert contents(buffer) == b"hello, device"
    buffer.resize(100_000)
    assert bfc.stats(0).bytes_requested == 100_000
    empty = rmm.DeviceBuffer(size=0)
    assert empty.ptr == 0
    del buffer, empty
    assert bfc.stats(0).bytes_in_use == 0
    bfc.destroy(0)


def of_two_devices():
    first, second = bfc.rmm.resource(0), bfc.rmm.resource(1)
    one, two = rmm.DeviceBuffer(size=1000, mr=first), rmm.DeviceBuffer(size=1000, mr=second)
    assert (bfc.owner(one.ptr), bfc.owner(two.ptr)) == (0, 1)
    set_device(1)
    third = bfc.rmm.use()
    assert bfc.owner(third.allocate(256)) == 1
    set_device(0)
    del one, two
    bfc.destroy(0)
    bfc.destroy(1, force=True)
    try:
        bfc.rmm.resource(7)
    except bfc.Error as error:
        assert error.name == "BFC_ERROR_BACKEND_UNAVAILABLE", error
    else:
        raise AssertionError("there is no device 7")


def in_the_order_of_streams():
    bfc.create(0, memory_limit=64 * MIB)
    made = bfc.rmm.resource(0)
    first, second = Stream(), Stream()
    handle = ctypes.c_void_p(first.__cuda_stream__()[1])
    made.deallocate(made.allocate(256, second), 256, second)
    assert driver.simcuda_hold(handle) == 0
    address = made.allocate(20 * MIB, first)
    assert driver.simcuda_fill(handle, ctypes.c_uint64(address), ctypes.c_uint64(20 * MIB), ctypes.c_uint64(1)) == 0
    made.deallocate(address, 20 * MIB, first)
    again, other = made.allocate(20 * MIB, first), made.allocate(20 * MIB, second)
    assert again == address and other != address
    made.deallocate(again, 20 * MIB, first)
    assert driver.simcuda_release(handle) == 0
    made.deallocate(other, 20 * MIB, second)
    for stream in (DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM):
        made.deallocate(made.allocate(MIB, stream), MIB, stream)
    for stream in (first, second):
        bfc.forget_stream(0, stream.__cuda_stream__()[1])
    del first, second
    bfc.destroy(0)


def adaptors():
    bfc.create(0, memory_limit=64 * MIB)
    counted = rmm.mr.StatisticsResourceAdaptor(bfc.rmm.resource(0))
    limited = rmm.mr.LimitingResourceAdaptor(counted, 10 * MIB)
    buffer = rmm.DeviceBuffer(size=MIB, mr=limited)
    assert counted.allocation_counts.current_bytes == MIB == limited.get_allocated_bytes()
    del buffer
    assert counted.allocation_counts.current_bytes == 0
    # As cuDF spills: the callback frees, and the request is made again.
    held = [rmm.DeviceBuffer(size=60 * MIB, mr=counted)]
    retrying = rmm.mr.FailureCallbackResourceAdaptor(counted, lambda nbytes: bool(held) and not held.clear())
    buffer = rmm.DeviceBuffer(size=40 * MIB, mr=retrying)
    assert not held and bfc.stats(0).num_failures == 1
    del buffer
    bfc.destroy(0)


def thousand_with_failures():
    # With slack more is held, so the driver is asked more often, and fails.
    bfc.create(0, memory_limit=24 * MIB, split_always=False)
    made, chosen = bfc.rmm.resource(0), random.Random(5)
    held, refused, words = [], 0, set()
    for _ in range(1000):
        failing, code = chosen.random() < 0.25, chosen.choice((2, 999))
        for nth in range(1, 41 if failing else 1):
            driver.simcuda_fail(b"cuMemAlloc", ctypes.c_uint64(nth), code)
        try:
            held.append(rmm.DeviceBuffer(size=chosen.randrange(1 << chosen.randrange(1, 25)), mr=made))
        except MemoryError as error:
            refused += 1
            words.add(str(error).split("out_of_memory: ")[1].split()[0])
        driver.simcuda_clear_faults()
        while len(held) > 40 or (held and chosen.random() < 0.3):
            held.pop(chosen.randrange(len(held)))
        if chosen.random() < 0.1:
            bfc.trim(0)
    print(refused, "refused:", sorted(words))
    assert refused > 20 and words == {"bfc:", "cuMemAlloc"}
    held.clear()
    assert bfc.stats(0).bytes_in_use == 0
    bfc.destroy(0)


def from_threads():
    made = bfc.rmm.resource(0)

    def work(seed):
        set_device(0)
        chosen, held = random.Random(seed), []
        for _ in range(300):
            held.append(rmm.DeviceBuffer(size=chosen.randrange(1 << 16), mr=made))
            if len(held) > 20:
                held.pop(chosen.randrange(len(held)))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bfc.stats(0).bytes_in_use == 0 and bfc.stats(0).num_allocs > 1000
    bfc.destroy(0)


set_device(0)
page_is_true()
for test in (
    buffers_are_of_libbfc,
    of_two_devices,
    in_the_order_of_streams,
    adaptors,
    thousand_with_failures,
    from_threads,
):
    print(test.__name__)
    test()
    assert driver.simcuda_misuses() == 0
    assert driver.simcuda_used(0) == driver.simcuda_used(1) == 0, test.__name__
# One that lives to the end of the process: its memory is freed while Python ends.
last = rmm.DeviceBuffer(size=1000, mr=bfc.rmm.resource(0))
