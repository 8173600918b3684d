"""What PyTorch's own tests of CUDA graphs do (test_cuda.py, `test_graph_*`), told as JSON: whether each capture is valid,
what is raised, the allocator's statistics, and whether data that is copied by a replayed graph arrives. See README.md.

Kernels compute nothing on the simulated driver. A clone of a contiguous tensor is a copy by the driver, which is real, also
as a node of a graph: so values are looked at where copies alone have made them.
"""

import argparse
import gc
import json
import os
import threading
import warnings

import torch
from torch import nn

import facts

MiB = 1 << 20
SHARING = ["apart", "pool()", "graph_pool_handle()"]
MODES = ["global", "thread_local", "relaxed"]


def native():
    """Whether PyTorch's own allocator is on, which the statistics are of."""
    return torch.cuda.get_allocator_backend() == "native"


def statistics():
    """Those of the native allocator that upstream's tests look at."""
    if not native():
        return {}
    kept = ["segment.", "reserved_bytes.", "active.", "active_bytes."]
    found = torch.cuda.memory_stats()
    names = [f"{name}{pool}.current" for name in kept for pool in ("all", "small_pool", "large_pool")]
    return {name: found[name] for name in names}


def pattern(size, seed):
    """Data of the host, another for each seed."""
    return ((torch.arange(size, dtype=torch.int64) * 2654435761 + seed * 97) % 251).to(torch.float32)


def copied(graph, source, result, seed):
    """Whether new data of the source has come to the result by a replay."""
    data = pattern(source.numel(), seed).view(source.shape)
    source.copy_(data)
    graph.replay()
    return bool(torch.equal(result.cpu(), data))


def raised(work):
    try:
        work()
        return "nothing"
    except Exception as error:  # whatever it is, that is the fact
        first = str(error).splitlines()[0]
        # Numbers of bytes hang on what is held.
        return f"{type(error).__name__}: {first.split('. ')[0][:80]}"


def captured_copies(graph, source, temporaries=5, *pool, mode="global"):
    """Captures copies with temporary tensors between them; the last one."""
    graph.capture_begin(*pool, capture_error_mode=mode)
    last = source.clone()
    for _ in range(temporaries):
        temporary = last.clone()
        last = temporary.clone()
        del temporary
    graph.capture_end()
    return last


def after_the_other(stream):
    torch.cuda.current_stream().wait_stream(stream)


def simple():
    told = []
    for mode in MODES:
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            source = torch.full((1000,), 1.0, device="cuda")
            torch.cuda.empty_cache()
            before = torch.cuda.is_current_stream_capturing()
            graph.capture_begin(capture_error_mode=mode)
            during = torch.cuda.is_current_stream_capturing()
            last = source
            for _ in range(10):
                last = last.clone()
            graph.capture_end()
            told.append([before, during, torch.cuda.is_current_stream_capturing()])
        after_the_other(stream)
        told.append([copied(graph, source, last, seed) for seed in range(3)])
        told.append(statistics())
    return told


def default_stream():
    return raised(lambda: torch.cuda.CUDAGraph().capture_begin())


def no_nodes():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            graph.capture_end()
    return [str(warning.message).split(".")[0] for warning in caught]


def reset_recapture():
    stream, graph, told = torch.cuda.Stream(), torch.cuda.CUDAGraph(), []
    with torch.cuda.stream(stream):
        source = torch.full((1000,), 1.0, device="cuda")
    for round in range(4):
        with torch.cuda.stream(stream):
            torch.cuda.empty_cache()
            last = captured_copies(graph, source, 10 + round)
        after_the_other(stream)
        told.append(copied(graph, source, last, round))
        graph.reset()
        told.append(raised(graph.replay))
        told.append(statistics())
    return told


