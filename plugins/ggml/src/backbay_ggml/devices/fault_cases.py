"""Cases of a device's trial: what devices are known to compute wrongly, although ggml says that they compute it."""

from __future__ import annotations

import numpy as np

from backbay import DType, Tensor

from .trial_bench import ROW, ROWS, Bench, case_of

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
LONG_HEAD = 192  # longer than a power of 2, and than 128


@case_of(LARGE_MEAN)
def _norm(b: Bench) -> Tensor:
    return b.leaf(np.tile(np.array([10002, 10000], np.float32), 8)[None]).layer_norm(
        b.ctx, None, None, eps=1e-5
    )


@case_of(BF16_NAN)
def _nan(b: Bench) -> Tensor:
    return b.leaf(np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)).cast(b.ctx, DType.BF16)


@case_of(LARGE_TRIANGLE)
def _triangle(b: Bench) -> Tensor:
    lower = np.tril(b.numbers(96, 96)) / 96 + np.eye(96, dtype=np.float32)
    return b.leaf(lower).solve_tri(b.ctx, b.leaf(b.numbers(3, 96)))


@case_of(LONG_COPIES)
def _long(b: Bench) -> Tensor:
    repeated = b.leaf(np.arange(6), DType.I64).repeat_4d(b.ctx, 6, 4).contiguous(b.ctx)
    return repeated.permute(b.ctx, 1, 0).contiguous(b.ctx)


@case_of(SMALL_TANH)
def _small_tanh(b: Bench) -> Tensor:
    return b.leaf(b.numbers(ROW) * np.float32(1e-6)).tanh(b.ctx).scale(b.ctx, 1e6)


@case_of(NORMS_OF_MANY_ROWS)
def _norms_of_many_rows(b: Bench) -> Tensor:
    return b.leaf(b.numbers(4, MOST_ROWS + 1)).rms_norm(b.ctx, None, eps=1e-5)


@case_of(QUERIES_BETWEEN_VECTORS)
def _queries_between_vectors(b: Bench) -> Tensor:
    step = ROW + 2  # numbers from one query to the next
    query = b.leaf(b.numbers(step, 6)).view(b.ctx, 0, (ROW, 2, 3), (4 * step, 8 * step))
    key, value = (b.leaf(b.numbers(ROW, 1, 40), DType.F16) for _ in range(2))
    return query.scaled_dot_product_attention(b.ctx, key, value, None, scale=0.125)


@case_of(PRODUCT_NAN)
def _product_of_nan(b: Bench) -> Tensor:
    columns = b.numbers(ROW, 48)
    columns[::3, 5] = np.nan
    return b.leaf(b.numbers(ROW, ROWS), DType.F16).mulmat(b.ctx, b.leaf(columns))


@case_of(REPEATED_IDS)
def _repeated_ids(b: Bench) -> Tensor:
    ids = b.leaf(np.ones((12, 3), np.int32), DType.I32)
    return b.leaf(b.numbers(ROW, 4, 2)).mulmat_id(b.ctx, b.leaf(b.numbers(ROW, 1, 12)), ids)


@case_of(SLICES_APART)
def _slices_apart(b: Bench) -> Tensor:
    def apart(columns: int) -> Tensor:
        return b.leaf(b.numbers(ROW, columns + 2, 3)).slice(b.ctx, 1, 0, columns)

    few, many = (apart(5).mulmat(b.ctx, apart(columns)) for columns in (1, 17))
    return few.concat(b.ctx, many, 1)


@case_of(LONG_INTEGER_ROWS)
def _long_integer_rows(b: Bench) -> Tensor:
    held = b.leaf(np.arange(3 * 2000).reshape(3, 2000), DType.I32)
    return held.rows(b.ctx, b.leaf(np.array([2, 0]), DType.I32))


@case_of(LONG_VOLUMES)
def _long_volumes(b: Bench) -> Tensor:
    return b.leaf(b.numbers(3, 1, 1, 1)).conv3d(b.ctx, b.leaf(b.numbers(MOST_ROWS + 1, 1, 1, 1)), c=1, p0=1)


@case_of(STEP_OF_ZERO)
def _step(b: Bench) -> Tensor:
    return b.leaf(np.array([0.0, -0.0, 1.0, -1.0], np.float32)).cast(b.ctx, DType.I64)  # made by steps


@case_of(MANY_SLICES)
def _many_slices(b: Bench) -> Tensor:
    padded = b.leaf(b.numbers(1, 1, MOST_ROWS + 1)).pad_ext(b.ctx, 0, 1, 0, 0, 0, 0, 0, 0)
    return padded.softmax(b.ctx).rms_norm(b.ctx, None, eps=1e-5)


@case_of(COLUMN_COPIES)
def _copies_into_columns(b: Bench) -> Tensor:
    column = b.leaf(b.numbers(4, ROWS)).slice(b.ctx, 0, 1, 2)
    return b.leaf(b.numbers(1, ROWS)).copy(b.ctx, column).contiguous(b.ctx)


@case_of(RUNNING_SUMS)
def _running_sums(b: Bench) -> Tensor:
    data = b.numbers(ROW)
    data[[3, 40]] = 1e30, np.inf
    return b.leaf(data).cumsum(b.ctx)


@case_of(IDS_APART)
def _rows_by_ids_apart(b: Bench) -> Tensor:
    ids = b.leaf(np.array([[7, 1], [3, 1], [0, 1]], np.int32), DType.I32).slice(b.ctx, 0, 0, 1)
    return b.leaf(b.numbers(ROW, ROWS)).rows(b.ctx, ids.permute(b.ctx, 1, 0))


@case_of(BLOCKS_APART)
def _copies_of_blocks_apart(b: Bench) -> Tensor:
    return b.leaf(b.numbers(ROW, ROWS), DType.Q4_0).slice(b.ctx, 0, 0, ROW // 2).contiguous(b.ctx)


@case_of(ROWS_BETWEEN_VECTORS)
def _products_of_rows_between_vectors(b: Bench) -> Tensor:
    apart = b.leaf(b.numbers(41, 2, 2), DType.BF16).slice(b.ctx, 0, 0, 8).permute(b.ctx, 0, 2, 1)
    return apart.mulmat(b.ctx, b.leaf(b.numbers(8, 65, 6)))


@case_of(CAPPED_SHORT_HEADS)
def _capped_attention(b: Bench) -> Tensor:
    key, value = (b.leaf(b.numbers(ROW, 1, 40), DType.F16) for _ in range(2))
    query = b.leaf(b.numbers(ROW, 2, 3))
    return query.scaled_dot_product_attention(b.ctx, key, value, None, scale=0.125, softcap=30.0)


@case_of(DELTA_OF_LONG_HEADS)
def _delta_rule(b: Bench) -> Tensor:
    query, key, value = (b.leaf(b.numbers(LONG_HEAD, 1, 2, 1)) for _ in range(3))
    decay, share = (b.leaf(-np.abs(b.numbers(1, 1, 2, 1))) for _ in range(2))
    state = b.leaf(np.zeros((1, 1, LONG_HEAD, LONG_HEAD), np.float32))
    return state.delta_rule(b.ctx, query, key, value, decay, share)
