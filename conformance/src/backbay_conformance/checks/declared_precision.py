"""The precision that a backend declares for a call: its kernel's, or the coarsest of its composite's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backbay import Backend, DType, Op, Precision, Spec
from backbay.internals import composite_kernels

from ..numbers.rounding import BLOCK_STEP, SIGNIFICAND, unit


def declared_precision(
    backend: Backend, op: Op[Any, Any], args: Sequence[Any], *, composed: bool
) -> Precision:
    """The precision of an op on complete, prepared arguments; for a composite, the coarsest of its kernels."""
    own = precision_of(backend, op, [args[i] for i in op.operands])
    if not composed or op.composite is None:
        return own
    kernels = composite_kernels(op, args, backend.supports)
    return coarsest([own, *[precision_of(backend, part, specs) for part, specs in kernels]])


def precision_of(backend: Backend, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
    """The precision of an op where the params place it, on the CPU or on GPUs; without placement, the backend's own."""
    placed = backend.params.gpu_layers
    if placed is None:
        return backend.precision(op, specs)
    used = [backend.ledger.devices[0][0], *(gpu.id for gpu in placed)]
    return coarsest([backend.precision_on(device, op, specs) for device in used])


def coarsest(precisions: Sequence[Precision]) -> Precision:
    """The coarsest of several precisions."""
    activation = max((p.activation for p in precisions), key=_coarseness)
    flushes = any(p.flushes_subnormals for p in precisions)
    accumulate, weight = (
        max((getattr(p, name) for p in precisions), key=unit) for name in ("accumulate", "weight")
    )
    return Precision(activation, accumulate, flushes, weight)


def told(precision: Precision) -> str:
    """A precision in reports: the types of activations and of sums, that of weights if it is not f32, and whether subnormal
    operands are flushed.
    """
    weights = "" if precision.weight is DType.F32 else f" (weights {precision.weight})"
    flushed = " (subnormals as zeros)" if precision.flushes_subnormals else ""
    return f"{precision.activation}/{precision.accumulate}{weights}{flushed}"


def _coarseness(dtype: DType) -> float:
    return unit(dtype) if dtype in SIGNIFICAND else BLOCK_STEP.get(dtype, 1.0)
