"""Comparison of a call's results with its case's formula, within the bounds of the declared precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from backbay import DType, Level, Precision, ops

from ..draw.data import Mode
from ..draw.operand import Operand
from ..numbers.comparison import Fault, compare
from ..numbers.encoding import encode
from ..numbers.number import Cost, Number
from ..numbers.rounding import FLOOR, LARGEST, NARROW, Array, round_to, unit
from ..suite.case import Call
from .evidence import operands_at
from .traced_call import TracedCall

NORMAL = 2.0**-126
"""The smallest normal number of f32."""
SHRUNK = 8
"""The most by which sums in f16 may be kept smaller than they are."""


def cost_of(call: Call, level: Level, precision: Precision) -> Cost:
    """The roundoffs of the declared precision; a composite rounds each step to its operands' type."""
    composite = level is Level.COMPOSITE
    steps = [unit(operand.dtype) for operand in call.operands() if composite and operand.dtype.is_float]
    cost = replace(Cost.of(precision, max(steps, default=0.0)), flushes=precision.flushes_subnormals)
    if precision.accumulate is DType.F16:
        return replace(cost, largest=LARGEST[DType.F16], smallest=SHRUNK * FLOOR[DType.F16])
    return cost


def expect(call: Call, cost: Cost) -> list[Any]:
    """The expected results."""
    assert call.formula is not None

    def argument(operand: Operand) -> Any:
        if call.raw or operand.dtype.is_integer:
            return operand.stored
        return Number(operand.decoded, 0.0, cost)

    with np.errstate(all="ignore"):
        expected = call.formula(*call.mapped(argument))
    return list(expected) if isinstance(expected, list) else [expected]


def judge(
    call: Call, traced: TracedCall, got: list[Array], cost: Cost, mode: Mode, check: str = ""
) -> float | None:
    """The largest error / bound, or None if no result has a bound; Fault if a result is wrong."""
    other = flushed(call) if cost.flushes else None
    if call.verify is not None:
        _verify(call, other, got[0], check)
        return None
    expected = expect(call, cost)
    others: list[Any] = [None] * len(expected) if other is None else expect(other, cost)
    if len(got) == 2 * len(expected):
        expected, others = expected * 2, others * 2
    if len(got) != len(expected):
        raise Fault(check or "shape", f"expected {len(expected)} results, got {len(got)}")
    free = left_open(call, other)
    exact, worst = call.exact and mode == "exact" and _stays_exact(call, cost), None
    for want, second, have, tensor in zip(expected, others, got, traced.results, strict=True):
        try:
            ratio = compare(
                want,
                have,
                tensor.dtype,
                exact=exact,
                free=free,
                instead=call.instead,
                signed=call.signed,
                check=check,
                other=second,
            )
        except Fault as fault:
            if fault.place is None:
                raise
            told = fault.message + operands_at(call, fault.place, want.shape)
            raise Fault(fault.check, told, fault.place) from None
        if ratio is not None:
            worst = max(worst or 0.0, ratio)
    return worst


def _stays_exact(call: Call, cost: Cost) -> bool:
    """Whether data that are drawn to be exact give exact sums.

    In f16 they do not if blocks have large codes, and every operand must be exact in the type that weights are rounded to.
    """
    in_codes = cost.activation.is_quantized or any(operand.dtype.is_quantized for operand in call.operands())
    if in_codes and cost.accumulate > NARROW:
        return False
    operands = call.operands() if cost.weight is not DType.F32 else ()
    return all(
        (round_to(each.decoded, cost.weight) == each.decoded).all()
        for each in operands
        if not each.dtype.is_integer
    )


def left_open(call: Call, other: Call | None) -> Array | None:
    """Marks the elements that the documentation leaves open, in one of the readings of the operands."""
    if call.free is None:
        return None
    free = call.free(*call.mapped(lambda o: o.decoded))
    return free if other is None else free | left_open(other, None)


def flushed(call: Call) -> Call | None:
    """The call with zeros in place of operands and float attributes below f32's normal range; None if it is the same.

    Ops that only move elements, and casts, keep them, but for operands that a negation makes.
    """
    keeps, changed = call.op.moves or call.op in (ops.cast, ops.fill), False

    def zeroed(numbers: Array) -> Array:
        nonlocal changed
        small = (numbers != 0) & (np.abs(numbers) < NORMAL)
        changed = changed or bool(small.any())
        return np.where(small, np.copysign(0.0, numbers), numbers)

    def operand(drawn: Operand) -> Operand:
        if not drawn.dtype.is_float or (keeps and not _is_negated(drawn)):
            return drawn
        return drawn.of(encode(zeroed(drawn.decoded), drawn.dtype), drawn.layout)

    args = call.mapped(operand)
    if not keeps:
        args = tuple(float(zeroed(np.asarray(arg))) if isinstance(arg, float) else arg for arg in args)
    return call.with_args(args) if changed else None


def _is_negated(operand: Operand) -> bool:
    """Whether an operand is the result of arithmetic: no other step of a layout computes."""
    return any(step.needs is ops.neg for step in operand.layout.steps)


def _verify(call: Call, other: Call | None, got: Array, check: str) -> None:
    assert call.verify is not None
    try:
        call.verify(*call.mapped(lambda o: o.decoded), got)
    except AssertionError as error:
        if other is not None:
            return _verify(other, None, got, check)
        raise Fault(check or "property", str(error)) from None
