"""Calls of native functions with arrays, as ggml would make them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backbay import DType
from backbay.internals import Array, contiguous_strides

from .native_code import ENTRY, MOST_ALONE, NativeCode

THREADS = 2
DTYPES = {"f": DType.F32, "e": DType.F16, "i": DType.I32}  # of NumPy's types


class TensorStruct(ctypes.Structure):
    """A tensor for native code: the struct ggml_tensor of tensor.h."""

    ne: Any
    src: Any
    array: Array  # with the data


TensorStruct._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(TensorStruct) * 10),
    ("view_src", ctypes.POINTER(TensorStruct)),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
]


def tensor_of(array: Array, dtype: DType | None = None, shape: Sequence[int] = ()) -> TensorStruct:
    """A tensor of a contiguous array, or of a dtype's blocks that the array holds."""
    kind = DTYPES[array.dtype.char] if dtype is None else dtype
    extents = (*(shape or array.shape[::-1]), 1, 1, 1, 1)[:4]
    strides = contiguous_strides(kind, extents)
    made = TensorStruct(type=int(kind), ne=extents, nb=strides, data=array.ctypes.data)
    made.array = array
    return made


def as_tensor(operand: Array | TensorStruct) -> TensorStruct:
    return operand if isinstance(operand, TensorStruct) else tensor_of(operand)


def custom_op(
    code: NativeCode,
    name: str,
    result: Array | TensorStruct,
    operands: Sequence[Array | TensorStruct],
    data: int = 0,
) -> Callable[[int, int], None]:
    """A custom op of ggml with its operands, to be called with the numbers of a thread and of all threads."""
    made, *sources = map(as_tensor, (result, *operands))
    for n, source in enumerate(sources):
        made.src[n] = ctypes.pointer(source)
    function = code.function(name)
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p), None
    return lambda thread, threads: function(ctypes.byref(made), thread, threads, data)


def run_op(
    code: NativeCode,
    name: str,
    result: Array | TensorStruct,
    operands: Sequence[Array | TensorStruct],
    data: int = 0,
) -> None:
    """Run a custom op on some threads, one after the other."""
    op = custom_op(code, name, result, operands, data)
    for thread in range(THREADS):
        op(thread, THREADS)


def multiply(code: NativeCode, format_: int, weights: TensorStruct, x: Array) -> Array:
    """The products of weights in a format, by its number, and columns."""
    count, inner = x.shape
    result = np.zeros((count, weights.ne[1]), np.float32)
    if count == 1 and inner <= MOST_ALONE:
        run_op(code, "product_alone", result, [weights, x], format_)
    else:
        run_op(code, "products", result, [weights, encode_columns(code, format_, x)], format_)
    return result


def encode_columns(code: NativeCode, format_: int, x: Array) -> Array:
    """Columns in codes, for weights in a format."""
    codes = np.zeros((len(x), x.shape[1] // 32 * ENTRY // 4), np.float32)
    run_op(code, "columns", codes, [x], format_)
    return codes


def multiply_by_experts(
    code: NativeCode, format_: int, weights: TensorStruct, x: Array | TensorStruct, ids: Array | TensorStruct
) -> Array:
    """The products of experts' weights in a format and columns (tokens, 1 or used, inner), by ids (tokens, used)."""
    used, tokens = as_tensor(ids).ne[:2]
    table = tabulate_pairs(code, weights.ne[2], ids)
    result = np.zeros((tokens, used, weights.ne[1]), np.float32)
    codes = encode_for_experts(code, format_, x, table, tokens * used)
    run_op(code, "expert_products", result, [weights, codes, table], format_)
    return result


def tabulate_pairs(code: NativeCode, experts: int, ids: Array | TensorStruct) -> Array:
    """The table of the pairs of tokens and experts."""
    used, tokens = as_tensor(ids).ne[:2]
    table = np.zeros(experts + 1 + 3 * tokens * used, np.int32)
    run_op(code, "pairs", table, [ids], experts)
    return table


def encode_for_experts(
    code: NativeCode, format_: int, x: Array | TensorStruct, table: Array, pairs: int
) -> Array:
    """Columns in codes, by expert."""
    codes = np.zeros((pairs, as_tensor(x).ne[0] // 32 * ENTRY // 4), np.float32)
    run_op(code, "expert_columns", codes, [x, table], format_)
    return codes
