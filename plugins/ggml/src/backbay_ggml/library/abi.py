"""The plugin's only FFI (objects of two FFIs do not mix), and what a tensor's struct says."""

from __future__ import annotations

from typing import Any

from backbay import DType

from ._abi import ffi as _ffi

ffi: Any = _ffi
Ptr = Any  # cffi's objects have no static types
NULL: Ptr = ffi.NULL

FULL_PRECISION = 10  # of enum ggml_prec

DTYPES = {int(dtype): dtype for dtype in DType}


def dtype_of(tensor: Ptr) -> DType:
    """The dtype of a ggml tensor."""
    return DTYPES[tensor.type]


def owner(tensor: Ptr) -> Ptr:
    """The tensor that a view looks into; the tensor itself if it is no view."""
    return tensor if tensor.view_src == NULL else tensor.view_src


def address(pointer: Ptr) -> int:
    """A pointer as a number."""
    return int(ffi.cast("uintptr_t", pointer))
