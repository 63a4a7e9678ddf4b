"""Cases of a device's trial: each traces a small graph whose leaves lie on a device; its result is compared with the CPU's.

The cases of this module are views that begin between a device's places for tensors, by the op that reads or writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

import numpy as np

from backbay import Context, DType, Tensor
from backbay.internals import Array, Bytes

Case = Callable[["TrialLeafMaker"], Tensor]
CASES: dict[str, Case] = {}
"""By what is tried: views that begin between a device's places for tensors, by the ggml op that reads or writes them,
with the view's dtype unless it is f32 (`GET_ROWS`, `GET_ROWS i32`, `into CPY`), and other faults, in words."""
PLAIN = "a product"  # of which a device must be capable
ROW, ROWS = 64, 12
COPIED = (
    DType.F32,
    DType.F16,
    DType.BF16,
    DType.I32,
    DType.Q4_0,
    DType.Q4_1,
    DType.Q5_0,
    DType.Q5_1,
    DType.Q8_0,
)


@final
class TrialLeafMaker:
    """Makes the leaves of a case on the device that is tried."""

    def __init__(self, ctx: Context, quantized: Callable[[Array, DType], Bytes]) -> None:
        self.ctx, self._quantized = ctx, quantized
        self.moved: DType | None = None  # operands of this dtype begin between places
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

    def operand(self, data: Array, dtype: DType = DType.F32) -> Tensor:
        return self.shifted(data, dtype) if dtype is self.moved else self.leaf(data, dtype)

    def floats(self, *shape: int, dtype: DType = DType.F32) -> Tensor:
        return self.operand(self.numbers(*shape), dtype)

    def ids(self, *numbers: int) -> Tensor:
        return self.operand(np.array(numbers, np.int32), DType.I32)


def trial_case(name: str) -> Callable[[Case], Case]:
    def register(case: Case) -> Case:
        CASES[name] = case
        return case

    return register


def add_view_cases(name: str, *dtypes: DType) -> Callable[[Case], Case]:
    """Declare a case for each dtype whose operands are views that begin between a device's places for tensors."""

    def register(case: Case) -> Case:
        for dtype in dtypes:
            CASES[_named(name, dtype)] = partial(_with_views, case, dtype)
        return case

    return register


def _named(name: str, dtype: DType) -> str:
    return name if dtype is DType.F32 else f"{name} {dtype}"


def _with_views(case: Case, dtype: DType, b: TrialLeafMaker) -> Tensor:
    b.moved = dtype
    return case(b)


@trial_case(PLAIN)
def _plain(b: TrialLeafMaker) -> Tensor:
    return b.leaf(b.numbers(ROW, ROWS)).mulmat(b.ctx, b.leaf(b.numbers(ROW, 3)))


def _add_call(name: str, op: Callable[..., Tensor], *shapes: tuple[int, ...], **attributes: object) -> None:
    """An op of operands of these shapes."""

    @add_view_cases(name, DType.F32)
    def case(b: TrialLeafMaker) -> Tensor:
        first, *others = [b.floats(*shape) for shape in shapes]
        return op(first, b.ctx, *others, **attributes)


_add_call("ADD", Tensor.add, (ROW, ROWS), (ROW, ROWS))
_add_call("MUL", Tensor.mul, (ROW, ROWS), (ROW,))
_add_call("SCALE", Tensor.scale, (ROW, ROWS), s=0.5)
_add_call("UNARY", Tensor.silu, (ROW, ROWS))
_add_call("GLU", Tensor.silu, (ROW, ROWS), (ROW, ROWS))
_add_call("RMS_NORM", Tensor.rms_norm, (ROW, ROWS), weight=None, eps=1e-5)
_add_call("CONCAT", Tensor.concat, (ROW, ROWS), (ROW, 3), dim=1)


@add_view_cases("CPY", DType.F32)
def _narrowed(b: TrialLeafMaker) -> Tensor:
    return b.floats(ROW, ROWS).cast(b.ctx, DType.F16)


@add_view_cases("CPY", DType.F16)
def _widened(b: TrialLeafMaker) -> Tensor:
    return b.floats(ROW, ROWS, dtype=DType.F16).cast(b.ctx, DType.F32)


