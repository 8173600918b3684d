"""What else a program meets that has libbfc for PyTorch's CPU memory."""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import traceback

import pytest
import torch
from torch import nn

import bfc
import bfc.torch_cpu
from failures import Refusing
from pages import Page
from storages import tensors

pytestmark = [
    pytest.mark.own_process(env={"BFC_LOG": "warn"}),
    pytest.mark.usefixtures("no_complaint", "without_cuda"),
    pytest.mark.filterwarnings("ignore"),
]

MiB = 1 << 20


@pytest.fixture
def without_cuda():
    torch.set_num_threads(2)
    yield
    assert not torch.cuda.is_initialized()


def owner(tensor):
    return bfc.owner(tensor.data_ptr())


def in_use():
    gc.collect()
    return bfc.stats(bfc.HOST).bytes_in_use


def refused(size):
    """What is said of a request that is too large."""
    try:
        torch.empty(size, dtype=torch.uint8)
    except RuntimeError as error:
        return str(error)
    raise AssertionError(f"{size} bytes were served")


def test_out_of_memory():
    """PyTorch's own error with our words; and training goes on with smaller batches."""
    native = refused(1 << 60)
    bfc.torch_cpu.use(memory_limit=32 * MiB)
    known = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1152921504606846976 bytes. "
    assert known in native, f"PyTorch's own words are others now: {native}"
    assert refused(1 << 60).startswith(f"libbfc in place of {known}")
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(rows):
        optimizer.zero_grad()
        inputs = torch.ones(rows, 256)
        loss = (model(inputs) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    first = step(100)
    held = in_use()
    for rows in [1 << 14, 1 << 15, 1 << 40]:
        try:
            step(rows)
            raise AssertionError(f"{rows} rows were served")
        except torch.OutOfMemoryError as error:
            assert isinstance(error, RuntimeError)
            words = str(error)
            assert "DefaultCPUAllocator: can't allocate memory: you tried to allocate " in words, words
            assert 'memory of allocator "PyTorch"' in words, words
            first_line = words.splitlines()[0]
            assert "can't allocate memory" in first_line and "out of memory" not in first_line, "it is said once"
            print(first_line)
            traceback.clear_frames(error.__traceback__)
            del error
        optimizer.zero_grad()
        model.zero_grad(set_to_none=True)
    losses = [step(100) for _ in range(20)]
    assert losses[-1] < first, losses
    model.zero_grad(set_to_none=True)
    assert in_use() <= held, "something of the failed steps is left"
    assert bfc.stats(bfc.HOST).num_failures >= 3
    del model, optimizer, step
    assert in_use() == 0, bfc.report(bfc.HOST)


def test_random_sizes():
    """A thousand sizes and more, from a source that refuses more than half of the regions: each failure is PyTorch's error, and what
    is in the tensors stays."""
    bfc.torch_cpu.use()
    choose = random.Random(7)
    with Refusing(bfc.HOST, share=0.6, limit=32 * MiB) as source:
        kept, failed, served = [], 0, 0
        for number in range(3000):
            size = choose.choice([0, 1, 255, 256, 257, choose.randrange(1, 5000), choose.randrange(1, 4 * MiB)])
            try:
                tensor = torch.full((size,), number % 251, dtype=torch.uint8)
            except torch.OutOfMemoryError:
                failed += 1
            else:
                served += 1
                assert tensor.data_ptr() % 256 == 0
                assert size == 0 or owner(tensor) == bfc.HOST
                assert (size == 0) == (tensor.data_ptr() == 0)
                kept.append((tensor, number % 251))
            while len(kept) > 40 or (kept and choose.random() < 0.4):
                tensor, value = kept.pop(choose.randrange(len(kept)))
                # By NumPy, whose memory is not refused.
                assert (tensor.numpy() == value).all(), "another tensor has written here"
            tensor = None
            if number % 3 == 0:
                # Else the source would hardly be asked.
                bfc.trim(bfc.HOST)
            if number % 500 == 0:
                bfc.check(bfc.HOST)
        assert served > 1000 and failed > 20 and source.refused > 50, (served, failed, source.refused)
        print(f"{served} served, {failed} failed, {source.refused} regions refused")
        tensor = kept = None
        assert in_use() == 0, bfc.report(bfc.HOST)
    try:
        torch.empty(-1 << 62, dtype=torch.uint8)
        raise AssertionError("served")
    except RuntimeError:
        pass
    try:
        torch.empty((1 << 63) - 1, dtype=torch.uint8)
        raise AssertionError("served")
    except torch.OutOfMemoryError:
        pass


def test_threads():
    """Eight threads at once, which free each other's tensors."""
    bfc.torch_cpu.use()
    lock, shared, wrong = threading.Lock(), [], []

    def work(seed):
        choose = random.Random(seed)
        for number in range(400):
            value = choose.randrange(250)
            tensor = torch.full((choose.randrange(1, 100_000),), value, dtype=torch.uint8)
            with lock:
                shared.append((tensor, value))
                other, expected = shared.pop(choose.randrange(len(shared)))
            if not bool((other == expected).all()):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    bfc.check(bfc.HOST)
    assert bfc.stats(bfc.HOST).num_allocs >= 3200
    shared.clear()
    assert in_use() == 0


def test_fork():
    """In a child the pool continues, even if other threads were in it at the fork, and the parent's stays as it is."""
    bfc.torch_cpu.use()
    parents = torch.full((1000,), 5.0)
    done = threading.Event()

    def busy():
        while not done.is_set():
            torch.empty(random.randrange(1, 100_000))

    other = threading.Thread(target=busy)
    other.start()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            own = torch.full((1000,), 7.0)
            well = owner(own) == bfc.HOST and bool((own == 7).all()) and bool((parents == 5).all())
            parents.fill_(6)
            del own
            os._exit(0 if well else 1)
        assert os.waitpid(child, 0)[1] == 0, "a child failed"
    done.set()
    other.join()
    assert bool((parents == 5).all())
    bfc.check(bfc.HOST)


def test_until_the_end():
    """Tensors that live until the interpreter ends, and beyond: in modules, in a cycle, in a thread, and one that only C++
    still holds. The program has to end well, and libbfc with no complaint."""
    bfc.torch_cpu.use()
    sys.kept = torch.ones(1000)
    cycle = [torch.ones(1000)]
    cycle.append(cycle)
    held = torch.ones(1000)
    waiting = threading.Event()
    threading.Thread(target=lambda tensor: waiting.wait(), args=(held,), daemon=True).start()
    leaf = torch.ones(1000, requires_grad=True)
    # The graph refers to itself, so nothing frees it.
    (leaf * leaf).sum().backward(create_graph=True)
    assert len(tensors()) >= 4 and in_use() > 0
    sys.kept_report = bfc.report(bfc.HOST)


def test_profiler():
    """torch.profiler counts the same bytes as with PyTorch's own allocator."""

    def counted():
        kinds = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=kinds, profile_memory=True) as profile:
            tensor = torch.empty(12345, dtype=torch.uint8)
            torch.empty(100, 100) @ torch.empty(100, 100)
            del tensor
        return [(event.key, event.count, event.self_cpu_memory_usage) for event in profile.key_averages()]

    own = counted()
    bfc.torch_cpu.use()
    ours = counted()
    assert bfc.stats(bfc.HOST).num_allocs >= 4
    assert sorted(own) == sorted(ours), (own, ours)
    assert any(size for _, _, size in ours)


