"""Softmax and the norms over dimension 0, the last axis, in float32."""

from __future__ import annotations

import numpy as np

from backbay import ops

from ..lowering.kernel_view import Lowering, Operand
from ..memory.working_memory import nothing, receivers, results
from .kernel_table import kernel
from .reduce import last_axis, mean_of, original_rank, subtract_mean, sum_of


def _affine(b: Lowering, y: str, weight: Operand | None, bias: Operand | None) -> str:
    y = y if weight is None else b.add("Mul", y, weight.of_rank(1))
    return y if bias is None else b.add("Add", y, bias.of_rank(1))


def _scale(b: Lowering, x: Operand, weight: Operand | None) -> str:
    """The weight of a norm, which its node must have."""
    return weight.of_rank(1) if weight is not None else b.filled(np.array(1, np.float32), [x.dim(0)])


@kernel(ops.softmax, working_memory=nothing)
def softmax(b: Lowering, x: Operand) -> str:
    if x.is_empty():  # WebGPU refuses no rows, and rows of nothing end the process
        return x.floats
    if b.settings.plain:
        peak = b.add("ReduceMax", last_axis(x), b.ints(-1), keepdims=1)
        powers = b.add("Exp", b.add("Sub", last_axis(x), peak))
        return original_rank(b, b.add("Div", powers, sum_of(b, powers, x)), x)
    return original_rank(b, b.add("Softmax", last_axis(x), axis=-1), x)


@kernel(ops.layer_norm, working_memory=results)
def layer_norm(
    b: Lowering, x: Operand, weight: Operand | None = None, bias: Operand | None = None, eps: float = 1e-5
) -> str:
    if b.settings.foreign and not x.is_empty():
        affine = [_scale(b, x, weight), *([bias.of_rank(1)] if bias is not None else [])]
        y = b.add("LayerNormalization", last_axis(x), *affine, axis=-1, epsilon=eps)
        return original_rank(b, y, x)
    y = subtract_mean(b, x)  # ONNX Runtime's own kernel subtracts squares of sums, which loses digits
    variance = mean_of(b, b.add("Mul", y, y), x)
    y = b.add("Div", y, b.add("Sqrt", b.add("Add", variance, b.number(eps))))
    return original_rank(b, _affine(b, y, weight, bias), x)


@kernel(ops.rms_norm, working_memory=nothing)
def rms_norm(b: Lowering, x: Operand, weight: Operand | None = None, eps: float = 1e-5) -> str:
    if b.settings.plain:
        mean = mean_of(b, b.add("Mul", last_axis(x), last_axis(x)), x)
        root = b.add("Sqrt", b.add("Add", mean, b.number(eps)))
        return original_rank(b, _affine(b, b.add("Div", last_axis(x), root), weight, None), x)
    return original_rank(
        b, b.add("RMSNormalization", last_axis(x), _scale(b, x, weight), axis=-1, epsilon=eps), x
    )


@kernel(ops.l2_norm, working_memory=receivers)
def l2_norm(b: Lowering, x: Operand, eps: float = 1e-12) -> str:
    root = b.add("Sqrt", sum_of(b, b.add("Mul", last_axis(x), last_axis(x)), x))
    return original_rank(b, b.add("Div", last_axis(x), b.add("Max", root, b.number(eps))), x)