def side_streams():
    """A capture that forks to another stream and joins it, which allocates there too."""
    first, second, graph = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    source = torch.zeros(1_000_000, device="cuda")
    first.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(first):
        graph.capture_begin()
        here = source.clone()
        with torch.cuda.stream(second):
            second.wait_stream(first)
            there = here.clone()
            there.record_stream(first)
        first.wait_stream(second)
        last = there.clone()
        del here, there
        graph.capture_end()
    first.synchronize()
    torch.cuda.synchronize()
    told = [copied(graph, source, last, seed) for seed in range(2)]
    # A fork that is not joined.
    unjoined = torch.cuda.CUDAGraph()
    with torch.cuda.stream(first):
        unjoined.capture_begin()
        kept = source.clone()
        with torch.cuda.stream(second):
            second.wait_stream(first)
            other = kept.clone()
        told.append(raised(unjoined.capture_end))
    return told + [statistics(), len(kept), len(other)]


def generators():
    """What graphs hold of random generators, and what is left of it."""
    told = []
    for count in (1, 3, 10):
        kept = [torch.cuda.CUDAGraph() for _ in range(count)]
        for graph in kept:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                graph.capture_begin()
                torch.rand(1000, device="cuda")
                graph.capture_end()
            after_the_other(stream)
            graph.replay()
        told.append(statistics())
        del graph, kept
        facts.clean()
        told.append(statistics())
    return told


def workspaces():
    """A product of matrices captured 100 times does not take more and more of the device."""
    left, right = torch.rand(1024, 512, device="cuda"), torch.rand(512, 64, device="cuda")
    torch.mm(left, right)
    before = torch.cuda.mem_get_info()[0]
    for _ in range(100):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.mm(left, right)
        graph.replay()
    after = torch.cuda.mem_get_info()[0]
    return [(before - after) / 1e9 < 0.1, statistics()]


def pools(sharing):
    """What the first of several graphs is captured with, and the others."""
    first = (torch.cuda.graph_pool_handle(),) if sharing == "graph_pool_handle()" else ()
    return first, lambda graph: (graph.pool(),) if sharing == "pool()" else first


def two_successive():
    told, stream = {}, torch.cuda.Stream()
    for sharing in SHARING:
        one, two = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        source = torch.ones(1000, device="cuda")
        source.copy_(pattern(1000, 9))
        eager, first_eager = source.clone(), pattern(1000, 9)
        stream.wait_stream(torch.cuda.current_stream())
        first, others = pools(sharing)
        with torch.cuda.stream(stream):
            middle = captured_copies(one, source, 5, *first)
            last = captured_copies(two, middle, 5, *others(one))
        after_the_other(stream)
        source.copy_(pattern(1000, 1))
        for graph in (one, two):
            for _ in range(2):
                eager = eager.clone().clone()
            graph.replay()
        ok = [bool(torch.equal(last.cpu(), pattern(1000, 1))), bool(torch.equal(eager.cpu(), first_eager))]
        told[sharing] = [ok, statistics()]
        del source, eager, middle, last, graph, one, two
        facts.clean()
        told[sharing].append(statistics())
    return told


def concurrent_replay():
    """Two graphs replayed at once, each with data of its own. In a shared pool they may use the same places."""
    told, stream = {}, torch.cuda.Stream()
    for sharing in SHARING:
        one, two = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        sources = [torch.ones(1_000_000, device="cuda") for _ in range(2)]
        stream.wait_stream(torch.cuda.current_stream())
        first, others = pools(sharing)
        with torch.cuda.stream(stream):
            results = [captured_copies(one, sources[0], 5, *first), captured_copies(two, sources[1], 5, *others(one))]
        for seed, source in enumerate(sources):
            source.copy_(pattern(source.numel(), seed))
        torch.cuda.synchronize()
        for on, graph in zip(streams, (one, two)):
            with torch.cuda.stream(on):
                torch.cuda._sleep(1000)
                graph.replay()
        for on in streams:
            after_the_other(on)
        ok = [bool(torch.equal(result.cpu(), pattern(1_000_000, seed))) for seed, result in enumerate(results)]
        places = {result.untyped_storage().data_ptr() for result in results}
        told[sharing] = [ok, len(places), statistics()]
        del sources, source, results, graph, one, two
        facts.clean()
    return told


