"""The error of attention over a cache, from the declared precision of its ops."""

from __future__ import annotations

from typing import Any

from backbay import Backend, DType, Level, Op, Precision, Spec, ops

from ..checks.declared_precision import coarsest, precision_of
from ..numbers.number import Cost
from ..numbers.rounding import unit


def attention_cost(backend: Backend, key_type: DType, value_type: DType) -> Cost:
    """The cost of attention's coarsest op."""
    key, value = Spec(key_type, (32, 1, 8)), Spec(value_type, (32, 1, 8))
    query, weights = Spec(DType.F32, (32, 1, 1)), Spec(DType.F32, (8, 1, 1))
    attention = ops.scaled_dot_product_attention
    fused = backend.supports(attention, [query, key, value, None, None, None]).level is Level.KERNEL
    used: list[tuple[Op[Any, Any], list[Spec | None]]] = [
        (ops.mulmat_full_prec, [key, query]),
        (ops.mulmat, [Spec(DType.F32, (8, 32)), weights]),
        (ops.softmax, [weights]),
    ]
    if fused:
        used = [(attention, [query, key, value, None, None, None])]
    return cost_of([precision_of(backend, op, specs) for op, specs in used])


def cost_of(declared: list[Precision]) -> Cost:
    """One cost that covers several precisions; results between ops are rounded to f32."""
    return Cost.of(coarsest(declared), unit(DType.F32))
