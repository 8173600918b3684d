"""NVIDIA's driver API through ctypes, for probes. Importing this module does not load the driver; `Driver()` does.

Functions are methods named as the symbols of libcuda.so.1, and return the code as an int: `cu.cuMemFree_v2(at)`. Handles and
addresses are plain ints. `check` raises for a code that is not 0, `code` returns its name, and `make` and `ask` return what
the function writes to its first and its last argument:

    cu = Driver()
    cu.enter()
    at = cu.make("cuMemAlloc_v2", 512)
    cu.code("cuMemFree_v2", at + 1)  # "INVALID_VALUE"
"""

import collections
import contextlib
import ctypes
import os
import pathlib
import threading

KERNELS = pathlib.Path(__file__).parent.parent / "kernels.ptx"

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2  # CUstreamCaptureMode
CAPTURE_STATES = ["NONE", "ACTIVE", "INVALIDATED"]  # CUstreamCaptureStatus
LEGACY_STREAM, PER_THREAD_STREAM = 1, 2
BLOCKING, NON_BLOCKING = 0, 1  # CUstream_flags
DISABLE_TIMING = 2  # CUevent_flags
PINNED, DEVICE = 1, 1  # CUmemAllocationType, CUmemLocationType
NO_ACCESS, READ, READ_WRITE = 0, 1, 3  # CUmemAccess_flags
MIB = 1 << 20
MILLISECOND = 1_000_000


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", ctypes.c_uint), ("id", ctypes.c_int)]


class AllocationFlags(ctypes.Structure):
    """The type of CUmemAllocationProp::allocFlags."""

    _fields_ = [
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_uint),
        ("handle_types", ctypes.c_uint),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("flags", AllocationFlags),
    ]


