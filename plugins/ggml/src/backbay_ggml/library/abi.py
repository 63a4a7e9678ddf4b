"""The plugin's only FFI (objects of two FFIs do not mix), what a tensor's struct says, and whether libggml lays it out so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from backbay import BackendUnavailableError, DType
from backbay.internals import Array, contiguous_strides

from ._abi import ffi as _ffi

ffi: Any = _ffi
Ptr = Any  # cffi's objects have no static types
NULL: Ptr = ffi.NULL

FULL_PRECISION = 10  # of enum ggml_prec
TENSOR_HEADER = 32  # bytes that ggml puts before each tensor in a pool
ROOM = 1 << 16  # bytes that ggml_init allocates beside a pool, at most

DTYPES = {int(dtype): dtype for dtype in DType}


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


def check_layout(lib: Any, path: Path) -> None:
    """Build a few tensors and read them back; BackendUnavailableError if a field lies elsewhere."""
    expected, overhead = ffi.sizeof("ggml_tensor") + TENSOR_HEADER, lib.ggml_tensor_overhead()
    if overhead != expected:
        wrong = [f"ggml_tensor_overhead is {overhead}, not {expected}"]
    else:
        types = (DType.F32, DType.F16, DType.Q4_0, DType.Q6_K)
        wrong = [f"type {dtype} has another block" for dtype in types if not has_type(lib, dtype)]
        wrong += _misplaced_fields(lib)
    if wrong:
        raise BackendUnavailableError(f"{path} has an unknown memory layout: {'; '.join(wrong)}")


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


def _misplaced_fields(lib: Any) -> list[str]:
    with temporary_pool(lib) as pool:
        a = lib.ggml_new_tensor_4d(pool, int(DType.F32), 8, 3, 1, 1)
        b = lib.ggml_new_tensor_4d(pool, int(DType.F32), 8, 5, 1, 1)
        lib.ggml_set_name(a, b"probe")
        product, scaled = lib.ggml_mul_mat(pool, a, b), lib.ggml_scale(pool, a, 2.5)
        view = lib.ggml_view_1d(pool, a, 4, 32)
        right = {
            "ne": list(product.ne) == [3, 5, 1, 1],
            "nb": list(a.nb) == [4, 32, 96, 96],
            "src": product.src[0] == a and product.src[1] == b,
            "op": ffi.string(lib.ggml_op_name(product.op)) == b"MUL_MAT",
            "op_params": ffi.cast("float *", scaled.op_params)[0] == 2.5,
            "view": view.view_src == a and view.view_offs == 32,
            "name": ffi.string(a.name) == b"probe",
        }
    return [f"the field {field} lies elsewhere" for field, found in right.items() if not found]
