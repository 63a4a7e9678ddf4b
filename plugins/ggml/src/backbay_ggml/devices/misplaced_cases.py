"""Cases of a device's trial: views that begin between a device's places for tensors, by the op that reads or writes them."""

from __future__ import annotations

import numpy as np

from backbay import DType, Tensor

from .trial_bench import CASES, ROW, ROWS, Bench, case_of

COPIED = (DType.F16, DType.BF16, DType.I32, DType.Q4_0, DType.Q4_1, DType.Q5_0, DType.Q5_1, DType.Q8_0)


@case_of("CONT")
def _cont(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).contiguous(b.ctx)


def _copies(dtype: DType) -> None:
    @case_of(f"CONT {dtype}")
    def cont(b: Bench) -> Tensor:
        data = np.arange(ROW * ROWS, dtype=np.int32).reshape(ROWS, ROW)
        made = b.shifted(data, dtype) if dtype.is_integer else b.floats(ROW, ROWS, dtype=dtype)
        return made.contiguous(b.ctx)


for _dtype in COPIED:
    _copies(_dtype)


@case_of("CPY")
def _narrowed(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).cast(b.ctx, DType.F16)


@case_of("CPY f16")
def _widened(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS, dtype=DType.F16).cast(b.ctx, DType.F32)


@case_of("into CPY")
def _into_copy(b: Bench) -> Tensor:
    return b.leaf(b.numbers(ROW, ROWS)).copy(b.ctx, b.floats(ROW, ROWS))


@case_of("into SET_ROWS")
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

        @case_of(f"CPY {dtype}")
        def copied(b: Bench) -> Tensor:
            return shifted(b).copy(b.ctx, whole(b))

    @case_of(f"into CPY {dtype}")
    def into_copy(b: Bench) -> Tensor:
        return whole(b).copy(b.ctx, shifted(b))

    if not dtype.is_integer:

        @case_of(f"into SET_ROWS {dtype}")
        def into_rows(b: Bench) -> Tensor:
            return _set_in(b, dtype)


for _dtype in COPIED:
    _moves(_dtype)


@case_of("SET_ROWS")
def _set_rows(b: Bench) -> Tensor:
    ids = b.leaf(np.array([4, 1], np.int32), DType.I32)
    return b.leaf(b.numbers(ROW, ROWS)).set_rows(b.ctx, b.floats(ROW, 2), ids).contiguous(b.ctx)


@case_of("SET_ROWS i32")
def _set_rows_by_ids(b: Bench) -> Tensor:
    return (
        b.leaf(b.numbers(ROW, ROWS)).set_rows(b.ctx, b.leaf(b.numbers(ROW, 2)), b.ids(4, 1)).contiguous(b.ctx)
    )


@case_of("GET_ROWS")
def _rows(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).rows(b.ctx, b.leaf(np.array([7, 3, 0], np.int32), DType.I32))


@case_of("GET_ROWS i32")
def _rows_by_ids(b: Bench) -> Tensor:
    return b.leaf(b.numbers(ROW, ROWS)).rows(b.ctx, b.ids(7, 3, 0))


@case_of("ADD_ID")
def _add_id(b: Bench) -> Tensor:
    ids = b.leaf(np.array([[0, 2], [1, 0], [2, 1]], np.int32), DType.I32)
    return b.floats(ROW, 2, 3).add_id(b.ctx, b.floats(ROW, 3), ids)


@case_of("ADD_ID i32")
def _add_id_by_ids(b: Bench) -> Tensor:
    ids = b.shifted(np.array([[0, 2], [1, 0], [2, 1]], np.int32), DType.I32)
    return b.leaf(b.numbers(ROW, 2, 3)).add_id(b.ctx, b.leaf(b.numbers(ROW, 3)), ids)


@case_of("ROPE")
def _rope(b: Bench) -> Tensor:
    positions = b.leaf(np.array([9, 5, 30], np.int32), DType.I32)
    factors = b.shifted(np.linspace(1, 8, ROW // 2, dtype=np.float32))
    return b.floats(ROW, 2, 3).rope(b.ctx, positions, dim=ROW, base=10000.0, factors=factors)


@case_of("ROPE i32")
def _rope_by_positions(b: Bench) -> Tensor:
    return b.leaf(b.numbers(ROW, 2, 3)).rope(b.ctx, b.ids(9, 5, 30), dim=ROW, base=10000.0)


@case_of("ADD")
def _add(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).add(b.ctx, b.floats(ROW, ROWS))


@case_of("MUL")
def _mul(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).mul(b.ctx, b.floats(ROW))


@case_of("SCALE")
def _scale(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).scale(b.ctx, 0.5)


@case_of("UNARY")
def _unary(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).silu(b.ctx)


@case_of("GLU")
def _glu(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).silu(b.ctx, b.floats(ROW, ROWS))


@case_of("RMS_NORM")
def _rms_norm(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).rms_norm(b.ctx, None, eps=1e-5)


@case_of("SOFT_MAX")
def _softmax(b: Bench) -> Tensor:
    key, value = (b.leaf(b.numbers(ROW, 1, 40)) for _ in range(2))
    attended = b.leaf(b.numbers(ROW, 2, 3)).scaled_dot_product_attention(
        b.ctx, key, value, b.floats(40, 3), scale=0.125, sinks=b.floats(2)
    )
    return b.floats(ROW, ROWS).softmax(b.ctx).concat(b.ctx, attended.reshape(b.ctx, ROW, 6), 1)


@case_of("CONCAT")
def _concat(b: Bench) -> Tensor:
    return b.floats(ROW, ROWS).concat(b.ctx, b.floats(ROW, 3), 1)


@case_of("MUL_MAT")
def _product(b: Bench) -> Tensor:
    weight = b.floats(ROW, ROWS)
    few, many = (weight.mulmat(b.ctx, b.floats(ROW, count)) for count in (1, 17))
    return few.concat(b.ctx, many, 1)


@case_of("MUL_MAT f16")
def _product_of_halves(b: Bench) -> Tensor:
    weight = b.floats(ROW, ROWS, dtype=DType.F16)
    few, many = (weight.mulmat(b.ctx, b.leaf(b.numbers(ROW, count))) for count in (1, 17))
    return few.concat(b.ctx, many, 1)


@case_of("FLASH_ATTN_EXT")
def _attention(b: Bench) -> Tensor:
    key, value = (b.leaf(b.numbers(ROW, 1, 40), DType.F16) for _ in range(2))
    query, sinks = b.floats(ROW, 2, 3), b.floats(2)
    return query.scaled_dot_product_attention(b.ctx, key, value, None, scale=0.125, sinks=sinks)


@case_of("FLASH_ATTN_EXT f16")
def _attention_to_halves(b: Bench) -> Tensor:
    key, value = (b.floats(ROW, 1, 40, dtype=DType.F16) for _ in range(2))
    query, mask = b.leaf(b.numbers(ROW, 2, 3)), b.floats(40, 3, dtype=DType.F16)
    return query.scaled_dot_product_attention(b.ctx, key, value, mask, scale=0.125)
