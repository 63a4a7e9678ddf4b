"""What devices are known to compute wrongly, although ggml says that they compute it: cases of a device's trial.

The trial decides which ops the CPU runs instead, and which operands are copied first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from backbay import DType, Tensor

from ..library.abi import Ptr, dtype_of
from .trial_cases import ROW, ROWS, Case, TrialLeafMaker, trial_case

LARGE_MEAN = "a norm of numbers with a large mean"
LONG_COPIES = "copies of i64"
QUERIES_BETWEEN_VECTORS = "attention of queries that begin at no whole vectors"
PRODUCT_NAN = "products of NaN"
REPEATED_IDS = "a token that asks an expert twice"
SLICES_APART = "products of slices that do not adjoin"
CAPPED_SHORT_HEADS = "capped attention of short heads"
MOST_ROWS = (1 << 16) - 1  # that every device takes: Vulkan promises no more workgroups
SHORT_ROW = 512  # numbers of a row of i32 that Vulkan's code copies to the end
LONG_HEAD = 192  # longer than a power of 2, and than 128
DELTA_HEADS = (16, 32, 64, 128)  # numbers of a head for which CUDA's code has the delta rule
PRODUCTS = "MUL_MAT MUL_MAT_ID"
VECTOR = 16  # bytes that GPUs read at a time


class DeviceFault(NamedTuple):
    """A case of the trials, and the ops, by ggml's names for them, that concern a device which fails it."""

    case: str
    ops: tuple[str, ...]
    concerns: Callable[[Ptr, Ptr], bool]
    """Whether an op is concerned, by one of its operands."""


KNOWN_FAULTS: list[DeviceFault] = []
"""Ops that a device computes wrongly, by their first operand: the CPU runs them instead."""
KNOWN_MISREADINGS: list[DeviceFault] = []
"""Ops that take an operand for one that lies in another way: it is copied first."""


def _always(tensor: Ptr, source: Ptr) -> bool:
    return True


def _fault(
    case: str,
    ops: str,
    concerns: Callable[[Ptr, Ptr], bool] = _always,
    known: list[DeviceFault] = KNOWN_FAULTS,
) -> Callable[[Case], Case]:
    known.append(DeviceFault(case, tuple(ops.split()), concerns))
    return trial_case(case)


# -- the ops that cases concern --------------------------------------------------------------------------


def _copies(source: DType, result: DType) -> Callable[[Ptr, Ptr], bool]:
    return lambda tensor, operand: (dtype_of(operand), dtype_of(tensor)) == (source, result)


