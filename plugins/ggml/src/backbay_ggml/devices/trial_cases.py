"""The cases of a device's trial: what devices are known to compute wrongly, although ggml says that they compute it.

A case traces a small graph whose leaves lie on a device. Its result is compared with the CPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np

from backbay import Context, DType, Tensor
from backbay.plugin import Array, Bytes

Case = Callable[["Bench"], Tensor]
CASES: dict[str, Case] = {}
"""By what is tried: views that begin between a device's places for tensors, by the ggml op that reads or writes them,
with the view's dtype unless it is f32 (`GET_ROWS`, `GET_ROWS i32`, `into CPY`), and other faults, in words."""
PLAIN = "a product"  # of which a device must be capable
LARGE_MEAN = "a norm of numbers with a large mean"
BF16_NAN = "NaN as bf16"
LARGE_TRIANGLE = "a large triangle"
LONG_COPIES = "copies of i64"
SMALL_TANH = "tanh of small numbers"
NORMS_OF_MANY_ROWS = "norms of many rows"
QUERIES_BETWEEN_VECTORS = "attention of queries that begin at no whole vectors"
PRODUCT_NAN = "products of NaN"
REPEATED_IDS = "a token that asks an expert twice"
STEP_OF_ZERO = "step of 0"
SLICES_APART = "products of slices that do not adjoin"
LONG_INTEGER_ROWS = "long rows of i32"
LONG_VOLUMES = "convolutions of long volumes"
MANY_SLICES = "many slices"
COLUMN_COPIES = "copies into columns"
RUNNING_SUMS = "running sums of infinities"
IDS_APART = "rows by ids that do not adjoin"
BLOCKS_APART = "copies of blocks that do not adjoin"
ROWS_BETWEEN_VECTORS = "products of rows that begin at no whole vectors"
CAPPED_SHORT_HEADS = "capped attention of short heads"
DELTA_OF_LONG_HEADS = "the delta rule of long heads"
MOST_ROWS = (1 << 16) - 1  # that every device takes: Vulkan promises no more workgroups
COPIED = (DType.F16, DType.BF16, DType.I32, DType.Q4_0, DType.Q4_1, DType.Q5_0, DType.Q5_1, DType.Q8_0)
ROW, ROWS = 64, 12
LONG_HEAD = 192  # longer than a power of 2, and than 128


@final
class Bench:
    """Makes the leaves of a case on the device that is tried."""

    def __init__(self, ctx: Context, quantized: Callable[[Array, DType], Bytes]) -> None:
        self.ctx, self._quantized = ctx, quantized
        self._rng = np.random.default_rng(1)

    def numbers(self, *shape: int) -> Array:
        """Random numbers, in the order of NumPy's dimensions."""
        return self._rng.standard_normal(shape[::-1], np.float32)

    def leaf(self, data: Array, dtype: DType = DType.F32) -> Tensor:
        made = self.ctx.layer(0).empty(dtype, *data.shape[::-1])
        if dtype.is_quantized:
            return made.from_bytes(self._quantized(data, dtype))
        return made.from_ints(data) if dtype.is_integer else made.from_floats(data)

    def shifted(self, data: Array, dtype: DType = DType.F32) -> Tensor:
        """The data as a view that begins one element, or one block, after a leaf of the device."""
        step = dtype.block_size
        held = self.leaf(np.concatenate([np.ones(step, data.dtype), data.reshape(-1)]), dtype)
        return held.view(self.ctx, dtype.type_size, data.shape[::-1])

    def floats(self, *shape: int, dtype: DType = DType.F32) -> Tensor:
        return self.shifted(self.numbers(*shape), dtype)

    def ids(self, *numbers: int) -> Tensor:
        return self.shifted(np.array(numbers, np.int32), DType.I32)


def _case(name: str) -> Callable[[Case], Case]:
    def register(case: Case) -> Case:
        CASES[name] = case
        return case

    return register


@_case(PLAIN)
def _plain(b: Bench) -> Tensor:
    return b.leaf(b.numbers(ROW, ROWS)).mulmat(b.ctx, b.leaf(b.numbers(ROW, 3)))


# -- misplaced views -------------------------------------------------------------------------------------


@_case("CONT")
def _cont(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).contiguous(b.ctx)


def _copies(dtype: DType) -> None:
    @_case(f"CONT {dtype}")
    def cont(b: Bench) -> Tensor:
        data = np.arange(ROW * ROWS, dtype=np.int32).reshape(ROWS, ROW)
        made = b.shifted(data, dtype) if dtype.is_integer else b.floats(ROW, ROWS, dtype=dtype)
        return made.contiguous(b.ctx)