class AccessDescription(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", Location), ("flags", ctypes.c_uint)]


class PoolProperties(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = [
        ("type", ctypes.c_uint),
        ("handle_types", ctypes.c_uint),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("max_size", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    ]


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


TYPES = {
    "B": ctypes.c_ubyte,
    "I": ctypes.c_uint,
    "i": ctypes.c_int,
    "u": ctypes.c_uint64,  # sizes, addresses and handles of physical memory
    "p": ctypes.c_void_p,  # pointers and the other handles
    "h": IpcHandle,
}

# The types of the arguments, by the letters of TYPES, from cuda-sys's list of functions.
SIGNATURES = dict(
    (line.split() + [""])[:2]
    for line in """
        cuInit I
        cuDriverGetVersion p
        cuGetErrorName ip
        cuDeviceGetCount p
        cuDeviceGetName pii
        cuDeviceTotalMem_v2 pi
        cuDeviceGetAttribute pIi
        cuDeviceGetDefaultMemPool pi
        cuDeviceGetMemPool pi
        cuDeviceCanAccessPeer pii
        cuDevicePrimaryCtxRetain pi
        cuDevicePrimaryCtxRelease_v2 i
        cuDevicePrimaryCtxReset_v2 i
        cuDevicePrimaryCtxGetState ipp
        cuCtxCreate_v2 pIi
        cuCtxDestroy_v2 p
        cuCtxPushCurrent_v2 p
        cuCtxPopCurrent_v2 p
        cuCtxGetCurrent p
        cuCtxSetCurrent p
        cuCtxSynchronize
        cuCtxGetId pp
        cuMemGetInfo_v2 pp
        cuMemAlloc_v2 pu
        cuMemFree_v2 u
        cuMemGetAddressRange_v2 ppu
        cuMemHostAlloc puI
        cuMemFreeHost p
        cuMemcpyHtoD_v2 upu
        cuMemcpyDtoH_v2 puu
        cuMemcpyDtoD_v2 uuu
        cuMemcpyDtoDAsync_v2 uuup
        cuMemsetD8_v2 uBu
        cuMemsetD32_v2 uIu
        cuMemsetD8Async uBup
        cuPointerGetAttribute pIu
        cuIpcGetMemHandle pu
        cuIpcOpenMemHandle_v2 phI
        cuStreamCreate pI
        cuStreamDestroy_v2 p
        cuStreamQuery p
        cuStreamSynchronize p
        cuStreamWaitEvent ppI
        cuStreamGetCtx pp
        cuStreamGetCtx_v2 ppp
        cuStreamGetId pp
        cuStreamGetDevice pp
        cuStreamIsCapturing pp
        cuStreamBeginCapture_v2 pI
        cuStreamEndCapture pp
        cuThreadExchangeStreamCaptureMode p
        cuEventCreate pI
        cuEventRecord pp
        cuEventRecordWithFlags ppI
        cuEventQuery p
        cuEventSynchronize p
        cuEventDestroy_v2 p
        cuMemAddressReserve puuuu
        cuMemAddressFree uu
        cuMemCreate pupu
        cuMemRelease u
        cuMemMap uuuuu
        cuMemUnmap uu
        cuMemSetAccess uupu
        cuMemGetAllocationGranularity ppI
        cuMemRetainAllocationHandle pp
        cuMemExportToShareableHandle puIu
        cuMemImportFromShareableHandle ppI
        cuMemGetHandleForAddressRange puuIu
        cuMemAllocAsync pup
        cuMemAllocFromPoolAsync pupp
        cuMemFreeAsync up
        cuMemPoolCreate pp
        cuMemPoolSetAttribute pIp
        cuMemPoolGetAttribute pIp
        cuMemPoolSetAccess ppu
        cuMemPoolGetAccess ppp
        cuGraphDestroy p
        cuModuleLoadData pp
        cuModuleUnload p
        cuModuleGetFunction ppp
        cuLaunchKernel pIIIIIIIppp
    """.strip().splitlines()
)


class Skip(Exception):
    """This probe does not apply here; the message says why."""


class CudaError(Exception):
    """A driver call failed that a probe relies on."""


def skip(reason):
    raise Skip(reason)


class Driver:
    """The driver of device 0."""

    def __init__(self):
        # A kernel that is loaded at its first launch could be loaded in the middle of a capture.
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            skip(f"no driver: {error}")
        self.is_simulated = hasattr(self.library, "simcuda_calls")
        self.context = 0
        # What was called, for a probe that fails before it can return what it has observed.
        self.calls = collections.deque(maxlen=40)
        self._kernels = {}
        self._wrong = 0
        if code := self.cuInit(0):
            skip(f"cuInit returned {self.name(code)}")

    def __getattr__(self, name):
        """Returns a function of the library."""
        if not name.startswith("cu"):
            raise AttributeError(name)
        signature = SIGNATURES[name]
        try:
            function = getattr(self.library, name)
        except AttributeError:
            skip(f"the driver has no {name}")
        function.argtypes = [TYPES[letter] for letter in signature]
        function.restype = ctypes.c_int
        setattr(self, name, function)
        return function

    def has(self, name):
        return hasattr(self.library, name)

    # Codes.

    def name(self, code):
        """Returns the name of a code without its prefix: "SUCCESS", "INVALID_VALUE"."""
        text = ctypes.c_char_p()
        if self.cuGetErrorName(code, ctypes.byref(text)) or not text.value:
            return str(code)
        return text.value.decode().removeprefix("CUDA_").removeprefix("ERROR_")

    def ok(self, code, what="a driver call"):
        """Raises for a code that is not 0."""
        self.calls.append(f"{what}: {self.name(code)}")
        if code:
            raise CudaError(f"{what} returned {self.name(code)}")

    def check(self, name, *arguments):
        self.ok(getattr(self, name)(*arguments), name)

    def code(self, name, *arguments):
        """Calls a function and returns the name of its code."""
        code = self.name(getattr(self, name)(*arguments))
        self.calls.append(f"{name}: {code}")
        return code

    def make(self, name, *arguments):
        """Returns what a function writes to its first argument, as an unsigned number."""
        value = ctypes.c_uint64()
        self.check(name, ctypes.byref(value), *arguments)
        return value.value

    def ask(self, name, *arguments):
        """Returns what a function writes to its last argument, as an unsigned number."""
        value = ctypes.c_uint64()
        self.check(name, *arguments, ctypes.byref(value))
        return value.value

    # Devices and contexts.

    def enter(self):
        """Retains the primary context of device 0 and makes it current in this thread."""
        self.context = self.make("cuDevicePrimaryCtxRetain", 0)
        self.check("cuCtxSetCurrent", self.context)
        return self.context

    def attribute(self, attribute, device=0):
        """Returns a CUdevice_attribute."""
        return self.make("cuDeviceGetAttribute", attribute, device)

    def in_thread(self, function, *arguments):
        """Calls a function in a new thread, with this thread's context current there, and returns its result."""
        context = self.make("cuCtxGetCurrent")
        outcome = []

        def run():
            try:
                self.check("cuCtxSetCurrent", context)
                outcome.append((function(*arguments), None))
            except BaseException as error:  # Raised again in the calling thread.
                outcome.append((None, error))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    # Memory.

    def alloc(self, size):
        return self.make("cuMemAlloc_v2", size)

    def free_memory(self):
        """Returns the number of free bytes of the current device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def read(self, at, size=4):
        """Copies bytes from the device."""
        buffer = ctypes.create_string_buffer(size)
        self.check("cuMemcpyDtoH_v2", buffer, at, size)
        return buffer.raw

    def pointer_attribute(self, attribute, at):
        """Returns a CUpointer_attribute as an unsigned number of 64 bits."""
        return self.make("cuPointerGetAttribute", attribute, at)

    # Virtual memory.

    def properties(self, rdma=False, handle_types=0):
        """Returns CUmemAllocationProp for memory of device 0."""
        flags = AllocationFlags(rdma=int(rdma))
        return AllocationProperties(PINNED, handle_types, Location(DEVICE, 0), None, flags)

    def granularity(self, recommended=False):
        if not self.attribute(102):
            skip("the device does not support virtual memory management")
        return self.make("cuMemGetAllocationGranularity", ctypes.byref(self.properties()), int(recommended))

    def reserve(self, size):
        return self.make("cuMemAddressReserve", size, 0, 0, 0)

    def physical(self, size):
        return self.make("cuMemCreate", size, ctypes.byref(self.properties()), 0)

    def access(self, flags=READ_WRITE):
        """Returns CUmemAccessDesc for device 0."""
        return AccessDescription(Location(DEVICE, 0), flags)

    def set_access(self, at, size, flags=READ_WRITE):
        """Returns the name of the code of cuMemSetAccess for device 0."""
        return self.code("cuMemSetAccess", at, size, ctypes.byref(self.access(flags)), 1)

    def map_new(self, at, size):
        """Maps new memory at a reserved address, without access, and releases its handle."""
        handle = self.physical(size)
        self.check("cuMemMap", at, size, 0, handle, 0)
        self.check("cuMemRelease", handle)

    # Streams, events and captures.

    def stream(self, flags=NON_BLOCKING):
        return self.make("cuStreamCreate", flags)

    def event(self, flags=DISABLE_TIMING):
        return self.make("cuEventCreate", flags)

    def begin_capture(self, stream, mode=GLOBAL):
        self.check("cuStreamBeginCapture_v2", stream, mode)

    def capture_state(self, stream):
        """Returns "NONE", "ACTIVE" or "INVALIDATED", or the name of the error."""
        status = ctypes.c_uint()
        code = self.cuStreamIsCapturing(stream, ctypes.byref(status))
        return self.name(code) if code else CAPTURE_STATES[status.value]

    def end_capture(self, stream):
        """Ends a capture, destroys its graph, and returns the name of the code."""
        graph = ctypes.c_void_p()
        code = self.cuStreamEndCapture(stream, ctypes.byref(graph))
        if graph.value:
            self.check("cuGraphDestroy", graph.value)
        return self.name(code)

    def exchange_mode(self, mode):
        """Sets the calling thread's capture mode and returns the one before."""
        value = ctypes.c_uint(mode)
        self.check("cuThreadExchangeStreamCaptureMode", ctypes.byref(value))
        return value.value

    @contextlib.contextmanager
    def capture_mode(self, mode):
        """Sets the calling thread's capture mode while a block runs."""
        before = self.exchange_mode(mode)
        try:
            yield
        finally:
            self.exchange_mode(before)

    # Kernels of kernels.ptx.

    def load_kernels(self):
        """Loads the kernels into the current context and returns the module. Call this before a capture."""
        # The PTX text ends with a NUL.
        module = self.make("cuModuleLoadData", KERNELS.read_bytes() + b"\0")
        for name in ["fill", "expect", "delay"]:
            self._kernels[name] = self.make("cuModuleGetFunction", module, name.encode())
        self._wrong = self.alloc(256)
        self.check("cuMemsetD8_v2", self._wrong, 0, 256)
        return module

    def launch(self, kernel, stream, *values, blocks=1, threads=1):
        """Launches a kernel with ctypes values as its arguments and returns the code."""
        pointers = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values]
        arguments = (ctypes.c_void_p * len(values))(*pointers)
        return self.cuLaunchKernel(self._kernels[kernel], blocks, 1, 1, threads, 1, 1, 0, stream, arguments, None)

    def fill(self, stream, at, words, value):
        code = self.launch("fill", stream, *_word_arguments(at, words, value), blocks=64, threads=256)
        self.ok(code, "the launch of fill")

    def expect(self, stream, at, words, value):
        """Counts the words that differ from the value: wrong_words."""
        values = [*_word_arguments(at, words, value), ctypes.c_uint64(self._wrong)]
        self.ok(self.launch("expect", stream, *values, blocks=64, threads=256), "the launch of expect")

    def delay(self, stream, nanoseconds):
        """Keeps a stream busy."""
        self.ok(self.launch("delay", stream, ctypes.c_uint64(nanoseconds)), "the launch of delay")

    def wrong_words(self):
        self.check("cuCtxSynchronize")
        return int.from_bytes(self.read(self._wrong), "little")


def _word_arguments(at, words, value):
    return [ctypes.c_uint64(at), ctypes.c_uint32(words), ctypes.c_uint32(value)]
