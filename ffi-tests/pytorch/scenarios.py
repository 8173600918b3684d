"""What programs do with memory besides training: streams, captured graphs, running out of it."""

import ctypes
import gc
import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import bfc
import facts
from transformer_models import causal

SEED = 20251122
MiB = 1 << 20
WORDS = 1000


def small_model(**options):
    config = GPT2Config(
        vocab_size=WORDS, n_embd=192, n_layer=3, n_head=6, bos_token_id=0, eos_token_id=0, attn_implementation="eager", **options
    )
    with torch.device("cuda"):
        return GPT2LMHeadModel(config).eval()


def serving(run, same, seen):
    """Inference on four streams: each request comes from the default stream and its answer goes back there, and both streams
    record what they use of the other's. Requests are of random lengths, and several are under way at a time."""
    choose = random.Random(SEED)
    model = small_model(use_cache=True)
    streams = [torch.cuda.Stream() for _ in range(4)]
    run.books.reset()
    answers = []
    # Mutated, it asks for one byte that stays.
    leaked = torch.empty(1, dtype=torch.uint8, device="cuda") if run.mutate else None
    with torch.no_grad(), facts.Storages() as storages:
        for number in range(60):
            rows, length = choose.randrange(1, 9), choose.randrange(8, 200)
            words = torch.zeros(rows, length, dtype=torch.long).to("cuda")
            masks = [causal(rows, length).to("cuda"), torch.zeros(rows, 1, 1, length + 1).to("cuda")]
            stream = streams[number % len(streams)]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for tensor in [words, *masks]:
                    tensor.record_stream(stream)
                found = model(words, attention_mask=masks[0])
                # One word more, with the keys and values of those before.
                found = model(words[:, -1:], past_key_values=found.past_key_values, attention_mask=masks[1])
                answer = found.logits[:, -1].clone()
                done = torch.cuda.Event()
                done.record()
            del words, found, masks, tensor
            answers.append((answer, done))
            if len(answers) > 3:
                answer, done = answers.pop(choose.randrange(len(answers)))
                done.wait()
                answer.record_stream(torch.cuda.current_stream())
                answer + 1
                del answer
    answers.clear()
    torch.cuda.synchronize()
    answer = model = None
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    # So that PyTorch looks at the events that keep what streams have recorded.
    torch.empty(1, device="cuda")
    same["storages"] = storages.facts()
    same["requested"] = run.books.requested()
    seen["peaks"] = run.books.peaks()
    run.kept.append(leaked)


