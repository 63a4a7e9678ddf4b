"""What the cases of a device's trial are made of.

A case traces a small graph whose leaves lie on a device. Its result is compared with the CPU's.
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
