"""Comparison of a call's results with its case's formula, within the bounds of the declared precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbay import DType, Level, Precision

from ..draw.data import Mode
from ..draw.operand import Operand
from ..numbers.comparison import Fault, compare
from ..numbers.number import Cost, Number
from ..numbers.rounding import FLOOR, LARGEST, Array, accumulate_unit, unit
from ..suite.case import Call
from .evidence import operands_at
from .traced_call import TracedCall


def cost_of(call: Call, level: Level, precision: Precision) -> Cost:
    """The roundoffs of the declared precision; a composite rounds each step to its operands' type."""
    step = accumulate = accumulate_unit(precision)
    if level is Level.COMPOSITE:
        step = max(
            step, *[unit(o.dtype) for o in call.operands() if o.dtype.is_float], unit(precision.accumulate)
        )
    if precision.accumulate is DType.F16:
        return Cost(step, accumulate, precision.activation, LARGEST[DType.F16], FLOOR[DType.F16])
    return Cost(step, accumulate, precision.activation)


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
    if call.verify is not None:
        _verify(call, got[0], check)
        return None
    expected = expect(call, cost)
    if len(got) == 2 * len(expected):
        expected = expected * 2
    if len(got) != len(expected):
        raise Fault(check or "shape", f"expected {len(expected)} results, got {len(got)}")
    free = call.free(*call.mapped(lambda o: o.decoded)) if call.free is not None else None
    exact, worst = call.exact and mode == "exact", None
    for want, have, tensor in zip(expected, got, traced.results, strict=True):
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
            )
        except Fault as fault:
            if fault.place is None:
                raise
            told = fault.message + operands_at(call, fault.place, want.shape)
            raise Fault(fault.check, told, fault.place) from None
        if ratio is not None:
            worst = max(worst or 0.0, ratio)
    return worst


def _verify(call: Call, got: Array, check: str) -> None:
    assert call.verify is not None
    try:
        call.verify(*call.mapped(lambda o: o.decoded), got)
    except AssertionError as error:
        raise Fault(check or "property", str(error)) from None