for _dtype in COPIED:
    _copies(_dtype)


@_case("CPY")
def _narrowed(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).cast(b.ctx, DType.F16)


@_case("CPY f16")
def _widened(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS, dtype=DType.F16).cast(b.ctx, DType.F32)


@_case("into CPY")
def _into_copy(b: Bench) -> Tensor:
    return b.leaf(b.numbers(ROW, ROWS)).copy(b.ctx, b.floats(ROW, ROWS))


@_case("into SET_ROWS")
def _into_rows(b: Bench) -> Tensor:
    return _set_in(b, DType.F32)


def _set_in(b: Bench, dtype: DType) -> Tensor:
    ids = b.leaf(np.array([4, 1], np.int32), DType.I32)
    return b.floats(ROW, ROWS, dtype=dtype).set_rows(b.ctx, b.leaf(b.numbers(ROW, 2)), ids)


def _moves(dtype: DType) -> None:
    """Copies between tensors of a dtype other than f32, and rows of floats into one."""

    def whole(b: Bench) -> Tensor:
        data = np.arange(ROW * ROWS, dtype=np.int32).reshape(ROWS, ROW)
        return b.leaf(data if dtype.is_integer else b.numbers(ROW, ROWS), dtype)

    def shifted(b: Bench) -> Tensor:
        data = np.zeros((ROWS, ROW), np.int32)
        return b.shifted(data, dtype) if dtype.is_integer else b.floats(ROW, ROWS, dtype=dtype)

    if f"CPY {dtype}" not in CASES:

        @_case(f"CPY {dtype}")
        def copied(b: Bench) -> Tensor:
            return shifted(b).copy(b.ctx, whole(b))

    @_case(f"into CPY {dtype}")
    def into_copy(b: Bench) -> Tensor:
        return whole(b).copy(b.ctx, shifted(b))

    if not dtype.is_integer:

        @_case(f"into SET_ROWS {dtype}")
        def into_rows(b: Bench) -> Tensor:
            return _set_in(b, dtype)


for _dtype in COPIED:
    _moves(_dtype)


@_case("SET_ROWS")
def _set_rows(b: Bench) -> Tensor:
    ids = b.leaf(np.array([4, 1], np.int32), DType.I32)
    return b.leaf(b.numbers(ROW, ROWS)).set_rows(b.ctx, b.floats(ROW, 2), ids).contiguous(b.ctx)


@_case("SET_ROWS i32")
def _set_rows_by_ids(b: Bench) -> Tensor:
    return (
        b.leaf(b.numbers(ROW, ROWS)).set_rows(b.ctx, b.leaf(b.numbers(ROW, 2)), b.ids(4, 1)).contiguous(b.ctx)
    )


@_case("GET_ROWS")
def _rows(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).rows(b.ctx, b.leaf(np.array([7, 3, 0], np.int32), DType.I32))


@_case("GET_ROWS i32")
def _rows_by_ids(b: Bench) -> Tensor:
    return b.leaf(b.numbers(ROW, ROWS)).rows(b.ctx, b.ids(7, 3, 0))


@_case("ADD_ID")
def _add_id(b: Bench) -> Tensor:
    ids = b.leaf(np.array([[0, 2], [1, 0], [2, 1]], np.int32), DType.I32)
    return b.floats(ROW, 2, 3).add_id(b.ctx, b.floats(ROW, 3), ids)


@_case("ADD_ID i32")
def _add_id_by_ids(b: Bench) -> Tensor:
    ids = b.shifted(np.array([[0, 2], [1, 0], [2, 1]], np.int32), DType.I32)
    return b.leaf(b.numbers(ROW, 2, 3)).add_id(b.ctx, b.leaf(b.numbers(ROW, 3)), ids)


