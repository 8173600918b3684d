"""PyTorch's memory from libbfc: as its only allocator (CUDAPluggableAllocator), or as the source of a MemPool.

What a user writes is run as docs/pytorch.md has it.
"""

import contextlib
import ctypes
import gc
import io
import pathlib
import runpy
import sys

import torch

HERE = pathlib.Path(__file__)
sys.path.append(str(HERE.parents[1]))
from pages import Page

# The package's declarations without the package, which would load its own libbfc.
ABI = runpy.run_path(str(HERE.parents[2] / "python/src/bfc/_abi.py"))

MiB = 1 << 20
PAGE = Page("pytorch")
# The blocks of code on the page that do without the package.
USE, MEM_POOL, REPORT = "python-7", "python-8", "python-9"


def use(library, without=None):
    """Makes libbfc the allocator of everything. Before CUDA is initialised."""
    # The library's path is the one line that a reader changes.
    return PAGE.run(USE, {"LIBBFC": library}, without, instead={"LIBBFC =": ""})


def said_by_the_page(name, scope):
    """What a block of the page's prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        PAGE.run(name, scope)
    return out.getvalue()


def report(scope):
    """The report that the page shows how to get; its first line."""
    return said_by_the_page(REPORT, scope).splitlines()[0]


class Library:
    """libbfc's own account of device 0."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)

    def statistics(self):
        """All zeros where no allocator was created yet."""
        kind = ABI["bfc_stats_t"]
        statistics = kind(struct_size=ctypes.sizeof(kind))
        self.library.bfc_stats(0, ctypes.byref(statistics))
        return statistics

    def reset_statistics(self):
        self.library.bfc_reset_stats(0)

    def facts(self, simulation):
        """What of the device is in use, and what of that libbfc holds, and hands out."""
        statistics = self.statistics()
        names = ["num_allocs", "num_frees", "bytes_in_use", "bytes_requested", "pool_bytes"]
        return {name: getattr(statistics, name) for name in names} | {"device": simulation.used()}


def captured(model, inputs):
    """A captured graph: no other request gets its memory, even what was freed within, as long as it lives."""
    model = model.to("cuda").eval()
    rows = torch.zeros(64, inputs, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        model(rows)
    torch.cuda.synchronize()
    graph, of_graph = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        # First, so that it does not take the place of what was freed.
        result = rows * 2
        of_graph.append((result.data_ptr(), result.nbytes))
        for _ in range(3):
            freed = rows + 1
            of_graph.append((freed.data_ptr(), freed.nbytes))
            del freed
            model(rows)
    graph.replay()
    others = [torch.empty_like(rows) for _ in range(500)]
    # The stream of the capture too: what is freed within has no event, so without a pool it is reused there first.
    for stream in (torch.cuda.Stream(), torch.cuda.graph.default_capture_stream):
        with torch.cuda.stream(stream):
            others.extend(torch.empty_like(rows) for _ in range(500))
    graph.replay()
    torch.cuda.synchronize()
    while_alive = overlaps(of_graph, others)
    del graph, result
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    more = [torch.empty_like(rows) for _ in range(500)]
    return {"pieces": len(of_graph), "overlaps": while_alive, "overlaps afterwards": overlaps(of_graph, more) != 0}


def overlaps(pieces, tensors):
    """How many of the tensors lie in one of the pieces of memory."""
    places = [(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors]
    hit = lambda start, end: any(start < at + size and at < end for at, size in pieces)
    return sum(hit(start, end) for start, end in places)


def mem_pool(library, train):
    """Some of the native allocator's memory from libbfc: PyTorch keeps its books, and we give the segments."""
    ours, source = Library(library), PAGE.run(MEM_POOL, {"LIBBFC": library, "torch": torch})
    pool, kept = source["pool"], source["weights"]
    with torch.cuda.use_mem_pool(pool):
        training = train()
    torch.cuda.synchronize()
    segments = sum(segment["total_size"] for segment in pool.snapshot())
    held = ours.statistics()
    facts = {
        "segments are ours": segments == held.bytes_requested != 0,
        "trained in it": held.num_allocs > 1,
        "of the tensor": address_is_ours(ours, kept),
        "of a tensor outside": address_is_ours(ours, torch.empty(3 * MiB, dtype=torch.uint8, device="cuda")),
    }
    try:
        with torch.cuda.use_mem_pool(pool):
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        facts["out of memory"] = "served"
    except Exception as error:  # whatever it is, that is the fact
        facts["out of memory"] = type(error).__name__
    del kept, pool, source
    gc.collect()
    torch.cuda.empty_cache()
    ours.library.bfc_torch_reset()
    end = ours.statistics()
    facts["in use afterwards"] = end.bytes_in_use
    facts["held afterwards"] = end.pool_bytes
    return facts | {"training": training}


def address_is_ours(ours, tensor):
    device = ctypes.c_int32(-1)
    return ours.library.bfc_owner(ctypes.c_void_p(tensor.data_ptr()), ctypes.byref(device)) == 0