def recorded(run, same, seen):
    """Memory of one stream that another uses, with a shadow: kernels of the simulation fill it, and look at it on the other
    stream. Streams are held and stepped at random. Mutated, it does not tell of the other stream."""
    choose = random.Random(SEED + 1)
    library = run.simulation.library
    u64 = ctypes.c_uint64
    streams = [torch.cuda.Stream() for _ in range(4)]
    handle = lambda stream: ctypes.c_void_p(stream.cuda_stream)
    kept = []
    for number in range(1500):
        stream, other = choose.choice(streams), choose.choice(streams)
        if choose.random() < 0.5:
            library.simcuda_hold(handle(stream))
        with torch.cuda.stream(stream):
            tensor = torch.empty(8 * choose.randrange(1, MiB // 4), dtype=torch.uint8, device="cuda")
        place, size = u64(tensor.data_ptr()), u64(tensor.nbytes)
        library.simcuda_fill(handle(stream), place, size, u64(number))
        other.wait_stream(stream)
        library.simcuda_expect(handle(other), place, size, u64(number))
        if not run.mutate:
            tensor.record_stream(other)
        kept.append(tensor)
        del tensor
        if len(kept) > 10:
            kept.pop(choose.randrange(len(kept)))
        if choose.random() < 0.3:
            library.simcuda_step(handle(stream), u64(choose.randrange(5)))
    kept.clear()
    library.simcuda_release_all()
    torch.cuda.synchronize()
    seen["mismatches"] = library.simcuda_mismatches()


class Places(facts.Storages):
    """Where each new storage was."""

    def __init__(self):
        super().__init__()
        self.places = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(function, types, args, kwargs)
        self.places.update(facts._storages(result))
        return result


def graphs(run, same, seen):
    """Inference captured for two sizes in one pool: what either used, also what was freed within, nobody else gets while they
    live."""
    model = small_model(use_cache=False)
    words = {size: torch.zeros(4, size, dtype=torch.long, device="cuda") for size in (128, 64)}
    masks = {size: causal(4, size).to("cuda") for size in words}
    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        model(words[64], attention_mask=masks[64])
    torch.cuda.synchronize()
    outside = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    outside |= {buffer.untyped_storage().data_ptr() for buffer in model.buffers()}
    outside |= {tensor.data_ptr() for tensor in [*words.values(), *masks.values()]}
    captured, pool, within = [], None, set()
    for size, rows in words.items():
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), Places() as places, torch.cuda.graph(graph, pool=pool):
            result = model(rows, attention_mask=masks[size]).logits
        pool = pool or graph.pool()
        captured.append((graph, result))
        within |= {place for place in places.places if place[0] not in outside}
    for graph, _ in captured:
        graph.replay()
    own = {result.data_ptr() for _, result in captured}

    def taken():
        """How many of new tensors lie in what the graphs used."""
        choose, tensors = random.Random(SEED), []
        for stream in (torch.cuda.current_stream(), side):
            with torch.cuda.stream(stream):
                tensors += [torch.empty(choose.randrange(1, 2 * MiB), dtype=torch.uint8, device="cuda") for _ in range(300)]
        torch.cuda.synchronize()
        hit = lambda tensor: any(
            place < tensor.data_ptr() + tensor.nbytes and tensor.data_ptr() < place + size for place, size in within
        )
        return sum(map(hit, tensors))

    same["results are apart"] = len(own) == len(captured)
    seen["places"], seen["taken while they live"] = len(within), taken()
    del captured, result, graph
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    seen["taken afterwards"] = taken()


def out_of_memory(run, same, seen):
    """Steps with more and more rows, at a limit, until there is no memory; then fewer rows, as a program does that catches
    it. After that random sizes, with failures of the driver."""
    model = small_model(use_cache=False).train()
    optimizer = torch.optim.AdamW(model.parameters())
    rows, told, done = 2, [], []
    for _ in range(12):
        try:
            words = torch.zeros(rows, 200, dtype=torch.long, device="cuda")
            seen_by = causal(rows, 200).to("cuda")
            optimizer.zero_grad(set_to_none=True)
            model(input_ids=words, labels=words, attention_mask=seen_by).loss.backward()
            optimizer.step()
            done.append(rows)
            rows *= 2
        except Exception as error:  # whatever it is, that is the fact
            told.append({"type": type(error).__name__, "words": str(error)})
            rows = max(rows * 3 // 8, 1)
        torch.cuda.synchronize()
    seen["told"], seen["done"] = told, done
    seen["failures"] = run.books.module.memory_stats()["num_ooms"]
    del model, optimizer, words, seen_by
    gc.collect()
    seen["random sizes"] = random_sizes(run.simulation.library)


def random_sizes(library):
    """A thousand requests; what was raised, by name."""
    choose, kept, told = random.Random(SEED), [], {}
    for number in range(1000):
        if number % 10 == 0:
            torch.cuda.empty_cache()
            code = choose.choice([2, 999])
            for nth in range(1, 1 + choose.randrange(1, 6)):
                library.simcuda_fail(b"cuMemCreate", ctypes.c_uint64(nth), code)
        size = int(2 ** choose.uniform(0, 28))
        try:
            tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        except Exception as error:  # whatever it is, that is the fact
            words = "no memory for" if "no memory for" in str(error) else "CUDA_ERROR_UNKNOWN"
            assert words in str(error), error
            name = f"{type(error).__name__}: {words}"
            told[name] = told.get(name, 0) + 1
            del kept[: len(kept) // 2]
            continue
        assert tensor.data_ptr() and bfc.requested_size(0, tensor.data_ptr()) == size
        kept.append(tensor)
        del tensor
        if len(kept) > 30 or choose.random() < 0.4:
            kept.pop(choose.randrange(len(kept)))
    library.simcuda_clear_faults()
    found = sum(tensor.nbytes for tensor in kept)
    assert found == bfc.stats(0).bytes_requested, (found, bfc.stats(0))
    return told


SCENARIOS = {"serving": serving, "recorded": recorded, "graphs": graphs, "out_of_memory": out_of_memory}
