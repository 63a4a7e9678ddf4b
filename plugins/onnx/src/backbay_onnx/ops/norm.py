"""Softmax, norms and reductions over dimension 0, the last axis, in float32."""

from __future__ import annotations

import numpy as np

from backbay import ops

from ..lowering.lowering import Lowering
from ..lowering.operand import Operand
from .shape import zeros
from .table import kernel


def _row(x: Operand) -> str:
    """x with a last axis to reduce."""
    return x.of_rank(max(x.rank, 1))


def _back(b: Lowering, y: str, x: Operand) -> str:
    return b.ranked(y, max(x.rank, 1), x.rank)


def _sum(b: Lowering, x: str, operand: Operand) -> str:
    """Over the last axis of values of the operand's shape; ONNX Runtime gives sums of nothing a wrong shape."""
    if operand.is_empty():
        return zeros(b, [b.symbols.constant(1), *operand.dims()[1:]])
    return b.add("ReduceSum", x, b.ints(-1), keepdims=1)


def _mean(b: Lowering, x: str, operand: Operand) -> str:
    """The sum divided by the extent, so that the mean of nothing is NaN."""
    return b.add("Div", _sum(b, x, operand), b.add("Cast", b.scalar(operand.dim(0)), to=1))


def _centred(b: Lowering, x: Operand) -> str:
    return b.add("Sub", _row(x), _mean(b, _row(x), x))


def _affine(b: Lowering, y: str, weight: Operand | None, bias: Operand | None) -> str:
    y = y if weight is None else b.add("Mul", y, weight.of_rank(1))
    return y if bias is None else b.add("Add", y, bias.of_rank(1))


@kernel(ops.softmax)
def softmax(b: Lowering, x: Operand) -> str:
    return _back(b, b.add("Softmax", _row(x), axis=-1), x)


@kernel(ops.layer_norm)
def layer_norm(
    b: Lowering, x: Operand, weight: Operand | None = None, bias: Operand | None = None, eps: float = 1e-5
) -> str:
    centred = _centred(b, x)  # ONNX Runtime's own subtracts squares of sums, which loses digits
    variance = _mean(b, b.add("Mul", centred, centred), x)
    y = b.add("Div", centred, b.add("Sqrt", b.add("Add", variance, b.number(eps))))
    return _back(b, _affine(b, y, weight, bias), x)


@kernel(ops.rms_norm)
def rms_norm(b: Lowering, x: Operand, weight: Operand | None = None, eps: float = 1e-5) -> str:
    scale = weight.of_rank(1) if weight is not None else b.filled(np.array(1, np.float32), [x.dim(0)])
    return _back(b, b.add("RMSNormalization", _row(x), scale, axis=-1, epsilon=eps), x)


@kernel(ops.l2_norm)
def l2_norm(b: Lowering, x: Operand, eps: float = 1e-12) -> str:
    root = b.add("Sqrt", _sum(b, b.add("Mul", _row(x), _row(x)), x))
    return _back(b, b.add("Div", _row(x), b.add("Max", root, b.number(eps))), x)


@kernel(ops.sum_rows)
def sum_rows(b: Lowering, x: Operand) -> str:
    return _sum(b, _row(x), x)


@kernel(ops.mean)
def mean(b: Lowering, x: Operand) -> str:
    return _mean(b, _row(x), x)


@kernel(ops.variance)
def variance(b: Lowering, x: Operand) -> str:
    centred = _centred(b, x)
    return _mean(b, b.add("Mul", centred, centred), x)


@kernel(ops.stddev)
def stddev(b: Lowering, x: Operand) -> str:
    return b.add("Sqrt", variance(b, x))


@kernel(ops.cumsum)
def cumsum(b: Lowering, x: Operand) -> str:
    return _back(b, b.add("CumSum", _row(x), b.constant(np.array(-1, np.int64))), x)
