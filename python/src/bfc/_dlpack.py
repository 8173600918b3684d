"""DLPack's capsules, and the lifetime of their memory: https://dmlc.github.io/dlpack/latest/python_spec.html.

A consumer calls the deleter of a tensor when it no longer uses it: in any thread, without Python's lock, while an exception is raised, or
after the interpreter has ended. No function in Python may run at those moments, nor may a capsule's destructor. So the deleter
is a function of the C library: time(), which stores the time where its argument points, and thereby overwrites the first field
of the tensor. Tensors marked in this way are freed by the next call into a pool: :func:`sweep`.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, Protocol

CPU, CUDA = 1, 2
"""kDLCPU and kDLCUDA."""

_UNSIGNED = 1
_IS_COPIED = 2
# The version of this layout. Other minor versions have the same layout.
_VERSION = (1, 0)


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    ]


class _Managed(ctypes.Structure):
    """``DLManagedTensor``, followed by the arrays that it points to."""

    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p), ("shape", c_int64), ("stride", c_int64)]


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``, followed by its arrays."""

    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
        ("shape", c_int64),
        ("stride", c_int64),
    ]


def _function(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_malloc = _function("PyMem_RawMalloc", c_void_p, c_size_t)
_free = _function("PyMem_RawFree", None, c_void_p)
_new_capsule = _function("PyCapsule_New", ctypes.py_object, c_void_p, c_char_p, c_void_p)
_is_valid = _function("PyCapsule_IsValid", c_int, ctypes.py_object, c_char_p)
_keep_forever = _function("Py_IncRef", None, ctypes.py_object)

_MARK = ctypes.cast(ctypes.CDLL(None).time, c_void_p).value


class Owner(Protocol):
    """The exported memory."""

    _tensors: set[int]


class _Export:
    __slots__ = ("capsule", "first", "name", "owner")

    def __init__(self, owner: Owner | None, capsule: object, name: bytes, first: int) -> None:
        self.owner, self.capsule, self.name, self.first = owner, capsule, name, first

    def references(self) -> int:
        return sys.getrefcount(self.capsule)


# The number of references of a capsule that nothing else refers to.
_ALONE = _Export(None, object(), b"", 0).references()

exports: dict[int, _Export] = {}
"""The exports that are still in use as far as is known, by the addresses of their tensors."""


def export(owner: Owner, address: int, size: int, device: tuple[int, int], versioned: bool, copied: bool) -> object:
    """Returns a new capsule of the memory, which keeps its owner alive until the consumer has deleted it."""
    kind: type[_Managed] | type[_Versioned] = _Versioned if versioned else _Managed
    place = _malloc(ctypes.sizeof(kind))
    if not place:
        raise MemoryError("out of host memory (DLPack tensor)")
    made = kind.from_address(place)
    ctypes.memset(place, 0, ctypes.sizeof(kind))
    made.tensor.data = address
    made.tensor.device_type, made.tensor.device_id = device
    made.tensor.ndim, made.tensor.code, made.tensor.bits, made.tensor.lanes = 1, _UNSIGNED, 8, 1
    made.tensor.shape, made.tensor.strides = place + kind.shape.offset, place + kind.stride.offset
    made.shape, made.stride = size, 1
    made.deleter = _MARK
    if isinstance(made, _Versioned):
        made.major, made.minor = _VERSION
        made.flags = _IS_COPIED if copied else 0
    # The name must outlive the capsule, and a constant does.
    name = _VERSIONED_NAME if versioned else _NAME
    owner._tensors.add(place)
    capsule = _new_capsule(place, name, None)
    exports[place] = _Export(owner, capsule, name, _first(place))
    if _State.is_ending:
        _keep_forever(owner)
    return capsule


_NAME, _VERSIONED_NAME = b"dltensor", b"dltensor_versioned"


def _first(place: int) -> int:
    """The field that the deleter overwrites."""
    return c_uint64.from_address(place).value


def sweep() -> None:
    """Releases tensors that consumers have deleted, and capsules that no consumer took."""
    for place, found in list(exports.items()):
        if found.capsule is not None:
            if _is_valid(found.capsule, found.name):
                if found.references() > _ALONE:
                    continue
            else:
                # The consumer has renamed it, and will call the deleter.
                found.capsule = None
                if _first(place) == found.first:
                    continue
        elif _first(place) == found.first:
            continue
        # Another thread may have found it too.
        if exports.pop(place, None) is not None and found.owner is not None:
            found.owner._tensors.discard(place)
            found.owner = None
            found.capsule = None
            _free(place)


class _State:
    is_ending = False


def _at_exit() -> None:
    """Leaves the memory of tensors to the system, because code that ends after the interpreter may still use them."""
    sweep()
    _State.is_ending = True
    for found in list(exports.values()):
        _keep_forever(found.owner)


atexit.register(_at_exit)
