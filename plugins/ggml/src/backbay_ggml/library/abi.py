"""The one FFI of this plugin: types of two of them would not mix."""

from __future__ import annotations

from typing import Any

from backbay import DType

from ._abi import ffi as _ffi

ffi: Any = _ffi
Ptr = Any  # what C gives: cffi's objects have no static types
NULL: Ptr = ffi.NULL

DTYPES = {int(dtype): dtype for dtype in DType}


def dtype_of(tensor: Ptr) -> DType:
    """The dtype of a tensor of ggml's."""
    return DTYPES[tensor.type]