def _add_copies(dtype: DType) -> None:
    """Copies of and between tensors of a dtype, and rows of floats into one."""

    def data(b: TrialLeafMaker) -> Array:
        return (
            np.arange(ROW * ROWS, dtype=np.int32).reshape(ROWS, ROW)
            if dtype.is_integer
            else b.numbers(ROW, ROWS)
        )

    @trial_case(_named("CONT", dtype))
    def cont(b: TrialLeafMaker) -> Tensor:
        return b.shifted(data(b), dtype).contiguous(b.ctx)

    if _named("CPY", dtype) not in CASES:

        @trial_case(_named("CPY", dtype))
        def copied(b: TrialLeafMaker) -> Tensor:
            return b.shifted(data(b), dtype).copy(b.ctx, b.leaf(data(b), dtype))

    @trial_case(_named("into CPY", dtype))
    def into_copy(b: TrialLeafMaker) -> Tensor:
        return b.leaf(data(b), dtype).copy(b.ctx, b.shifted(data(b), dtype))

    if not dtype.is_integer:

        @trial_case(_named("into SET_ROWS", dtype))
        def into_rows(b: TrialLeafMaker) -> Tensor:
            return b.shifted(data(b), dtype).set_rows(b.ctx, b.floats(ROW, 2), b.ids(4, 1))


for _dtype in COPIED:
    _add_copies(_dtype)


@add_view_cases("SET_ROWS", DType.F32, DType.I32)
def _set_rows(b: TrialLeafMaker) -> Tensor:
    table = b.leaf(b.numbers(ROW, ROWS))
    return table.set_rows(b.ctx, b.floats(ROW, 2), b.ids(4, 1)).contiguous(b.ctx)


@add_view_cases("GET_ROWS", DType.F32, DType.I32)
def _rows(b: TrialLeafMaker) -> Tensor:
    return b.floats(ROW, ROWS).rows(b.ctx, b.ids(7, 3, 0))


@add_view_cases("ADD_ID", DType.F32, DType.I32)
def _add_id(b: TrialLeafMaker) -> Tensor:
    ids = b.operand(np.array([[0, 2], [1, 0], [2, 1]], np.int32), DType.I32)
    return b.floats(ROW, 2, 3).add_id(b.ctx, b.floats(ROW, 3), ids)


@add_view_cases("ROPE", DType.F32, DType.I32)
def _rope(b: TrialLeafMaker) -> Tensor:
    factors = b.operand(np.linspace(1, 8, ROW // 2, dtype=np.float32))
    return b.floats(ROW, 2, 3).rope(b.ctx, b.ids(9, 5, 30), dim=ROW, base=10000.0, factors=factors)


@add_view_cases("MUL_MAT", DType.F32, DType.F16)
def _product(b: TrialLeafMaker) -> Tensor:
    weight = b.floats(ROW, ROWS, dtype=DType.F16 if b.moved is DType.F16 else DType.F32)
    few, many = (weight.mulmat(b.ctx, b.floats(ROW, count)) for count in (1, 17))
    return few.concat(b.ctx, many, 1)


@add_view_cases("FLASH_ATTN_EXT", DType.F32, DType.F16)
def _attention(b: TrialLeafMaker) -> Tensor:
    query, halves = b.floats(ROW, 2, 3), b.moved is DType.F16
    key, value = (b.floats(ROW, 1, 40, dtype=DType.F16) for _ in range(2))
    mask, sinks = (b.floats(40, 3, dtype=DType.F16), None) if halves else (None, b.floats(2))
    return query.scaled_dot_product_attention(b.ctx, key, value, mask, scale=0.125, sinks=sinks)


@add_view_cases("SOFT_MAX", DType.F32)
def _softmax(b: TrialLeafMaker) -> Tensor:
    key, value = (b.leaf(b.numbers(ROW, 1, 40)) for _ in range(2))
    attended = b.leaf(b.numbers(ROW, 2, 3)).scaled_dot_product_attention(
        b.ctx, key, value, b.floats(40, 3), scale=0.125, sinks=b.floats(2)
    )
    return b.floats(ROW, ROWS).softmax(b.ctx).concat(b.ctx, attended.reshape(b.ctx, ROW, 6), 1)
