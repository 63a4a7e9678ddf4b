"""The plugin's only FFI (objects of two FFIs do not mix), what a tensor's struct says, and whether libggml lays it out so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from backbay import DType
from backbay.internals import Array, contiguous_strides

from ._abi import ffi as _ffi

ffi: Any = _ffi
Ptr = Any  # cffi's objects have no static types
NULL: Ptr = ffi.NULL

FULL_PRECISION = 10  # of enum ggml_prec
TENSOR_HEADER = 32  # bytes that ggml puts before each tensor in a pool
ROOM = 1 << 16  # bytes that ggml_init allocates beside a pool, at most

DTYPES = {int(dtype): dtype for dtype in DType}


def c_string(pointer: Ptr) -> str:
    """A C string; empty for NULL."""
    return "" if pointer == NULL else ffi.string(pointer).decode(errors="replace")


def dtype_of(tensor: Ptr) -> DType:
    return DTYPES[tensor.type]


def view_owner(tensor: Ptr) -> Ptr:
    """The tensor that a view looks into; the tensor itself if it is no view."""
    return tensor if tensor.view_src == NULL else tensor.view_src


def tensor_address(pointer: Ptr) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def leaf_tensor(dtype: DType, shape: Sequence[int], data: Array | None = None) -> Ptr:
    """A contiguous tensor outside of any pool: without data, or with those of an array that outlives it."""
    made, extents = ffi.new("ggml_tensor *"), (*shape, 1, 1, 1, 1)[:4]
    made.type, made.ne, made.nb = int(dtype), extents, contiguous_strides(dtype, extents)
    if data is not None:
        made.data = ffi.from_buffer(data)
    return made


def new_pool(lib: Any, nbytes: int) -> Ptr:
    """A pool, memory for the descriptions of tensors, to be freed by `ggml_free`; MemoryError if the system has no room for it."""
    np.empty(nbytes + ROOM, np.uint8)  # without room, ggml_init would end the process
    made = lib.ggml_init(ffi.new("ggml_init_params *", (nbytes, NULL, True))[0])
    if made == NULL:
        raise MemoryError("no memory for the description of a graph")
    return made


@contextmanager
def temporary_pool(lib: Any, tensors: int = 16) -> Iterator[Ptr]:
    """A pool for a few tensors, freed at the end."""
    made = new_pool(lib, tensors * lib.ggml_tensor_overhead())
    try:
        yield made
    finally:
        lib.ggml_free(made)


def has_type(lib: Any, dtype: DType) -> bool:
    """Whether ggml has a dtype, with the block that GGUF defines."""
    traits = lib.ggml_get_type_traits(int(dtype))
    return bool(traits.type_size == dtype.type_size and traits.blck_size == dtype.block_size)


def op_numbers(lib: Any) -> tuple[frozenset[int], int]:
    """The numbers of the ops that only make views, and the number that stands for no op."""
    with temporary_pool(lib) as pool:
        a = lib.ggml_new_tensor_4d(pool, int(DType.F32), 8, 1, 1, 1)
        views = (
            lib.ggml_view_1d(pool, a, 4, 0),
            lib.ggml_reshape_4d(pool, a, 4, 2, 1, 1),
            lib.ggml_permute(pool, a, 1, 0, 2, 3),
        )
        return frozenset(view.op for view in views), a.op