def _adjoins(tensor: Ptr) -> bool:
    dtype = dtype_of(tensor)
    step, extents = dtype.type_size, [tensor.ne[0] // dtype.block_size, *list(tensor.ne)[1:]]
    for extent, stride in zip(extents, tensor.nb, strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _copies_blocks_apart(tensor: Ptr, source: Ptr) -> bool:
    return dtype_of(source) is dtype_of(tensor) and dtype_of(source).is_quantized and not _adjoins(source)


def _writes_columns(tensor: Ptr, source: Ptr) -> bool:
    """CUDA takes rows of one number for a transposed matrix, and writes them as if their places adjoined."""
    dtype = dtype_of(tensor)
    return dtype_of(source) is dtype and source.nb[1] == dtype.type_size and not _adjoins(tensor)


def _has_slices_apart(_: Ptr, source: Ptr) -> bool:
    """Whether each slice of two dimensions adjoins in itself, but not to the next one."""
    nb, ne = source.nb, source.ne
    whole = nb[1] * ne[1]
    if nb[1] * dtype_of(source).block_size != nb[0] * ne[0]:
        return False
    return bool((ne[2] > 1 and nb[2] != whole) or (ne[3] > 1 and nb[3] != whole * ne[2]))


def _has_rows_between_vectors(_: Ptr, source: Ptr) -> bool:
    """Whether rows that do not adjoin begin where no vector does."""
    dtype = dtype_of(source)
    if dtype.is_quantized or source.nb[1] == source.ne[0] * dtype.type_size:
        return False
    return any(step % VECTOR for step in source.nb[1:4])


def _are_ids_apart(tensor: Ptr, source: Ptr) -> bool:
    return bool(source == tensor.src[1] and source.nb[0] != dtype_of(source).type_size)


# -- cases -----------------------------------------------------------------------------------------------


@trial_case(LARGE_MEAN)
def _norm(b: TrialLeafMaker) -> Tensor:
    return b.leaf(np.tile(np.array([10002, 10000], np.float32), 8)[None]).layer_norm(
        b.ctx, None, None, eps=1e-5
    )


@_fault("NaN as bf16", "CPY", concerns=_copies(DType.F32, DType.BF16))
def _nan(b: TrialLeafMaker) -> Tensor:
    return b.leaf(np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)).cast(b.ctx, DType.BF16)


@_fault("a large triangle", "SOLVE_TRI")
def _triangle(b: TrialLeafMaker) -> Tensor:
    lower = np.tril(b.numbers(96, 96)) / 96 + np.eye(96, dtype=np.float32)
    return b.leaf(lower).solve_tri(b.ctx, b.floats(3, 96))


@_fault(LONG_COPIES, "CPY CONT", concerns=_copies(DType.I64, DType.I64))
def _long(b: TrialLeafMaker) -> Tensor:
    repeated = b.leaf(np.arange(6), DType.I64).repeat_4d(b.ctx, 6, 4).contiguous(b.ctx)
    return repeated.permute(b.ctx, 1, 0).contiguous(b.ctx)


@_fault("tanh of small numbers", "TANH")
def _small_tanh(b: TrialLeafMaker) -> Tensor:
    return b.leaf(b.numbers(ROW) * np.float32(1e-6)).tanh(b.ctx).scale(b.ctx, 1e6)


@_fault(
    "norms of many rows",
    "NORM RMS_NORM L2_NORM ADD_ID",
    concerns=lambda tensor, _: max(tensor.ne[1:4]) > MOST_ROWS,
)
def _norms_of_many_rows(b: TrialLeafMaker) -> Tensor:
    return b.floats(4, MOST_ROWS + 1).rms_norm(b.ctx, None, eps=1e-5)


@trial_case(QUERIES_BETWEEN_VECTORS)
def _queries_between_vectors(b: TrialLeafMaker) -> Tensor:
    step = ROW + 2  # numbers from one query to the next
    query = b.floats(step, 6).view(b.ctx, 0, (ROW, 2, 3), (4 * step, 8 * step))
    key, value = (b.floats(ROW, 1, 40, dtype=DType.F16) for _ in range(2))
    return query.scaled_dot_product_attention(b.ctx, key, value, None, scale=0.125)


@trial_case(PRODUCT_NAN)
def _product_of_nan(b: TrialLeafMaker) -> Tensor:
    columns = b.numbers(ROW, 48)
    columns[::3, 5] = np.nan
    return b.floats(ROW, ROWS, dtype=DType.F16).mulmat(b.ctx, b.leaf(columns))


@trial_case(REPEATED_IDS)
def _repeated_ids(b: TrialLeafMaker) -> Tensor:
    ids = b.leaf(np.ones((12, 3), np.int32), DType.I32)
    return b.floats(ROW, 4, 2).mulmat_id(b.ctx, b.floats(ROW, 1, 12), ids)


@_fault(SLICES_APART, PRODUCTS, concerns=_has_slices_apart, known=KNOWN_MISREADINGS)
def _slices_apart(b: TrialLeafMaker) -> Tensor:
    def apart(columns: int) -> Tensor:
        return b.floats(ROW, columns + 2, 3).slice(b.ctx, 1, 0, columns)

    few, many = (apart(5).mulmat(b.ctx, apart(columns)) for columns in (1, 17))
    return few.concat(b.ctx, many, 1)


@_fault(
    "long rows of i32",
    "GET_ROWS",
    concerns=lambda tensor, _: dtype_of(tensor) is DType.I32 and tensor.ne[0] > SHORT_ROW,
)
def _long_integer_rows(b: TrialLeafMaker) -> Tensor:
    held = b.leaf(np.arange(3 * 2000).reshape(3, 2000), DType.I32)
    return held.rows(b.ctx, b.leaf(np.array([2, 0]), DType.I32))


@_fault("convolutions of long volumes", "IM2COL_3D", concerns=lambda tensor, _: tensor.ne[1] > MOST_ROWS)
def _long_volumes(b: TrialLeafMaker) -> Tensor:
    return b.floats(3, 1, 1, 1).conv3d(b.ctx, b.floats(MOST_ROWS + 1, 1, 1, 1), c=1, p0=1)


@_fault("step of 0", "STEP")
def _step(b: TrialLeafMaker) -> Tensor:
    return b.leaf(np.array([0.0, -0.0, 1.0, -1.0], np.float32)).cast(b.ctx, DType.I64)  # made by steps


@_fault(
    "many slices",
    "NORM RMS_NORM L2_NORM ADD_ID SOFT_MAX CUMSUM PAD MUL_MAT",
    concerns=lambda tensor, _: max(tensor.ne[2:4]) > MOST_ROWS,
)
def _many_slices(b: TrialLeafMaker) -> Tensor:
    padded = b.floats(1, 1, MOST_ROWS + 1).pad_ext(b.ctx, 0, 1, 0, 0, 0, 0, 0, 0)
    return padded.softmax(b.ctx).rms_norm(b.ctx, None, eps=1e-5)


@_fault("copies into columns", "CPY", concerns=_writes_columns)
def _copies_into_columns(b: TrialLeafMaker) -> Tensor:
    column = b.floats(4, ROWS).slice(b.ctx, 0, 1, 2)
    return b.floats(1, ROWS).copy(b.ctx, column).contiguous(b.ctx)


@_fault("running sums of infinities", "CUMSUM")
def _running_sums(b: TrialLeafMaker) -> Tensor:
    data = b.numbers(ROW)
    data[[3, 40]] = 1e30, np.inf
    return b.leaf(data).cumsum(b.ctx)


@_fault("rows by ids that do not adjoin", "GET_ROWS", concerns=_are_ids_apart, known=KNOWN_MISREADINGS)
def _rows_by_ids_apart(b: TrialLeafMaker) -> Tensor:
    ids = b.leaf(np.array([[7, 1], [3, 1], [0, 1]], np.int32), DType.I32).slice(b.ctx, 0, 0, 1)
    return b.floats(ROW, ROWS).rows(b.ctx, ids.permute(b.ctx, 1, 0))


@_fault("copies of blocks that do not adjoin", "CPY CONT", concerns=_copies_blocks_apart)
def _copies_of_blocks_apart(b: TrialLeafMaker) -> Tensor:
    return b.floats(ROW, ROWS, dtype=DType.Q4_0).slice(b.ctx, 0, 0, ROW // 2).contiguous(b.ctx)


@_fault(
    "products of rows that begin at no whole vectors",
    PRODUCTS,
    concerns=_has_rows_between_vectors,
    known=KNOWN_MISREADINGS,
)
def _products_of_rows_between_vectors(b: TrialLeafMaker) -> Tensor:
    apart = b.floats(41, 2, 2, dtype=DType.BF16).slice(b.ctx, 0, 0, 8).permute(b.ctx, 0, 2, 1)
    return apart.mulmat(b.ctx, b.floats(8, 65, 6))


@trial_case(CAPPED_SHORT_HEADS)
def _capped_attention(b: TrialLeafMaker) -> Tensor:
    key, value = (b.floats(ROW, 1, 40, dtype=DType.F16) for _ in range(2))
    query = b.floats(ROW, 2, 3)
    return query.scaled_dot_product_attention(b.ctx, key, value, None, scale=0.125, softcap=30.0)


@_fault(
    "the delta rule of long heads",
    "GATED_DELTA_NET",
    concerns=lambda tensor, _: tensor.src[2].ne[0] not in DELTA_HEADS,
)
def _delta_rule(b: TrialLeafMaker) -> Tensor:
    query, key, value = (b.floats(LONG_HEAD, 1, 2, 1) for _ in range(3))
    decay, share = (b.leaf(-np.abs(b.numbers(1, 1, 2, 1))) for _ in range(2))
    state = b.leaf(np.zeros((1, 1, LONG_HEAD, LONG_HEAD), np.float32))
    return state.delta_rule(b.ctx, query, key, value, decay, share)
