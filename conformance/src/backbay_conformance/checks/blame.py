"""The ops that make a whole graph wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backbay import BackbayError, Op

from ..draw.draw import Draw
from ..numbers.comparison import Fault
from ..suite.case import CASES
from ..suite.lab import Lab
from .call_check import try_call

CALLS = 9
"""Calls that test an op by itself: each mode with each float type."""


def blamed(lab: Lab, fault: Fault, parts: Iterable[Op[Any, Any]]) -> Fault:
    """The fault of a graph; its message lists the graph's ops and the ops that are wrong by themselves."""
    used = sorted(set(parts), key=lambda op: op.name)
    alone = [op.name for op in used if not stands(lab, op)]
    told = f"wrong by themselves: {', '.join(alone)}" if alone else "each op is right by itself"
    names = ", ".join(op.name for op in used)
    return Fault(fault.check, f"{fault.message}\n  a graph of {names}; {told}")


def stands(lab: Lab, op: Op[Any, Any]) -> bool:
    """Whether an op passes a few calls of its case; the lab remembers the answer."""
    if op.name not in lab.standing:
        lab.standing[op.name] = _passes(lab, op)
    return lab.standing[op.name]


def _passes(lab: Lab, op: Op[Any, Any]) -> bool:
    case = next((case for case in CASES.values() if case.op is op), None)
    for turn in range(CALLS if case is not None else 0):
        assert case is not None
        draw = Draw(f"blame/{op.name}/{turn}", turn, cache=lab.backend.cache_config())
        try:
            try_call(lab, case.draw(draw), draw.mode)
        except (BackbayError, ArithmeticError, ValueError, TypeError):
            return False
    return True