@_case("ROPE")
def _rope(b: Bench) -> Tensor:
    positions = b.leaf(np.array([9, 5, 30], np.int32), DType.I32)
    factors = b.shifted(np.linspace(1, 8, ROW // 2, dtype=np.float32))
    return b.floats(ROW, 2, 3).rope(b.ctx, positions, dim=ROW, base=10000.0, factors=factors)


@_case("ROPE i32")
def _rope_by_positions(b: Bench) -> Tensor:
    return b.leaf(b.numbers(ROW, 2, 3)).rope(b.ctx, b.ids(9, 5, 30), dim=ROW, base=10000.0)


@_case("ADD")
def _add(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).add(b.ctx, b.floats(ROW, ROWS))


@_case("MUL")
def _mul(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).mul(b.ctx, b.floats(ROW))


@_case("SCALE")
def _scale(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).scale(b.ctx, 0.5)


@_case("UNARY")
def _unary(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).silu(b.ctx)


@_case("GLU")
def _glu(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).silu(b.ctx, b.floats(ROW, ROWS))


@_case("RMS_NORM")
def _rms_norm(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).rms_norm(b.ctx, None, eps=1e-5)


@_case("SOFT_MAX")
def _softmax(b: Bench) -> Tensor:
    key, value = (b.leaf(b.numbers(ROW, 1, 40)) for _ in range(2))
    attended = b.leaf(b.numbers(ROW, 2, 3)).scaled_dot_product_attention(
        b.ctx, key, value, b.floats(40, 3), scale=0.125, sinks=b.floats(2)
    )
    return b.floats(ROW, ROWS).softmax(b.ctx).concat(b.ctx, attended.reshape(b.ctx, ROW, 6), 1)


@_case("CONCAT")
def _concat(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).concat(b.ctx, b.floats(ROW, 3), 1)


@_case("MUL_MAT")
def _product(b: Bench) -> Tensor:
    weight = b.floats(ROW, ROWS)
    few, many = (weight.mulmat(b.ctx, b.floats(ROW, count)) for count in (1, 17))
    return few.concat(b.ctx, many, 1)


@_case("MUL_MAT f16")
def _product_of_halves(b: Bench) -> Tensor:
    weight = b.floats(ROW, ROWS, dtype=DType.F16)
    few, many = (weight.mulmat(b.ctx, b.leaf(b.numbers(ROW, count))) for count in (1, 17))
    return few.concat(b.ctx, many, 1)


@_case("FLASH_ATTN_EXT")
def _attention(b: Bench) -> Tensor:
    key, value = (b.leaf(b.numbers(ROW, 1, 40), DType.F16) for _ in range(2))
    query, sinks = b.floats(ROW, 2, 3), b.floats(2)
    return query.scaled_dot_product_attention(b.ctx, key, value, None, scale=0.125, sinks=sinks)


@_case("FLASH_ATTN_EXT f16")
def _attention_to_halves(b: Bench) -> Tensor:
    key, value = (b.floats(ROW, 1, 40, dtype=DType.F16) for _ in range(2))
    query, mask = b.leaf(b.numbers(ROW, 2, 3)), b.floats(40, 3, dtype=DType.F16)
    return query.scaled_dot_product_attention(b.ctx, key, value, mask, scale=0.125)


# -- other faults ----------------------------------------------------------------------------------------


@_case(LARGE_MEAN)
def _norm(b: Bench) -> Tensor:
    return b.leaf(np.tile(np.array([10002, 10000], np.float32), 8)[None]).layer_norm(
        b.ctx, None, None, eps=1e-5
    )


@_case(BF16_NAN)
def _nan(b: Bench) -> Tensor:
    return b.leaf(np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)).cast(b.ctx, DType.BF16)


@_case(LARGE_TRIANGLE)
def _triangle(b: Bench) -> Tensor:
    lower = np.tril(b.numbers(96, 96)) / 96 + np.eye(96, dtype=np.float32)
    return b.leaf(lower).solve_tri(b.ctx, b.leaf(b.numbers(3, 96)))


@_case(LONG_COPIES)
def _long(b: Bench) -> Tensor:
    repeated = b.leaf(np.arange(6), DType.I64).repeat_4d(b.ctx, 6, 4).contiguous(b.ctx)
    return repeated.permute(b.ctx, 1, 0).contiguous(b.ctx)


@_case(SMALL_TANH)
def _small_tanh(b: Bench) -> Tensor:
    return b.leaf(b.numbers(ROW) * np.float32(1e-6)).tanh(b.ctx).scale(b.ctx, 1e6)


@_case(NORMS_OF_MANY_ROWS)
def _norms_of_many_rows(b: Bench) -> Tensor:
    return b.leaf(b.numbers(4, MOST_ROWS + 1)).rms_norm(b.ctx, None, eps=1e-5)


@_case(QUERIES_BETWEEN_VECTORS)
def _queries_between_vectors(b: Bench) -> Tensor:
    step = ROW + 2  # numbers from one query to the next
    query = b.leaf(b.numbers(step, 6)).view(b.ctx, 0, (ROW, 2, 3), (4 * step, 8 * step))
    key, value = (b.leaf(b.numbers(ROW, 1, 40), DType.F16) for _ in range(2))
    return query.scaled_dot_product_attention(b.ctx, key, value, None, scale=0.125)


@_case(PRODUCT_NAN)
def _product_of_nan(b: Bench) -> Tensor:
    columns = b.numbers(ROW, 48)
    columns[::3, 5] = np.nan
    return b.leaf(b.numbers(ROW, ROWS), DType.F16).mulmat(b.ctx, b.leaf(columns))


@_case(REPEATED_IDS)
def _repeated_ids(b: Bench) -> Tensor:
    ids = b.leaf(np.ones((12, 3), np.int32), DType.I32)
    return b.leaf(b.numbers(ROW, 4, 2)).mulmat_id(b.ctx, b.leaf(b.numbers(ROW, 1, 12)), ids)


@_case(SLICES_APART)
def _slices_apart(b: Bench) -> Tensor:
    def apart(columns: int) -> Tensor:
        return b.leaf(b.numbers(ROW, columns + 2, 3)).slice(b.ctx, 1, 0, columns)

    few, many = (apart(5).mulmat(b.ctx, apart(columns)) for columns in (1, 17))
    return few.concat(b.ctx, many, 1)


@_case(LONG_INTEGER_ROWS)
def _long_integer_rows(b: Bench) -> Tensor:
    held = b.leaf(np.arange(3 * 2000).reshape(3, 2000), DType.I32)
    return held.rows(b.ctx, b.leaf(np.array([2, 0]), DType.I32))


@_case(LONG_VOLUMES)
def _long_volumes(b: Bench) -> Tensor:
    return b.leaf(b.numbers(3, 1, 1, 1)).conv3d(b.ctx, b.leaf(b.numbers(MOST_ROWS + 1, 1, 1, 1)), c=1, p0=1)


@_case(STEP_OF_ZERO)
def _step(b: Bench) -> Tensor:
    return b.leaf(np.array([0.0, -0.0, 1.0, -1.0], np.float32)).cast(b.ctx, DType.I64)  # made by steps


@_case(MANY_SLICES)
def _many_slices(b: Bench) -> Tensor:
    padded = b.leaf(b.numbers(1, 1, MOST_ROWS + 1)).pad_ext(b.ctx, 0, 1, 0, 0, 0, 0, 0, 0)
    return padded.softmax(b.ctx).rms_norm(b.ctx, None, eps=1e-5)


@_case(COLUMN_COPIES)
def _copies_into_columns(b: Bench) -> Tensor:
    column = b.leaf(b.numbers(4, ROWS)).slice(b.ctx, 0, 1, 2)
    return b.leaf(b.numbers(1, ROWS)).copy(b.ctx, column).contiguous(b.ctx)


@_case(RUNNING_SUMS)
def _running_sums(b: Bench) -> Tensor:
    data = b.numbers(ROW)
    data[[3, 40]] = 1e30, np.inf
    return b.leaf(data).cumsum(b.ctx)


@_case(IDS_APART)
def _rows_by_ids_apart(b: Bench) -> Tensor:
    ids = b.leaf(np.array([[7, 1], [3, 1], [0, 1]], np.int32), DType.I32).slice(b.ctx, 0, 0, 1)
    return b.leaf(b.numbers(ROW, ROWS)).rows(b.ctx, ids.permute(b.ctx, 1, 0))


@_case(BLOCKS_APART)
def _copies_of_blocks_apart(b: Bench) -> Tensor:
    return b.leaf(b.numbers(ROW, ROWS), DType.Q4_0).slice(b.ctx, 0, 0, ROW // 2).contiguous(b.ctx)


@_case(ROWS_BETWEEN_VECTORS)
def _products_of_rows_between_vectors(b: Bench) -> Tensor:
    apart = b.leaf(b.numbers(41, 2, 2), DType.BF16).slice(b.ctx, 0, 0, 8).permute(b.ctx, 0, 2, 1)
    return apart.mulmat(b.ctx, b.leaf(b.numbers(8, 65, 6)))


@_case(CAPPED_SHORT_HEADS)
def _capped_attention(b: Bench) -> Tensor:
    key, value = (b.leaf(b.numbers(ROW, 1, 40), DType.F16) for _ in range(2))
    query = b.leaf(b.numbers(ROW, 2, 3))
    return query.scaled_dot_product_attention(b.ctx, key, value, None, scale=0.125, softcap=30.0)


@_case(DELTA_OF_LONG_HEADS)
def _delta_rule(b: Bench) -> Tensor:
    query, key, value = (b.leaf(b.numbers(LONG_HEAD, 1, 2, 1)) for _ in range(3))
    decay, share = (b.leaf(-np.abs(b.numbers(1, 1, 2, 1))) for _ in range(2))
    state = b.leaf(np.zeros((1, 1, LONG_HEAD, LONG_HEAD), np.float32))
    return state.delta_rule(b.ctx, query, key, value, decay, share)
