"""Relations between calls, whose results must agree whatever the formula says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backbay import DeclaredUnsupportedError, DType, Precision

from ..draw.draw import Draw
from ..draw.layout import Layout
from ..draw.operand import Operand
from ..numbers.comparison import Fault, first_of, plain, result_bound
from ..numbers.encoding import decode, encode
from ..numbers.number import Cost, Number
from ..numbers.rounding import FLOOR, LARGEST, Array
from ..numbers.tightness import note
from ..suite.case import Call
from ..suite.lab import Lab
from .call_check import Observed
from .evidence import operands_at
from .judgement import cost_of, expect, flushed, judge, left_open
from .traced_call import TracedCall

Relation = Callable[[Lab, Call, Draw, Cost], bool]
"""Raises Fault if the relation does not hold; returns False if it does not apply to the call."""

NARROW = 2.0**-16  # between the unit roundoff of f32 and those of f16 and bf16


def try_relations(lab: Lab, call: Call, draw: Draw, observed: Observed) -> None:
    """Check all relations that apply to this call, with the data of its last run."""
    assert observed.precision is not None
    cost = cost_of(call, observed.level, observed.precision)
    for name, relation in RELATIONS.items():
        try:
            holds = relation(lab, call, draw, cost)
        except DeclaredUnsupportedError:
            continue  # the backend may decline other extents or layouts
        if holds:
            observed.note(name)


def _run(lab: Lab, call: Call) -> list[Array]:
    traced = TracedCall(lab.backend, call)
    try:
        traced.write()
        return traced.run()
    finally:
        traced.close()


def _judged(lab: Lab, call: Call, draw: Draw, cost: Cost, check: str) -> None:
    """Raise Fault unless a call with its current data gives the expected results."""
    traced = TracedCall(lab.backend, call)
    try:
        traced.write()
        judge(call, traced, traced.run(), cost, draw.mode, check)
    finally:
        traced.close()


def contiguous_equals_strided(lab: Lab, call: Call, draw: Draw, cost: Cost) -> bool:
    """The same data laid out contiguously give the same result."""
    if call.placed or not any(operand.layout.steps for operand in call.operands()):
        return False
    plain = call.with_args(call.mapped(lambda o: o.of(o.stored, Layout(o.dtype, o.shape))))
    _judged(lab, plain, draw, cost, "layout")
    return True


def parts_equal_whole(lab: Lab, call: Call, draw: Draw, cost: Cost) -> bool:
    """Part of a batch gives the same results alone as within the whole batch."""
    if call.batch is None:
        return False
    operands = list(call.operands())
    extents = [
        o.shape[d] for o, d in zip(operands, call.batch, strict=True) if d is not None and d < len(o.shape)
    ]
    if not extents or min(extents) != max(extents) or extents[0] < 2:
        return False
    cut = 1 + draw.below(extents[0] - 1)
    parts = [_run(lab, _part(call, operands, low, high))[0] for low, high in ((0, cut), (cut, extents[0]))]
    whole = _run(lab, call)[0]
    joined = np.concatenate(parts, axis=whole.ndim - 1 - call.batch_out)
    _agree(lab, call, cost, joined, whole, 1.0, draw, "parts")
    return True


def _part(call: Call, operands: list[Operand], low: int, high: int) -> Call:
    """The call for [low, high) of its batch."""
    assert call.batch is not None
    made: dict[int, Operand] = {}
    for operand, dim in zip(operands, call.batch, strict=True):
        raw = operand.stored
        if dim is not None and dim < len(operand.shape):
            axis = raw.ndim - 1 - dim
            raw = raw[(slice(None),) * axis + (slice(low, high),)]
        made[id(operand)] = operand.of(np.ascontiguousarray(raw))
    return call.with_args(call.mapped(lambda o: made[id(o)]))


def doubling_scales(lab: Lab, call: Call, draw: Draw, cost: Cost) -> bool:
    """Operands times a power of two scale the result by a power of two."""
    if call.degrees is None or draw.mode == "special":
        return False
    if cost.accumulate > NARROW:  # a sum kept in f16 may overflow where scaled operands do not
        return False
    degrees: dict[Operand, int | None] = {}
    for operand, degree in zip(call.operands(), call.degrees, strict=True):
        degrees[operand] = None if degree is None else degree + (degrees.get(operand) or 0)
    chosen = [o for o, degree in degrees.items() if degree is not None and o.dtype.is_float]
    if not chosen:
        return False
    power = draw.pick(1, 2, 3)
    if call.joint is not None and len(chosen) != sum(degree is not None for degree in degrees.values()):
        return False
    joint = sum(degrees[o] or 0 for o in chosen) if call.joint is None else call.joint

    def scaled(operand: Operand) -> Operand:
        if operand not in chosen:
            return operand
        return operand.of(encode(operand.decoded * 2.0**power, operand.dtype), operand.layout)

    other = call.with_args(call.mapped(scaled))
    for operand, made in zip(call.operands(), other.operands(), strict=True):
        if operand in chosen and not np.array_equal(
            made.decoded, operand.decoded * 2.0**power, equal_nan=True
        ):
            return False  # the scaled numbers do not fit the type
    _agree(lab, call, cost, _run(lab, other)[0], _run(lab, call)[0], 2.0 ** (power * joint), draw, "scaling")
    return True


def padding_changes_nothing(lab: Lab, call: Call, draw: Draw, cost: Cost) -> bool:
    """Padding leaves the result as it is."""
    if call.padded is None:
        return False
    longer, cut = call.padded
    for operand in longer.operands():  # the call's own data, followed by padding
        operand.make(draw.mode, Precision(DType.F32, DType.F32), 1)
    _agree(lab, call, cost, cut(_run(lab, longer)[0]), _run(lab, call)[0], 1.0, draw, "padding")
    return True


def attributes_count(lab: Lab, call: Call, draw: Draw, cost: Cost) -> bool:
    """The same operands with other attributes give the right result too: no value of the first call is reused."""
    if not call.altered:
        return False
    names = [parameter.name for parameter in call.op.parameters]
    other = call.with_args(
        tuple(call.altered.get(name, value) for name, value in zip(names, call.args, strict=True))
    )
    _judged(lab, other, draw, cost, "attributes")
    return True


def _agree(
    lab: Lab, call: Call, cost: Cost, left: Array, right: Array, factor: float, draw: Draw, check: str
) -> None:
    """Raise Fault if two results differ by more than their bounds; moved elements and integers must be equal."""
    traced = TracedCall(lab.backend, call)
    dtype = traced.results[0].dtype
    traced.close()
    if left.shape != right.shape:
        raise Fault(check, f"shapes differ: {left.shape[::-1]} and {right.shape[::-1]}")
    a, b = decode(left, dtype), decode(right, dtype) * factor
    limit = np.zeros(a.shape)
    if call.formula is not None and not (draw.exact and call.exact):
        expected = expect(call, cost)[0]
        if isinstance(expected, Number):
            limit = 2 * result_bound(expected, dtype) * factor + result_bound(expected, dtype)
    with np.errstate(all="ignore"):
        over = np.isinf(a) & (np.abs(b) > 0.99 * LARGEST.get(dtype, np.inf)) | np.isinf(b)
        under = np.abs(a - b) <= FLOOR.get(dtype, 0.0) * max(1.0, factor)
        spilled = np.isinf(limit) & (cost.largest < np.inf)  # a sum of infinities of both signs is NaN
        wrong = ~((a == b) | over | under | spilled | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= limit))
    free = left_open(call, None)
    note(check, b, limit, free)
    if free is not None:
        wrong &= ~free
    if cost.flushes:
        wrong &= ~_read_in_two_ways(call, cost, dtype)
    if wrong.any():
        at = first_of(wrong)
        differ = f"{int(wrong.sum())} of {wrong.size} differ: at {at[::-1]} {plain(a[at])} and {plain(b[at])}"
        raise Fault(check, differ + operands_at(call, at, a.shape), at)


def _read_in_two_ways(call: Call, cost: Cost, dtype: DType) -> Array:
    """Marks the elements that depend on whether subnormal operands are read as zeros: both runs may choose."""
    other = flushed(call)
    if other is None or call.formula is None:
        return np.zeros((), bool)
    a, b = expect(call, cost)[0], expect(other, cost)[0]
    if not isinstance(a, Number):
        return np.asarray(a != b)
    with np.errstate(all="ignore"):
        same = (a.value == b.value) | (np.isnan(a.value) & np.isnan(b.value))
        return np.asarray(~(same | (np.abs(a.value - b.value) <= result_bound(a, dtype))))


RELATIONS: dict[str, Relation] = {
    "layout": contiguous_equals_strided,
    "parts": parts_equal_whole,
    "scaling": doubling_scales,
    "padding": padding_changes_nothing,
    "attributes": attributes_count,
}
