"""The interposer's lists, and the page that is made of them, know every function of NVIDIA's headers that gives, takes, maps or
touches memory."""

import fnmatch
import re

import pytest

from headers import HEADERS, ROOT

# A twin for the per-thread default stream is there as a suffix after its function.
PAGE = re.sub(r"`(\w+)`, `(_pt[sd][sz])`", r"`\1`, `\1\2`", (ROOT / "docs/hooks.md").read_text())
LIST = (ROOT / "crates/preload/src/unanalyzed_list.rs").read_text()


def section(heading):
    return PAGE.split(f"\n{heading}\n")[1].split("\n## ")[0]


def rows(text):
    """The functions in the first column of a table."""
    return [name for names in re.findall(r"^\| (`.+?`) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", names)]


HOOKS = rows(section("## Driver functions"))
UNANALYZED = re.findall(r'^ +(\w+) as "(\w+)" since (\d+), "', LIST, re.MULTILINE)
RELATING = [symbol for symbol, _, _ in UNANALYZED]
# The first string of each pair has names, and may go on in the next line.
HARMLESS = [
    name
    for names in re.findall(r'\(\s*"([\w*\\\s]+)"', LIST.split("const HARMLESS")[1].split("];\n")[0])
    for name in re.findall(r"[\w*]+", names)
]
TOUCHING = re.findall(r'"([\w*]+)"', LIST.split("const TOUCHING")[1].split(";\n")[0].partition("=")[2])

# Parts of the names of functions that give, take or map memory, or begin or end a capture.
CONCERNED = """
    Alloc Malloc Free ArrayCreate Array3DCreate ArrayDestroy MemCreate MemMap Unmap MemRelease MemPoolCreate MemPoolDestroy
    MemPoolTrimTo MemPoolImport MemHandle HostRegister HostUnregister AddressReserve ExternalMemory GraphMemTrim BindMem BindAddr
    Unbind MapResources GetMappedPointer BeginCapture BeginRecapture EndCapture
""".split()
# Parts of the names of those that only ask or set, and of the exceptions.
QUESTIONS, NO_QUESTIONS = ["Get", "Set", "Retain", "Params"], ["MemHandle", "GetMapped"]


def concerns(name):
    has = lambda parts: any(part in name for part in parts)
    return name.startswith("cu") and has(CONCERNED) and (not has(QUESTIONS) or has(NO_QUESTIONS))


def declared(header):
    """What is declared; what comments name is not always a function."""
    return re.findall(r"(?:CUDAAPI|CUDARTAPI) \s*(\w+)\s*\(", header)


def symbols(header):
    """For the name of a function the symbol that a program is linked to, and whether that has a twin for the per-thread
    default stream: `#define cuMemAlloc cuMemAlloc_v2`, or `__CUDA_API_PTSZ(cuMemFreeAsync)`."""
    defined = re.findall(r"^\s*#define +(cu\w+)[ \t]+(?:__CUDA_API_PT(SZ|DS)\()?(cu\w+)", header, re.MULTILINE)
    found = {name: (symbol, bool(twin)) for name, twin, symbol in reversed(defined)}
    return lambda name: found.get(name, (name, False))


def missing(header, page=PAGE):
    """What neither the page nor the list names: of the runtime's header functions, of the driver's symbols, and the twins of hooks."""
    wanted, symbol_of = set(), symbols(header)
    for name in filter(concerns, declared(header)):
        symbol, has_twin = symbol_of(name)
        if name.startswith("cuda"):
            symbol = re.sub("_pt[sd][sz]$", "", name)
        elif has_twin and symbol in HOOKS:
            wanted.add(f"{symbol}_ptsz")
        wanted.add(symbol)
    assert wanted, "the header has no function that gives memory"
    return sorted(name for name in wanted - {*RELATING} if f"`{name}`" not in page)


def unseen(header):
    """Through what work may touch memory, and which is neither hooked nor known to be harmless. The names are those of an
    older interface, which the header declares, too."""
    fits = lambda name, patterns: any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    wanted, symbol_of = set(), symbols(header)
    for name in (name for name in declared(header) if fits(name, TOUCHING)):
        symbol, _ = symbol_of(name)
        wanted |= {symbol, name}
        twins = re.findall(rf"__CUDA_API_PT(SZ|DS)\({symbol}\)", header)
        wanted |= {f"{symbol}_pt{suffix.lower()}" for suffix in twins[:1]}
    assert wanted, "the header has no function that touches memory"
    return sorted(name for name in wanted - {*HOOKS, *RELATING} if not fits(name, HARMLESS))