def three_successive():
    """In a shared pool the third graph takes the place of what the second freed, so only one order of replays is valid."""
    told, stream = {}, torch.cuda.Stream()
    for sharing in SHARING:
        source = torch.ones(1000, device="cuda")
        graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
        stream.wait_stream(torch.cuda.current_stream())
        first, others = pools(sharing)
        with torch.cuda.stream(stream):
            graphs[0].capture_begin(*first)
            b = source.clone()
            c, d = b.clone(), b.clone()
            graphs[0].capture_end()
            graphs[1].capture_begin(*others(graphs[0]))
            e = c.clone()
            place = c.data_ptr()
            del c
            graphs[1].capture_end()
            graphs[2].capture_begin(*others(graphs[0]))
            f = d.clone()
            graphs[2].capture_end()
        after_the_other(stream)
        told[sharing] = []
        for seed in range(2):
            source.copy_(pattern(1000, seed))
            for graph in graphs:
                graph.replay()
            told[sharing].append([bool(torch.equal(each.cpu(), pattern(1000, seed))) for each in (e, f)])
        told[sharing] += [native() and f.data_ptr() == place, statistics()]
        del source, b, d, e, f, graph, graphs
        facts.clean()
    return told


def after_the_graph():
    """A result outlives its graph, and the rest of the graph's memory goes; for sizes of each kind of segment."""
    told, stream = [], torch.cuda.Stream()
    for size in [512, MiB, MiB + 512, 10 * MiB - 512, 10 * MiB + 512]:
        numbers, graph = size // 4, torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            source = torch.ones(numbers, device="cuda")
            told.append(statistics())
            graph.capture_begin()
            result = source.clone()
            for _ in range(5):
                result = result.clone()
            graph.capture_end()
        after_the_other(stream)
        gc.collect()
        for seed in range(2):
            told.append([copied(graph, source, result, seed), statistics()])
            torch.cuda.empty_cache()
        del graph
        gc.collect()
        torch.cuda.empty_cache()
        # Others write what they get; nothing of it is the result's.
        others = [pattern(numbers, 7).to("cuda") for _ in range(4)]
        told.append([bool(torch.equal(result.cpu(), pattern(numbers, 1))), len(others), statistics()])
        del source, result, others
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return told


def recorded_stream():
    """A use on another stream that is not done when the capture begins, and one within it: neither is asked after."""
    freed, source = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")
    streams, graph = [torch.cuda.Stream() for _ in range(3)], torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(streams[0]):
        freed.record_stream(streams[0])
        torch.cuda._sleep(50_000_000)
        freed.fill_(1.0)
    del freed
    with torch.cuda.stream(streams[1]):
        graph.capture_begin()
        within = source.clone()
        streams[2].wait_stream(streams[1])
        with torch.cuda.stream(streams[2]):
            within.fill_(1.0)
            within.record_stream(streams[2])
            del within
        streams[1].wait_stream(streams[2])
        graph.capture_end()
    torch.cuda.synchronize()
    after = torch.zeros(3, device="cuda")
    graph.replay()
    torch.cuda.synchronize()
    return [len(after), statistics()]


def recurrent():
    """An LSTM with dropout, captured and not, in turn."""
    model = nn.LSTM(128, 128, 2, dropout=0.5).cuda()
    rows = torch.ones(20, 16, 128, device="cuda")
    model(rows)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        model(rows)
        graph.capture_end()
    after_the_other(stream)
    graph.replay()
    model(rows)
    torch.cuda.synchronize()
    return statistics()


