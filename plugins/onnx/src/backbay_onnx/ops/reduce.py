"""Reductions over dimension 0, the last axis, in float32."""

from __future__ import annotations

import numpy as np

from backbay import ops

from ..lowering.kernel_view import Lowering, Operand
from ..memory.working_memory import nothing, receivers, times
from .kernel_table import kernel


def last_axis(x: Operand) -> str:
    return x.of_rank(max(x.rank, 1))


def original_rank(b: Lowering, y: str, x: Operand) -> str:
    """Undo `last_axis`."""
    return b.ranked(y, max(x.rank, 1), x.rank)


def sum_of(b: Lowering, x: str, operand: Operand) -> str:
    """The sum of a value of the operand's shape; ONNX Runtime gives the sum of nothing a wrong shape."""
    if operand.is_empty():
        return b.zeros([b.symbols.constant(1), *operand.dims()[1:]])
    return b.add("ReduceSum", x, b.ints(-1), keepdims=1)


def mean_of(b: Lowering, x: str, operand: Operand) -> str:
    """The sum divided by the extent, so that the mean of nothing is NaN."""
    return b.add("Div", sum_of(b, x, operand), b.add("Cast", b.scalar(operand.dim(0)), to=1))


def subtract_mean(b: Lowering, x: Operand) -> str:
    return b.add("Sub", last_axis(x), mean_of(b, last_axis(x), x))


@kernel(ops.sum_rows, working_memory=nothing)
def sum_rows(b: Lowering, x: Operand) -> str:
    return sum_of(b, last_axis(x), x)


@kernel(ops.mean, working_memory=nothing)
def mean(b: Lowering, x: Operand) -> str:
    return mean_of(b, last_axis(x), x)


@kernel(ops.variance, working_memory=times(2, receivers))
def variance(b: Lowering, x: Operand) -> str:
    y = subtract_mean(b, x)
    return mean_of(b, b.add("Mul", y, y), x)


@kernel(ops.stddev, working_memory=times(2, receivers))
def stddev(b: Lowering, x: Operand) -> str:
    return b.add("Sqrt", variance(b, x))


@kernel(ops.cumsum, working_memory=nothing)
def cumsum(b: Lowering, x: Operand) -> str:
    return original_rank(b, b.add("CumSum", last_axis(x), b.constant(np.array(-1, np.int64))), x)
