"""ONNX Runtime with libbfc's memory.

On a GPU, by options of its CUDA provider::

    options = bfc.onnxruntime.provider_options(device_id=0)
    session = onnxruntime.InferenceSession(model, providers=[("CUDAExecutionProvider", options)])

On the CPU, by an allocator shared by sessions::

    bfc.onnxruntime.use()
    session = onnxruntime.InferenceSession(model, bfc.onnxruntime.session_options())
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from typing import TYPE_CHECKING, SupportsIndex

from . import HOST, Error, OutOfMemoryError, Status, _library, _numbers, _shim

if TYPE_CHECKING:
    import onnxruntime  # type: ignore[import-not-found, import-untyped, unused-ignore]

__all__ = ["provider_options", "session_options", "stop", "use"]

_SHARED = "session.use_env_allocators"
_CUDA_GRAPH = "enable_cuda_graph"

_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None


def provider_options(**others: object) -> dict[str, str]:
    """Returns options of the CUDA provider that make it allocate device memory from libbfc instead of its own arena.

    The allocator is that of the thread's current device. The first request creates it from the environment
    (``BFC_MEMORY_LIMIT`` and others), unless :func:`bfc.create` was called before. If memory runs out the provider raises.

    :param others: More options of the provider, such as ``device_id=1``. ``gpu_mem_limit`` and ``arena_extend_strategy``
        have no effect, because they configure the arena.
    :raises ValueError: ``enable_cuda_graph`` is on. A captured run names no stream when it requests and frees memory, so
        libbfc cannot keep that memory for the graph: another session would get it, and a replay would overwrite it.
    :raises TypeError: One of the options that this function sets was given.

    >>> import bfc.onnxruntime
    >>> options = bfc.onnxruntime.provider_options(device_id=1)
    >>> sorted(options)
    ['device_id', 'gpu_external_alloc', 'gpu_external_empty_cache', 'gpu_external_free']
    >>> options["device_id"], options["gpu_external_alloc"].isdecimal()
    ('1', True)
    """
    functions = {
        "gpu_external_alloc": "bfc_ort_alloc",
        "gpu_external_free": "bfc_ort_free",
        "gpu_external_empty_cache": "bfc_ort_empty_cache",
    }
    ours = {option: str(_library.address(name)) for option, name in functions.items()}
    taken = sorted(ours.keys() & others.keys())
    if taken:
        raise TypeError(f"provider_options() sets {', '.join(taken)} itself: leave out what it sets")
    if _is_on(others.get(_CUDA_GRAPH, False)):
        raise ValueError(
            f"{_CUDA_GRAPH} is not supported with libbfc's memory: the provider names no stream, so what a captured run "
            f"frees would be reused while the graph still writes it; leave {_CUDA_GRAPH} off, or give this session the "
            "provider's own arena (options without those of bfc.onnxruntime.provider_options)"
        )
    return {**{name: str(value) for name, value in others.items()}, **ours}


def _is_on(value: object) -> bool:
    """Returns whether the provider treats the text of an option as true, or refuses it. It accepts 0, 1, true and false."""
    return str(value).strip().lower() not in ("0", "false", "")


def session_options(options: onnxruntime.SessionOptions | None = None) -> onnxruntime.SessionOptions:
    """Returns options of a session that shares the allocator of :func:`use`: new ones, or the given ones, changed."""
    import onnxruntime

    made = options if options is not None else onnxruntime.SessionOptions()
    made.add_session_config_entry(_SHARED, "1")
    return made


def use(device: SupportsIndex = HOST) -> None:
    """Makes libbfc the allocator of ONNX Runtime's CPU provider, in all sessions created later with
    :func:`session_options`, until :func:`stop`.

    If the device has no allocator it is created from the environment (``BFC_MEMORY_LIMIT`` and others). For other options call
    :func:`bfc.create` before. If memory runs out, ``InferenceSession(...)`` and ``run`` raise ONNX Runtime's own exception
    with libbfc's message.

    The first call on a machine compiles a small library, which needs a C++ compiler.

    :param device: The ordinal of an allocator of host memory (backend ``HOST`` or ``HOST_VMM``).
    :raises bfc.Error: The allocator could not be created.
    :raises bfc._shim.ShimError: There is no compiler, or it failed.
    :raises RuntimeError: ONNX Runtime refused.
    """
    ordinal = _numbers.device(device)
    with _lock:
        shim = _shim_of_onnxruntime()
        words = ctypes.create_string_buffer(1024)
        status = shim.bfc_onnxruntime_begin(ordinal, words, len(words))
    if status == 0:
        return
    text = words.value.decode(errors="replace")
    if status < 0:
        raise RuntimeError(text)
    raise OutOfMemoryError(text, status) if status == Status.OUT_OF_MEMORY else Error(text, status)


def stop() -> None:
    """Ends :func:`use`. Existing sessions keep using libbfc, and free their memory when they end."""
    with _lock:
        if _loaded is not None:
            _loaded.bfc_onnxruntime_end()


def _shim_of_onnxruntime() -> ctypes.CDLL:
    """Returns the library to which ONNX Runtime has passed its functions."""
    global _loaded
    if _loaded is not None:
        return _loaded
    import onnxruntime

    headers = _shim.SOURCES / "onnxruntime"
    texts = [file.read_text(encoding="utf-8") for file in sorted(headers.glob("*.h"))]
    path = os.fspath(_shim.build("onnxruntime", flags=["-std=c++17"], include_dirs=[headers], key=texts))
    # It opens the library, passes its functions, and finds no operators.
    onnxruntime.SessionOptions().register_custom_ops_library(path)
    shim = ctypes.CDLL(path)
    shim.bfc_onnxruntime_begin.argtypes = [ctypes.c_int32, ctypes.c_char_p, ctypes.c_size_t]
    shim.bfc_onnxruntime_begin.restype = ctypes.c_int
    shim.bfc_onnxruntime_end.argtypes = []
    shim.bfc_onnxruntime_end.restype = None
    # ONNX Runtime's environment must end with Python, and must not be kept alive by this.
    atexit.register(stop)
    _loaded = shim
    return shim
