"""Ops that devices are known to compute wrongly, or whose operands they misread: a device's trial decides which of these ops
the CPU runs instead, and which operands are copied first."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from backbay import DType

from ..library.abi import Ptr, dtype_of
from .fault_cases import (
    BF16_NAN,
    BLOCKS_APART,
    COLUMN_COPIES,
    DELTA_OF_LONG_HEADS,
    IDS_APART,
    LARGE_TRIANGLE,
    LONG_COPIES,
    LONG_INTEGER_ROWS,
    LONG_VOLUMES,
    MANY_SLICES,
    MOST_ROWS,
    NORMS_OF_MANY_ROWS,
    ROWS_BETWEEN_VECTORS,
    RUNNING_SUMS,
    SLICES_APART,
    SMALL_TANH,
    STEP_OF_ZERO,
)


class KnownFault(NamedTuple):
    """A case of the trials, and the ops, by ggml's names for them, that a device which fails it computes wrongly."""

    case: str
    ops: tuple[str, ...]
    concerns: Callable[[Ptr], bool]


SHORT_ROW = 512
"""Numbers of a row of i32 that Vulkan's code copies to the end."""


def _copies(source: DType, result: DType) -> Callable[[Ptr], bool]:
    return lambda tensor: (dtype_of(tensor.src[0]), dtype_of(tensor)) == (source, result)


def _adjoins(tensor: Ptr) -> bool:
    """Whether all elements of a tensor lie one after the other."""
    dtype = dtype_of(tensor)
    step, extents = dtype.type_size, [tensor.ne[0] // dtype.block_size, *list(tensor.ne)[1:]]
    for extent, stride in zip(extents, tensor.nb, strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _copies_blocks_apart(tensor: Ptr) -> bool:
    source = tensor.src[0]
    return dtype_of(source) is dtype_of(tensor) and dtype_of(source).is_quantized and not _adjoins(source)


def _writes_columns(tensor: Ptr) -> bool:
    """CUDA takes rows of one number for a transposed matrix, and writes them as if their places adjoined."""
    source, dtype = tensor.src[0], dtype_of(tensor)
    return dtype_of(source) is dtype and source.nb[1] == dtype.type_size and not _adjoins(tensor)


DELTA_HEADS = (16, 32, 64, 128)
"""Numbers of a head for which CUDA's code has the delta rule."""

KNOWN_FAULTS = (
    KnownFault(LARGE_TRIANGLE, ("SOLVE_TRI",), lambda _: True),
    KnownFault(BF16_NAN, ("CPY",), _copies(DType.F32, DType.BF16)),
    KnownFault(LONG_COPIES, ("CPY", "CONT"), _copies(DType.I64, DType.I64)),
    KnownFault(STEP_OF_ZERO, ("STEP",), lambda _: True),
    KnownFault(SMALL_TANH, ("TANH",), lambda _: True),
    KnownFault(
        NORMS_OF_MANY_ROWS,
        ("NORM", "RMS_NORM", "L2_NORM", "ADD_ID"),
        lambda tensor: max(tensor.ne[1:4]) > MOST_ROWS,
    ),
    KnownFault(
        LONG_INTEGER_ROWS,
        ("GET_ROWS",),
        lambda tensor: dtype_of(tensor) is DType.I32 and tensor.ne[0] > SHORT_ROW,
    ),
    KnownFault(LONG_VOLUMES, ("IM2COL_3D",), lambda tensor: tensor.ne[1] > MOST_ROWS),
    KnownFault(
        MANY_SLICES,
        ("NORM", "RMS_NORM", "L2_NORM", "ADD_ID", "SOFT_MAX", "CUMSUM", "PAD", "MUL_MAT"),
        lambda tensor: max(tensor.ne[2:4]) > MOST_ROWS,
    ),
    KnownFault(COLUMN_COPIES, ("CPY",), _writes_columns),
    KnownFault(RUNNING_SUMS, ("CUMSUM",), lambda _: True),
    KnownFault(BLOCKS_APART, ("CPY", "CONT"), _copies_blocks_apart),
    KnownFault(
        DELTA_OF_LONG_HEADS, ("GATED_DELTA_NET",), lambda tensor: tensor.src[2].ne[0] not in DELTA_HEADS
    ),
)


class KnownMisreading(NamedTuple):
    """A case of the trials, and the ops that take an operand for one that lies in another way, on a device which fails it."""

    case: str
    ops: tuple[str, ...]
    concerns: Callable[[Ptr, Ptr], bool]  # the op and the operand


PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
VECTOR = 16  # bytes that GPUs read at a time


def _has_slices_apart(tensor: Ptr) -> bool:
    """Whether each slice of two dimensions adjoins in itself, but not to the next one."""
    nb, ne = tensor.nb, tensor.ne
    whole = nb[1] * ne[1]
    if nb[1] * dtype_of(tensor).block_size != nb[0] * ne[0]:
        return False
    return bool((ne[2] > 1 and nb[2] != whole) or (ne[3] > 1 and nb[3] != whole * ne[2]))


def _has_rows_between_vectors(tensor: Ptr) -> bool:
    """Whether rows that do not adjoin begin where no vector does."""
    dtype = dtype_of(tensor)
    if dtype.is_quantized or tensor.nb[1] == tensor.ne[0] * dtype.type_size:
        return False
    return any(step % VECTOR for step in tensor.nb[1:4])


def _are_ids_apart(tensor: Ptr, source: Ptr) -> bool:
    return bool(source == tensor.src[1] and source.nb[0] != dtype_of(source).type_size)


KNOWN_MISREADINGS = (
    KnownMisreading(SLICES_APART, PRODUCTS, lambda _, source: _has_slices_apart(source)),
    KnownMisreading(ROWS_BETWEEN_VECTORS, PRODUCTS, lambda _, source: _has_rows_between_vectors(source)),
    KnownMisreading(IDS_APART, ("GET_ROWS",), _are_ids_apart),
)
