"""The life of contexts: what survives a reset, what contexts and the calls on them cost, and green contexts."""

import ctypes
import json
import subprocess
import sys
import time

import driver
from driver import MIB, Driver, IpcHandle
from registry import fact

BYTES = 64 * MIB
# A probe is a process of its own, and its children end before the pack would end it.
DEADLINE = time.monotonic() + 25
USED_MEM_CURRENT = 7  # CUmemPool_attribute
PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
SM_RESOURCE = 1  # CUdevResourceType
DEFAULT_STREAM = 1  # CUgreenCtxCreate_flags
COUNT = 1000

GREEN = {
    "cuDeviceGetDevResource": "ipI",
    "cuDevResourceGenerateDesc": "ppI",
    "cuGreenCtxCreate": "ppiI",
    "cuGreenCtxDestroy": "p",
    "cuCtxFromGreenCtx": "pp",
}
driver.SIGNATURES |= GREEN


def stream_query(cu, function, stream):
    """Returns the name of the code, and the one or two values that the function wrote."""
    values = [ctypes.c_uint64() for _ in range(2 if function == "cuStreamGetCtx_v2" else 1)]
    code = cu.code(function, stream, *map(ctypes.byref, values))
    return code, [value.value for value in values]


def state(cu):
    flags, active = ctypes.c_uint(), ctypes.c_int()
    cu.check("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    return "active" if active.value else "inactive"


def contents(cu, at, value):
    """Returns the code of a copy to the host, and whether the bytes are those that were written."""
    buffer = ctypes.create_string_buffer(64)
    code = cu.code("cuMemcpyDtoH_v2", buffer, at, len(buffer))
    return code if code != "SUCCESS" else f"SUCCESS, contents {'kept' if buffer.raw == bytes([value]) * 64 else 'lost'}"


# Children: processes of their own for what may crash, and for what only another process can do.


def start(question, *arguments):
    """Starts this file as a child that answers a question."""
    return subprocess.Popen([sys.executable, __file__, question, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(child):
    """Returns a child's answer, or how it ended."""
    try:
        output, _ = child.communicate(timeout=max(0, DEADLINE - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return "no answer in time"
    if child.returncode < 0:
        return f"killed by signal {-child.returncode}"
    lines = output.splitlines() or [""]
    return json.loads(lines[-1]) if child.returncode == 0 else f"exit status {child.returncode}: {lines[-1]}"


def open_handle(text):
    """In a child: opens another process's IPC handle and returns the code."""
    cu = Driver()
    cu.enter()
    at = ctypes.c_uint64()
    handle = IpcHandle.from_buffer_copy(bytes.fromhex(text))
    code = cu.code("cuIpcOpenMemHandle_v2", ctypes.byref(at), handle, PEER_ACCESS)
    return contents(cu, at.value, 1) if code == "SUCCESS" else code


def initialize():
    """In a child: returns how many milliseconds cuInit takes."""
    library = ctypes.CDLL("libcuda.so.1")
    begin = time.perf_counter()
    library.cuInit(0)
    return round((time.perf_counter() - begin) * 1e3, 3)


# What can be asked about a stream and an event of a context that was reset, with a new stream.
STALE = {
    "cuStreamIsCapturing": lambda cu, stream, event: cu.code("cuStreamIsCapturing", stream, ctypes.byref(ctypes.c_uint())),
    "cuStreamGetCtx": lambda cu, stream, event: cu.code("cuStreamGetCtx", stream, ctypes.byref(ctypes.c_void_p())),
    "cuStreamQuery": lambda cu, stream, event: cu.code("cuStreamQuery", stream),
    "cuStreamDestroy_v2": lambda cu, stream, event: cu.code("cuStreamDestroy_v2", stream),
    "cuEventQuery": lambda cu, stream, event: cu.code("cuEventQuery", event),
    "cuEventDestroy_v2": lambda cu, stream, event: cu.code("cuEventDestroy_v2", event),
    "cuStreamWaitEvent on a new stream": lambda cu, stream, event: cu.code("cuStreamWaitEvent", cu.stream(), event, 0),
}


def ask_stale(question):
    """In a child: uses a handle from before a reset and returns the code."""
    cu = Driver()
    cu.enter()
    stream, event = cu.stream(), cu.event()
    cu.check("cuEventRecord", event, stream)
    cu.check("cuStreamSynchronize", stream)
    cu.check("cuDevicePrimaryCtxReset_v2", 0)
    cu.enter()
    return STALE[question](cu, stream, event)


@fact("reset-survivors")
def reset_survivors(cu):
    context = cu.enter()
    number = cu.ask("cuCtxGetId", context)
    plain, pooled = cu.alloc(BYTES), cu.make("cuMemAllocAsync", BYTES, cu.stream())
    cu.check("cuCtxSynchronize")
    cu.check("cuMemsetD8_v2", plain, 1, BYTES)
    cu.check("cuMemsetD8_v2", pooled, 2, BYTES)
    mapped = map_memory(cu, 3)
    cu.check("cuCtxSynchronize")
    handle = IpcHandle()
    exported = cu.code("cuIpcGetMemHandle", ctypes.byref(handle), plain)
    text = bytes(handle).hex()

    def opened():
        return finish(start("open_handle", text)) if exported == "SUCCESS" else exported

    opened_before, free_before, used_before = opened(), cu.free_memory(), used(cu)

    reset = cu.code("cuDevicePrimaryCtxReset_v2", 0)
    between = {
        "primary context": state(cu),
        "current context": "the old handle" if cu.make("cuCtxGetCurrent") == context else "another handle or none",
        "cuCtxSynchronize": cu.code("cuCtxSynchronize"),
        "cuCtxGetId of the current context": cu.code("cuCtxGetId", 0, ctypes.byref(ctypes.c_uint64())),
    }
    is_same = cu.enter() == context
    has_number = cu.ask("cuCtxGetId", cu.context) == number
    return {
        "cuDevicePrimaryCtxReset_v2": reset,
        "before a new retain": between,
        "handle after a new retain": "the same" if is_same else "another",
        "id after a new retain": "the same" if has_number else "another",
        "free bytes before and after": [free_before, cu.free_memory()],
        "cuMemCreate memory, mapped": after_reset_mapped(cu, *mapped) if mapped else "not supported",
        "cuMemAllocAsync memory": {
            "bytes in use in the pool before and after": [used_before, used(cu)],
            "cuMemcpyDtoH_v2": contents(cu, pooled, 2),
            "cuMemFreeAsync": cu.code("cuMemFreeAsync", pooled, cu.stream()),
        },
        "cuMemAlloc memory": {
            "IPC handle in another process before and after": [opened_before, opened()],
            "cuMemGetAddressRange_v2": cu.code("cuMemGetAddressRange_v2", None, None, plain),
            "cuIpcGetMemHandle": cu.code("cuIpcGetMemHandle", ctypes.byref(handle), plain),
            "cuMemFree_v2": cu.code("cuMemFree_v2", plain),
            # The last call, because it may be the end of the context.
            "cuMemcpyDtoH_v2": contents(cu, plain, 1),
        },
    }


def used(cu):
    """Returns how many bytes of the default pool are in use."""
    return cu.ask("cuMemPoolGetAttribute", cu.make("cuDeviceGetDefaultMemPool", 0), USED_MEM_CURRENT)


def map_memory(cu, value):
    """Maps memory and fills it. Returns the address and the handle, or None if the device has no virtual memory."""
    if not cu.attribute(102):
        return None
    at, handle = cu.reserve(BYTES), cu.physical(BYTES)
    cu.check("cuMemMap", at, BYTES, 0, handle, 0)
    cu.check("cuMemSetAccess", at, BYTES, ctypes.byref(cu.access()), 1)
    cu.check("cuMemsetD8_v2", at, value, BYTES)
    return at, handle


def after_reset_mapped(cu, at, handle):
    """Returns what is left of mapped memory that holds the bytes 3, and takes it apart."""
    retained = ctypes.c_uint64()
    code = cu.code("cuMemRetainAllocationHandle", ctypes.byref(retained), at)
    # A copy from an address that is not mapped may end the context.
    results = {"cuMemRetainAllocationHandle": code, "cuMemcpyDtoH_v2": contents(cu, at, 3) if code == "SUCCESS" else "not asked"}
    if code == "SUCCESS" and not results["cuMemcpyDtoH_v2"].startswith("SUCCESS"):
        results["cuMemSetAccess"] = cu.set_access(at, BYTES)
        results["cuMemcpyDtoH_v2 after cuMemSetAccess"] = contents(cu, at, 3)
    if retained.value:
        cu.check("cuMemRelease", retained.value)
    other = cu.make("cuMemAddressReserve", BYTES, 0, at, 0)
    results["range"] = "given to a new reservation" if other == at else "still reserved"
    results["cuMemUnmap"] = cu.code("cuMemUnmap", at, BYTES)
    results["cuMemRelease"] = cu.code("cuMemRelease", handle)
    results["cuMemAddressFree"] = cu.code("cuMemAddressFree", at, BYTES)
    return results


@fact("reset-stale-handles")
def reset_stale_handles(cu):
    children = {question: start("ask_stale", question) for question in STALE}
    return {question: finish(child) for question, child in children.items()}


@fact("context-costs")
def context_costs(cu):
    results = {"cuInit in a new process, milliseconds": finish(start("initialize"))}

    def once(name, function):
        begin = time.perf_counter()
        value = function()
        results[f"{name}, milliseconds"] = round((time.perf_counter() - begin) * 1e3, 3)
        return value

    def launch():
        cu.delay(stream, 0)
        cu.check("cuStreamSynchronize", stream)

    once("cuDevicePrimaryCtxRetain", lambda: cu.make("cuDevicePrimaryCtxRetain", 0))
    cu.enter()
    text = driver.KERNELS.read_bytes() + b"\0"
    once("cuModuleLoadData, which compiles PTX or finds it in a cache", lambda: cu.make("cuModuleLoadData", text))
    cu.load_kernels()
    stream = once("first cuStreamCreate", cu.stream)
    once("first launch and synchronization", launch)
    once("second launch and synchronization", launch)
    return results | {f"{name}, microseconds": each for name, each in small_costs(cu, stream).items()}


def small_costs(cu, stream):
    """Returns the microseconds of each call, with what a call from Python takes."""
    handles = (ctypes.c_uint64 * COUNT)()
    places = [ctypes.byref(handles, 8 * place) for place in range(COUNT)]
    word = ctypes.byref(ctypes.c_uint64())

    def cost(name, arguments):
        function = getattr(cu, name)
        begin = time.perf_counter()
        codes = {function(*given) for given in arguments}
        took = time.perf_counter() - begin
        return round(took / COUNT * 1e6, 3) if codes == {0} else sorted(map(cu.name, codes))

    results = {"cuDriverGetVersion, which shows the time of a call from Python": cost("cuDriverGetVersion", [(word,)] * COUNT)}
    results["cuEventCreate"] = cost("cuEventCreate", [(place, driver.DISABLE_TIMING) for place in places])
    results["cuEventRecord"] = cost("cuEventRecord", [(event, stream) for event in handles])
    cu.check("cuCtxSynchronize")
    results["cuEventQuery"] = cost("cuEventQuery", [(event,) for event in handles])
    results["cuStreamWaitEvent"] = cost("cuStreamWaitEvent", [(stream, event, 0) for event in handles])
    results["cuEventDestroy_v2"] = cost("cuEventDestroy_v2", [(event,) for event in handles])
    cu.check("cuCtxSynchronize")
    repeated = {
        "cuStreamQuery": (stream,),
        "cuStreamIsCapturing": (stream, word),
        "cuStreamGetCtx": (stream, word),
        "cuCtxGetCurrent": (word,),
        "cuCtxGetId": (0, word),
        "cuThreadExchangeStreamCaptureMode": (ctypes.byref(ctypes.c_uint()),),
        "cuStreamSynchronize": (stream,),
        "cuCtxSynchronize": (),
    }
    return results | {f"{name}, idle": cost(name, [arguments] * COUNT) for name, arguments in repeated.items()}


@fact("green-contexts", needs=tuple(GREEN))
def green_contexts(cu):
    results = {"primary context before the program retains it": state(cu)}
    primary = cu.enter()
    number = cu.ask("cuCtxGetId", primary)
    # CUdevResource has 144 bytes; the rest is for later versions.
    resource = (ctypes.c_uint64 * 64)()
    cu.check("cuDeviceGetDevResource", 0, ctypes.byref(resource), SM_RESOURCE)
    description = cu.make("cuDevResourceGenerateDesc", ctypes.byref(resource), 1)
    green = cu.make("cuGreenCtxCreate", description, 0, DEFAULT_STREAM)
    context = cu.make("cuCtxFromGreenCtx", green)
    cu.check("cuCtxSetCurrent", context)
    stream, at = cu.stream(), cu.alloc(MIB)
    names = {primary: "the primary context", context: "the green context's CUcontext", green: "the green context", 0: "NULL"}

    def describe(function):
        code, values = stream_query(cu, function, stream)
        return code if code != "SUCCESS" else [names.get(value, "another handle") for value in values]

    results |= {
        "cuCtxFromGreenCtx": "the primary context" if context == primary else "another handle",
        "cuCtxGetId": "that of the primary context" if cu.ask("cuCtxGetId", context) == number else "another id",
        "cuStreamGetCtx of a stream of the green context": describe("cuStreamGetCtx"),
        "cuStreamGetCtx_v2 of a stream of the green context": describe("cuStreamGetCtx_v2"),
        "cuPointerGetAttribute, context of memory of the green context": names.get(cu.pointer_attribute(1, at), "another handle"),
        "primary context retained by the program and the green context": state(cu),
        "cuDevicePrimaryCtxRelease_v2": cu.code("cuDevicePrimaryCtxRelease_v2", 0),
        "primary context retained by the green context only": state(cu),
        "cuMemFree_v2 in the green context": cu.code("cuMemFree_v2", at),
        "cuStreamDestroy_v2": cu.code("cuStreamDestroy_v2", stream),
        "cuGreenCtxDestroy": cu.code("cuGreenCtxDestroy", green),
        "primary context afterwards": state(cu),
    }
    return results


if __name__ == "__main__":
    CHILDREN = {"open_handle": open_handle, "initialize": initialize, "ask_stale": ask_stale}
    print(json.dumps(CHILDREN[sys.argv[1]](*sys.argv[2:])))
