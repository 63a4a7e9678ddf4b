"""What a backend declares of a call: of its kernel, or of all the ops that its composite is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from backbay import Backend, Context, DType, Level, Op, Precision, Spec, Tensor

from ..numbers.rounding import BLOCK_STEP, SIGNIFICAND, unit


def declared(
    backend: Backend, ctx: Context, op: Op[Any, Any], args: tuple[Any, ...], *, composed: bool
) -> Precision:
    """The precision of an op on tensors; where it is composed, the coarsest of its parts."""
    own = backend.precision(op, _specs(op, args))
    if not composed or op.composite is None:
        return own
    parts = [backend.precision(part, specs) for part, specs in parts_of(backend, ctx, op, args)]
    return coarsest([own, *parts])


def coarsest(precisions: Sequence[Precision]) -> Precision:
    """A precision that all of them keep."""
    activation = max((p.activation for p in precisions), key=_coarseness)
    return Precision(activation, max((p.accumulate for p in precisions), key=unit))


def parts_of(
    backend: Backend, ctx: Context, op: Op[Any, Any], args: tuple[Any, ...]
) -> Iterator[tuple[Op[Any, Any], list[Spec | None]]]:
    """The kernels that a composite comes down to, with what they are given."""
    assert op.composite is not None
    made = op.composite(ctx, *(op.prepared(ctx, args) if op.prepared else args))
    given = set(op.flat_operands(args))
    stack: list[Tensor] = list(made) if isinstance(made, list) else [made]
    seen: set[Tensor] = set()
    while stack:
        tensor = stack.pop()
        if tensor in given or tensor in seen or tensor.op is None:
            continue
        seen.add(tensor)
        stack.extend(tensor.op.flat_operands(tensor.args))
        specs = _specs(tensor.op, tensor.args)
        if not tensor.op.view and backend.supports(tensor.op, specs).level is Level.COMPOSITE:
            yield from parts_of(backend, ctx, tensor.op, tensor.args)
        else:
            yield tensor.op, specs


def runs(ctx: Context, op: Op[Any, Any], *operands: Spec) -> bool:
    """Whether a backend runs an op that a call needs beside its own: to lay out operands, or to read results."""
    return ctx.backend.supports(op, operands).level is not Level.NONE


def _specs(op: Op[Any, Any], args: tuple[Any, ...]) -> list[Spec | None]:
    return [args[i] for i in op.operands]


def _coarseness(dtype: DType) -> float:
    return unit(dtype) if dtype in SIGNIFICAND else BLOCK_STEP.get(dtype, 1.0)
