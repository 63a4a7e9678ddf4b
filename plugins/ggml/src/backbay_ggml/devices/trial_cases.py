"""Cases of a device's trial: each traces a small graph whose leaves lie on a device; its result is compared with the CPU's.

The cases of this module are views that begin between a device's places for tensors, by the op that reads or writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np

from backbay import Context, DType, Tensor
from backbay.internals import Array, Bytes

Case = Callable[["Bench"], Tensor]
CASES: dict[str, Case] = {}
"""By what is tried: views that begin between a device's places for tensors, by the ggml op that reads or writes them,
with the view's dtype unless it is f32 (`GET_ROWS`, `GET_ROWS i32`, `into CPY`), and other faults, in words."""
PLAIN = "a product"  # of which a device must be capable
ROW, ROWS = 64, 12
COPIED = (DType.F16, DType.BF16, DType.I32, DType.Q4_0, DType.Q4_1, DType.Q5_0, DType.Q5_1, DType.Q8_0)


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


def case_of(name: str) -> Callable[[Case], Case]:
    def register(case: Case) -> Case:
        CASES[name] = case
        return case

    return register


@case_of(PLAIN)
def _plain(b: Bench) -> Tensor:
    return b.leaf(b.numbers(ROW, ROWS)).mulmat(b.ctx, b.leaf(b.numbers(ROW, 3)))


def _add_call(name: str, op: Callable[..., Tensor], *shapes: tuple[int, ...], **attributes: object) -> None:
    """An op of operands of these shapes."""

    @case_of(name)
    def case(b: Bench) -> Tensor:
        first, *others = [b.floats(*shape) for shape in shapes]
        return op(first, b.ctx, *others, **attributes)


_add_call("CONT", Tensor.contiguous, (ROW, ROWS))
_add_call("ADD", Tensor.add, (ROW, ROWS), (ROW, ROWS))
_add_call("MUL", Tensor.mul, (ROW, ROWS), (ROW,))
_add_call("SCALE", Tensor.scale, (ROW, ROWS), s=0.5)
_add_call("UNARY", Tensor.silu, (ROW, ROWS))
_add_call("GLU", Tensor.silu, (ROW, ROWS), (ROW, ROWS))
_add_call("RMS_NORM", Tensor.rms_norm, (ROW, ROWS), weight=None, eps=1e-5)
_add_call("CONCAT", Tensor.concat, (ROW, ROWS), (ROW, 3), dim=1)


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


def _add_copies(dtype: DType) -> None:
    """Copies of and between tensors of a dtype other than f32, and rows of floats into one."""

    def whole(b: Bench) -> Tensor:
        data = np.arange(ROW * ROWS, dtype=np.int32).reshape(ROWS, ROW)
        return b.leaf(data if dtype.is_integer else b.numbers(ROW, ROWS), dtype)

    def shifted(b: Bench) -> Tensor:
        data = np.arange(ROW * ROWS, dtype=np.int32).reshape(ROWS, ROW)
        return b.shifted(data, dtype) if dtype.is_integer else b.floats(ROW, ROWS, dtype=dtype)

    @case_of(f"CONT {dtype}")
    def cont(b: Bench) -> Tensor:
        return shifted(b).contiguous(b.ctx)

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
    _add_copies(_dtype)


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


@case_of("SOFT_MAX")
def _softmax(b: Bench) -> Tensor:
    key, value = (b.leaf(b.numbers(ROW, 1, 40)) for _ in range(2))
    attended = b.leaf(b.numbers(ROW, 2, 3)).scaled_dot_product_attention(
        b.ctx, key, value, b.floats(40, 3), scale=0.125, sinks=b.floats(2)
    )
    return b.floats(ROW, ROWS).softmax(b.ctx).concat(b.ctx, attended.reshape(b.ctx, ROW, 6), 1)


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
