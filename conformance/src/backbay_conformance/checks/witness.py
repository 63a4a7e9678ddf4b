"""The witness: another backend, usually the reference, that computes each judged call beside the backend under test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import backbay
from backbay import Backend, UnsupportedOpError

from ..fault import Fault
from ..numbers.comparison import result_bound, same
from ..numbers.encoding import LARGEST, Array, decode
from ..numbers.number import Cost, Number
from ..suite.case import Call
from .judgement import JudgedCall, cost_of, expect, judge
from .traced_call import TracedCall

REFERENCE, NONE = "cpu_ref", "none"


def witness_name(against: str, backend: str) -> str:
    """The witness of a run of a backend, by default the reference where it is installed; "" if it has none."""
    default = REFERENCE if REFERENCE in backbay.backends() else NONE
    return "" if (name := against or default) in (NONE, backend) else backbay.choose(name).name


@dataclass
class WitnessResult:
    """The results of the witness, and what is wrong with them by the formula; "" if nothing is."""

    results: list[Array]
    cost: Cost
    fault: str = ""


def testimony(witness: Backend, call: Call) -> WitnessResult | None:
    """What the witness computes for a call with its current data; None if it does not run it.

    The data were drawn for another backend: they need not be exact in the precision of the witness, so only bounds
    count, nor within the range of its activations.
    """
    layouts = [operand.layout for operand in call.operands()]
    try:
        with TracedCall(witness, call) as traced:
            own = WitnessResult([], cost_of(call, traced.level, traced.precision))
            largest = LARGEST.get(own.cost.activation, np.inf)
            if any(operand.activated and operand.peak > largest for operand in call.operands()):
                return None
            traced.leave_out_copies()
            traced.write()
            try:
                own.results = traced.run()
                judge(call, traced, own.results, own.cost, "wide")
            except UnsupportedOpError:
                raise
            except Exception as error:  # noqa: BLE001 it is no fault of the backend under test
                own.fault = error.message if isinstance(error, Fault) else f"{type(error).__name__}: {error}"
            return own
    except UnsupportedOpError:
        return None
    finally:  # without the ops of a layout, the witness has got contiguous operands
        for operand, layout in zip(call.operands(), layouts, strict=True):
            operand.layout = layout


def verdict(witness: Backend, wrong: JudgedCall) -> str:
    """Whether the backend or the formula is wrong, by what the witness computes; "" if that is nothing."""
    own = testimony(witness, wrong.call)
    if own is None:
        return ""
    if not own.fault:
        return f"\n  {witness.name} agrees with the formula: the backend is wrong"
    if agrees(own, wrong):
        return f"\n  {witness.name} agrees with the backend: the formula is wrong"
    return f"\n  {witness.name} agrees with neither: {own.fault}"


def agrees(own: WitnessResult, judged: JudgedCall) -> bool:
    """Whether the results of witness and backend differ by no more than both their bounds together."""
    if judged.call.formula is None or not own.results:
        return False
    expected = (expect(judged.call, cost) for cost in (own.cost, judged.cost))
    for have, other, dtype, *wants in zip(own.results, judged.got, judged.dtypes, *expected, strict=False):
        a, b = decode(have, dtype), decode(other, dtype)
        bound = sum(result_bound(want, dtype) for want in wants if isinstance(want, Number))
        with np.errstate(invalid="ignore"):
            if a.shape != b.shape or not (same(a, b) | (np.abs(a - b) <= bound)).all():
                return False
    return True
