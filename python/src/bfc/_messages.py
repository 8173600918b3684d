"""The library's messages with Python's names.

Messages and reports name C functions and constants. Those with another name in Python are replaced here. A test checks the
messages in the library's source for names that are in neither of these tables.
"""

from __future__ import annotations

import re

PYTHON = {
    "BFC_ALLOW_GROWTH": "allow_growth=True",
    "BFC_BACKEND_AUTO": "backend='auto'",
    "BFC_BACKEND_CUDA": "backend='cuda'",
    "BFC_BACKEND_CUDA_VMM": "backend='cuda_vmm'",
    "BFC_BACKEND_HOST": "backend='host'",
    "BFC_BACKEND_HOST_VMM": "backend='host_vmm'",
    "BFC_GARBAGE_COLLECTION": "garbage_collection=True",
    "BFC_GROWTH_NEED": "growth_policy='need'",
    "BFC_OPTIONS_RECOMMENDED": "a pool without options",
    "BFC_QUARANTINE": "quarantine=True",
    "BFC_TIMESTAMPS": "timestamps=True",
    "bfc_device_lost": "bfc.lost",
    "bfc_history_start": "bfc.history",
    "bfc_options_t": "the options",
    "bfc_request_t": "the request",
    "bfc_scope_begin": "bfc.scope",
    "bfc_scope_end": "the end of bfc.scope",
    "bfc_stream_synchronized": "bfc.synchronized",
    "bfc_trim": "bfc.trim",
}

C_ONLY = frozenset(
    {
        "BFC_BACKEND_",
        "BFC_BACKEND_CUSTOM",
        "BFC_BACKEND_PREFER_CUDA_VMM",
        "BFC_GROWTH_",
        "BFC_OPTIONS_INIT",
        "BFC_REQUEST_INIT",
        "BFC_STACKS_",
        "BFC_SUBALLOCATOR_INIT",
        "bfc_adapter_options",
        "bfc_capture_begin",
        "bfc_pool_begin",
        "bfc_pool_end",
        "bfc_pool_release",
        "bfc_set_idle_callback",
        "bfc_set_safe_frontier",
        "bfc_suballocator_t",
    }
)
"""Functions without a counterpart in Python."""

_NAME = re.compile(r"\b(?:bfc|BFC)_\w+")


def in_python(message: str) -> str:
    """Returns the message with Python's names.

    >>> in_python("BFC_QUARANTINE needs BFC_TIMESTAMPS")
    'quarantine=True needs timestamps=True'
    """
    return _NAME.sub(lambda found: PYTHON.get(found[0], found[0]), message)