def graphed_callables():
    """Forward and backward passes of two modules as graphs that share a pool, and training with them."""
    first, second = nn.Linear(256, 128).cuda(), nn.Linear(128, 64).cuda()
    rows, middle = torch.randn(32, 256, device="cuda"), torch.randn(32, 128, device="cuda", requires_grad=True)
    first, second = torch.cuda.make_graphed_callables((first, second), ((rows,), (middle,)))
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    with facts.Storages() as storages:
        for _ in range(5):
            optimizer.zero_grad(set_to_none=True)
            second(first(torch.randn(32, 256, device="cuda"))).sum().backward()
            optimizer.step()
    torch.cuda.synchronize()
    return [storages.facts(), statistics()]


def other_thread():
    """In modes that allow it another thread allocates, frees and gives memory back during the capture."""
    told = []
    for mode in MODES[1:]:
        source, graph, stream = torch.zeros(1000, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        torch.cuda.synchronize()
        words = []

        def work():
            def body():
                kept = [torch.empty(size * MiB, dtype=torch.uint8, device="cuda") for size in (1, 30, 70)]
                del kept[1]

            words.append(raised(body))

        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode=mode)
            first = source.clone()
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            last = first.clone()
            words.append(raised(graph.capture_end))
        after_the_other(stream)
        words.append(raised(lambda: words.append(copied(graph, source, last, 3))))
        told.append(words)
        del graph, source, first, last
        facts.clean()
    return told


def out_of_memory(full):
    """A request that fails during a capture is out of memory, and the capture goes on; with a device that has room, and with
    one that is full of memory which PyTorch holds, or has given back."""
    told = []
    for mode in MODES:
        kept = []
        if full:
            while raised(lambda: kept.append(torch.empty(64 * MiB, dtype=torch.uint8, device="cuda"))) == "nothing":
                pass
            # What is given back stays in the allocator's cache.
            del kept[::2]
            torch.cuda.empty_cache()

        def within():
            with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode=mode):
                torch.zeros(1 << 40, device="cuda")

        told.append(raised(within))
        source, graph, stream = torch.zeros(1000, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        torch.cuda.synchronize()
        words = []
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode=mode)
            first = source.clone()
            words.append(raised(lambda: torch.empty(1 << 40, dtype=torch.uint8, device="cuda")))
            last = first.clone()
            words.append(raised(graph.capture_end))
        after_the_other(stream)
        words.append(raised(lambda: words.append(copied(graph, source, last, 5))))
        told.append(words)
        # The device's and the program's memory is as before, and so are later requests.
        words.append(raised(lambda: torch.ones(1000, device="cuda").cpu()))
        kept.clear()
        del graph, source
        facts.clean()
    return told


def oom():
    return out_of_memory(full=False)


def oom_full():
    return out_of_memory(full=True)


CASES = [simple, default_stream, no_nodes, reset_recapture, side_streams, generators, workspaces, two_successive,
         concurrent_replay, three_successive, after_the_graph, recorded_stream, recurrent, graphed_callables,
         other_thread, oom, oom_full]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, help="the file to write")
    parser.add_argument("cases", nargs="*", help="their names; all of them if none is named")
    options = parser.parse_args()
    torch.manual_seed(20240601)
    facts.plain_kernels()
    simulation = facts.Simulation()
    torch.cuda.init()
    facts.begin()
    ones = torch.ones(8, 8, device="cuda", requires_grad=True)
    (ones @ ones).sum().backward()
    del ones
    facts.clean()
    same = {}
    for case in CASES:
        if options.cases and case.__name__ not in options.cases:
            continue
        try:
            same[case.__name__] = case()
        except Exception as error:  # whatever it is, that is the fact
            same[case.__name__] = f"{type(error).__name__}: {error}"
        try:
            facts.clean()
        except Exception as error:
            same[case.__name__] = [same[case.__name__], f"afterwards {type(error).__name__}: {error}"]
    seen = {"faults": simulation.faults(), "live": simulation.live(), "used": simulation.used()}
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump({"same": same, "seen": seen}, file, indent=1)


if __name__ == "__main__":
    main()
