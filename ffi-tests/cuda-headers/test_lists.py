"""The lists of cuda-sys say what NVIDIA's headers say: a C file of both, which compiles only where they agree."""

import copy
import json
import os
import pathlib
import re

import pytest

from headers import HEADERS, compile

# Written by xtask: functions, types, structs and constants.
LISTS = json.loads(pathlib.Path(os.environ["LIBBFC_TESTS_CUDA_LISTS"]).read_text())
# What the headers of CUDA 12 do not have. It is seen to that they do not.
SINCE_13 = """
    cuCtxGetDevice_v2 cuCtxSynchronize_v2 cuMemGetDefaultMemPool cuMemGetMemPool cuMemSetMemPool cuStreamBeginCaptureToCig
    cuStreamEndCaptureToCig cuStreamBeginRecaptureToGraph CUstreamCigCaptureParams CUgraphRecaptureCallback
    CUDA_ERROR_STREAM_DETACHED cuGreenCtxGetId cuMulticastBindMem_v2 cuMulticastBindAddr_v2
""".split()
ABSENT = {12: SINCE_13, 13: []}
# Only the driver fills these, and CUDA 13 ends them with a pointer that CUDA 12 does not have.
ALIGNED_BY_VERSION = ["CUdevResource"]
# Where the headers have a struct without a name.
NAMELESS = {"CUmemAllocationPropFlags": "__typeof__(((CUmemAllocationProp *)0)->allocFlags)"}
PLAIN = {
    "c_void": "void",
    "c_char": "char",
    "c_uchar": "unsigned char",
    "c_ushort": "unsigned short",
    "c_int": "int",
    "c_uint": "unsigned int",
    "c_ulonglong": "unsigned long long",
    "usize": "size_t",
    "f32": "float",
}
# The first version that knows the per-thread default stream.
TWINS_SINCE = 7000
# Stands in for the headers of OpenGL and VDPAU, which NVIDIA's include.
FOREIGN = pathlib.Path(__file__).parent / "foreign"
# Without the first line the headers declare the newest version of each function only.
BEGINNING = """#define __CUDA_API_VERSION_INTERNAL 1
#include <stddef.h>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cudaGLTypedefs.h>
#include <cudaVDPAUTypedefs.h>
#define SAME(a, b) _Static_assert(__builtin_types_compatible_p(a, b), #a)
#define EQUAL(a, b) _Static_assert((a) == (b), #a)
SAME(CUhostFn, void (*)(void *));
SAME(CUstreamCallback, void (*)(CUstream, CUresult, void *));
"""


def c_type(lists, rust):
    """A type as C writes it."""
    pointer = re.fullmatch(r"\* ?(mut|const) (.*)", rust)
    if pointer:
        return f"{c_type(lists, pointer[2])} {'*' if pointer[1] == 'mut' else 'const *'}"
    known = {item["name"] for item in lists["types"] + lists["structs"]}
    assert rust in PLAIN or rust in known, f"{rust} is no type of cuda-sys, and none of C that is known here"
    return PLAIN.get(rust, rust)


def function(lists, symbol, name, since, twin, arguments):
    """It is declared with our types, and under its name and version cuGetProcAddress gives one of these types: that is what
    cudaTypedefs.h says."""
    pointer = f"CUresult (*)({', '.join(c_type(lists, rust) for rust in arguments) or 'void'})"
    yield f"SAME(__typeof__(&{symbol}), {pointer});"
    yield f"SAME(PFN_{name}_v{since}, {pointer});"
    if twin:
        yield f"SAME(__typeof__(&{twin}), {pointer});"
        yield f"SAME(PFN_{name}_v{max(since, TWINS_SINCE)}{twin.removeprefix(symbol)}, {pointer});"