def unknown_versions(typedefs):
    """The versions of functions that are not analysed that cudaTypedefs.h does not have."""
    for symbol, name, since in UNANALYZED:
        twin = re.search("_pt[sd][sz]$", symbol)
        version = max(int(since), 7000) if twin else since
        pointer = f"PFN_{name}_v{version}{twin[0] if twin else ''}"
        if f"*{pointer})" not in typedefs:
            yield pointer


def read(major, header):
    return (HEADERS[major] / header).read_text()


def test_the_lists_are_read():
    assert len(HOOKS) > 60 and len(UNANALYZED) > 60 and len(HARMLESS) > 30 and len(TOUCHING) > 10
    assert HARMLESS[0] == "cuMemcpyHtoD" and HARMLESS[-1] == "cuLogicalEndpointBindMem"


@pytest.mark.parametrize("major", HEADERS)
@pytest.mark.parametrize("header", ["cuda.h", "cuda_runtime_api.h"])
def test_the_page_has_every_function_that_gives_memory_or_begins_a_capture(header, major):
    assert not missing(read(major, header))


@pytest.mark.parametrize("major", HEADERS)
def test_every_function_that_copies_fills_maps_or_changes_nodes_of_graphs_is_hooked_or_harmless(major):
    assert not unseen(read(major, "cuda.h"))


def test_the_versions_of_functions_that_are_not_analysed():
    assert not list(unknown_versions(read(max(HEADERS), "cudaTypedefs.h")))
    assert len(list(unknown_versions(""))) == len(UNANALYZED)


def test_found_a_function_of_which_the_page_says_nothing():
    header = """cudaError_t CUDARTAPI cudaMalloc(void **); CUresult CUDAAPI cuMemNewAlloc (int);
        CUresult CUDAAPI cuMemAllocGetParams(void); /* and cuNotAlloc() */"""
    assert missing(header) == ["cuMemNewAlloc"]
    with pytest.raises(AssertionError):
        missing("int f(void);")


def test_found_later_symbols_captures_and_twins():
    header = """
        #define cuMemAlloc                          cuMemAlloc_v3
        #define cuMemFree  cuMemFree_v2
        #define cuStreamBeginCaptureToMoon  __CUDA_API_PTSZ(cuStreamBeginCaptureToMoon_v2)
        #define cuCtxNothing cuCtxNothing_v2
        CUresult CUDAAPI cuMemAlloc(CUdeviceptr *, size_t); CUresult CUDAAPI cuMemFree(CUdeviceptr);
        CUresult CUDAAPI cuStreamBeginCaptureToMoon(CUstream); CUresult CUDAAPI cuCtxNothing(void);"""
    assert missing(header) == ["cuMemAlloc_v3", "cuStreamBeginCaptureToMoon_v2"]
    header = """#define cuStreamEndCapture __CUDA_API_PTSZ(cuStreamEndCapture)
        CUresult CUDAAPI cuStreamEndCapture(CUstream, CUgraph *);"""
    assert not missing(header)
    assert missing(header, PAGE.replace("`cuStreamEndCapture_ptsz`", "")) == ["cuStreamEndCapture_ptsz"]


def test_found_a_new_function_that_touches_memory():
    header = """#define cuMemcpyBatchAsync __CUDA_API_PTSZ(cuMemcpyBatchAsync_v3)
        #define cuGraphLaunch  __CUDA_API_PTSZ(cuGraphLaunch)
        CUresult CUDAAPI cuMemcpyBatchAsync(int); CUresult CUDAAPI cuGraphLaunch(int);
        CUresult CUDAAPI cuMemcpyToMoon(int); CUresult CUDAAPI cuGraphAddMoonNode(int);
        CUresult CUDAAPI cuMemPrefetchAsync(int); CUresult CUDAAPI cuMemcpyHtoD_v2_ptds(int);"""
    expected = ["cuGraphAddMoonNode", "cuMemcpyBatchAsync_v3", "cuMemcpyBatchAsync_v3_ptsz", "cuMemcpyToMoon"]
    assert unseen(header) == expected
    with pytest.raises(AssertionError):
        unseen("int f(void);")