def test_before_and_after():
    """Each tensor goes back to the allocator that gave it, whatever was set in between."""
    native = torch.ones(1000)
    bfc.torch_cpu.use()
    ours = torch.ones(1000)
    bfc.torch_cpu.use()
    bfc.torch_cpu.unuse()
    later = torch.ones(1000)
    assert owner(ours) == bfc.HOST
    for tensor in [native, later]:
        try:
            owner(tensor)
            raise AssertionError("it is libbfc's")
        except bfc.Error:
            pass
    # A storage keeps the allocator that it began with.
    ours.resize_(5000)
    assert owner(ours) == bfc.HOST
    native.resize_(5000)
    del native, ours, later, tensor
    assert in_use() == 0
    bfc.torch_cpu.use()
    try:
        bfc.torch_cpu.use(memory_limit=MiB)
        raise AssertionError("it was created twice")
    except bfc.Error as error:
        assert error.name == "BFC_ERROR_ALREADY_EXISTS"
    copy = torch.ones(1000).clone().numpy()
    gc.collect()
    assert copy.sum() == 1000


AFTER_FORCE = """import torch, bfc, bfc.torch_cpu
bfc.torch_cpu.use()
kept = torch.ones(1000)
bfc.destroy(bfc.HOST, force=True)
torch.ones(1000)
del kept
"""


def test_destroying():
    """It is refused while tensors live. After a forced one their addresses are unknown to the next allocator."""
    bfc.torch_cpu.use()
    kept = torch.ones(1000)
    try:
        bfc.destroy(bfc.HOST)
        raise AssertionError("a tensor lives")
    except bfc.Error as error:
        assert error.status == bfc.Status.BUSY
    del kept
    gc.collect()
    bfc.destroy(bfc.HOST)
    assert owner(torch.ones(1000)) == bfc.HOST, "the next one is created"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", AFTER_FORCE], capture_output=True, text=True)
    assert done.returncode == -signal.SIGABRT and "libbfc: a tensor's memory at" in done.stderr, done


def test_the_page():
    Page("pytorch-cpu").run_all()