def struct(_, name, size, alignment, fields):
    name = NAMELESS.get(name, name)
    yield f"EQUAL(sizeof({name}), {size});"
    if name not in ALIGNED_BY_VERSION:
        yield f"EQUAL(_Alignof({name}), {alignment});"
    # What is reserved shrinks where a newer version has a new field; the whole size stays.
    for field in (field for field in fields if field["name"] != "reserved"):
        ours = field["name"].rstrip("_")
        yield f"EQUAL(offsetof({name}, {ours}), {field['offset']});"
        yield f"EQUAL(sizeof((({name} *)0)->{ours}), {field['size']});"


WAYS = {
    "functions": function,
    "types": lambda _, name, size: [f"EQUAL(sizeof({name}), {size});"],
    "structs": struct,
    "constants": lambda _, name, value: [f"EQUAL({name}, {value});"],
}


def errors(lists, absent, major, folder):
    """What the compiler says of a C file with all of the lists."""
    lines, left = [], set(absent)
    for kind, way in WAYS.items():
        for item in lists[kind]:
            name = item.get("symbol") or item["name"]
            # Were it declared, this would clash with it.
            lines += [f"typedef char {name};"] if name in absent else way(lists, **item)
            left.discard(name)
    assert not left, "absent, and in none of the lists"
    source = folder / "lists.c"
    source.write_text(BEGINNING + "\n".join(lines) + "\n")
    # A system folder: what NVIDIA's headers may be warned of is not our concern.
    return compile("-std=gnu11", "-fmax-errors=20", "-isystem", HEADERS[major], "-isystem", FOREIGN, source)


@pytest.mark.parametrize("major", HEADERS)
def test_the_lists_say_what_the_headers_say(major, tmp_path):
    assert all(len(LISTS[kind]) > 10 for kind in WAYS)
    assert not errors(LISTS, ABSENT[major], major, tmp_path)


def item(lists, kind, name):
    (found,) = (item for item in lists[kind] if name in item.values())
    return found


# Spoils the lists, or gives what is absent, too; and what the compiler then has to complain of.
FAULTS = {
    "a wrong argument": (
        lambda lists: item(lists, "functions", "cuMemAlloc_v2").update(arguments=["*mut CUdeviceptr", "c_uint"]),
        "__typeof__(&cuMemAlloc_v2)",
    ),
    "a function that there is not": (
        lambda lists: item(lists, "functions", "cuMemAlloc_v2").update(symbol="cuMemAlloc_v9"),
        "cuMemAlloc_v9",
    ),
    "a wrong version": (lambda lists: item(lists, "functions", "cuMemAlloc_v2").update(since=2000), "PFN_cuMemAlloc_v2000"),
    "a function that is called absent and is there": (lambda lists: ["cuMemAlloc_v2"], "cuMemAlloc_v2"),
    "a wrong constant": (lambda lists: item(lists, "constants", "CUDA_ERROR_NOT_READY").update(value=601), "CUDA_ERROR_NOT_READY"),
    "a wrong size": (
        lambda lists: item(lists, "structs", "CUmemAllocationProp").update(size=40),
        "sizeof(CUmemAllocationProp)",
    ),
}


@pytest.mark.parametrize("major", HEADERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_found(fault, major, tmp_path):
    lists = copy.deepcopy(LISTS)
    spoil, complaint = FAULTS[fault]
    more = spoil(lists) or []
    assert complaint in errors(lists, ABSENT[major] + more, major, tmp_path)


@pytest.mark.parametrize(
    "rust, c",
    [
        ("c_uint", "unsigned int"),
        ("*mut *mut c_void", "void * *"),
        ("* mut * const c_void", "void const * *"),
        ("*const CUmemAllocationProp", "CUmemAllocationProp const *"),
    ],
)
def test_types_are_written_as_in_c(rust, c):
    assert c_type(LISTS, rust) == c


@pytest.mark.parametrize("unknown", ["", "u16", "*mut u16", "*c_int", "CUnothing", "Option<CUstream>"])
def test_an_unknown_type_is_no_type(unknown):
    with pytest.raises(AssertionError):
        c_type(LISTS, unknown)
