"""Relations between calls: other layouts, parts of a batch, magnitudes, padding and attributes give the same results."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from backbay import DeclaredUnsupportedError, DType, Precision
from backbay.internals import trace_op

from ..draw.draw import Draw
from ..draw.layout import Layout
from ..draw.operand import Operand
from ..fault import Fault
from ..numbers.comparison import same
from ..numbers.encoding import NARROW, Array, encode, from_bytes
from ..numbers.number import Cost
from ..suite.case import Call
from ..suite.lab import Lab
from .call_check import CallVerdict
from .judgement import cost_of, judge
from .traced_call import TracedCall

Relation = Callable[[Lab, Call, Draw, Cost], bool]
"""Raises Fault if the relation does not hold; returns False if it does not apply to the call."""


def try_relations(lab: Lab, call: Call, draw: Draw, observed: CallVerdict, names: Collection[str]) -> None:
    """Check the named relations that apply to this call, with the data of its last run."""
    assert observed.precision is not None
    cost = cost_of(call, observed.level, observed.precision)
    for name, relation in RELATIONS.items():
        if name not in names:
            continue
        try:
            holds = relation(lab, call, draw, cost)
        except DeclaredUnsupportedError:
            continue  # the backend may decline other extents or layouts
        if holds:
            observed.note(name)


def _run(lab: Lab, call: Call) -> list[Array]:
    with TracedCall(lab.backend, call) as traced:
        traced.write()
        return traced.run()


def _judged(
    lab: Lab, call: Call, draw: Draw, cost: Cost, check: str, got: Array | None = None, way: str = ""
) -> bool:
    """Raise Fault unless a call with its current data, or what calls `got` in another way, is the expected result."""
    with TracedCall(lab.backend, call) as traced:
        try:
            if got is None:
                traced.write()
            else:
                del traced.results[1:]  # copies of a view
            judge(call, traced, traced.run() if got is None else [got], cost, draw.mode, check)
        except Fault as fault:
            fault.message += f"\n  in {way or call}"
            raise
    return True


def contiguous_equals_strided(lab: Lab, call: Call, draw: Draw, cost: Cost) -> bool:
    """The same data laid out contiguously give the same result."""
    if call.placed or not any(operand.layout.steps for operand in call.operands()):
        return False
    return _judged(lab, _contiguous(call), draw, cost, "layout")


def _contiguous(call: Call) -> Call:
    return call.with_args(call.mapped(lambda o: o.of(o.stored, Layout())))


def parts_equal_whole(lab: Lab, call: Call, draw: Draw, cost: Cost) -> bool:
    """Part of a batch gives the same results alone as within the whole batch."""
    if call.batch is None:
        return False
    operands = list(call.operands())
    split = [(o, d) for o, d in zip(operands, call.batch, strict=True) if d is not None and d < len(o.shape)]
    extents = {o.shape[d] for o, d in split}
    if len(extents) != 1 or (extent := extents.pop()) < 2:
        return False
    cut = 1 + draw.below(extent - 1)
    parts = [_run(lab, _part(call, operands, low, high))[0] for low, high in ((0, cut), (cut, extent))]
    joined = np.concatenate(parts, axis=parts[0].ndim - 1 - call.batch_out)
    way = f"its parts [0, {cut}) and [{cut}, {extent}) of the batch, computed by themselves"
    return _judged(lab, call, draw, cost, "parts", joined, way)


def _part(call: Call, operands: list[Operand], low: int, high: int) -> Call:
    assert call.batch is not None
    made: dict[int, Operand] = {}
    for operand, dim in zip(operands, call.batch, strict=True):
        raw = operand.stored
        if dim is not None and dim < len(operand.shape):
            axis = raw.ndim - 1 - dim
            raw = raw[(slice(None),) * axis + (slice(low, high),)]
        made[id(operand)] = operand.of(np.ascontiguousarray(raw))
    return call.with_args(call.mapped(lambda o: made[id(o)]))


def scaled_operands(lab: Lab, call: Call, draw: Draw, cost: Cost) -> bool:
    """Operands times a power of two give the right result too: nothing depends on their magnitude."""
    if call.doubled is None or draw.mode == "special":
        return False
    if cost.accumulate > NARROW:  # a sum kept in f16 may overflow where scaled operands do not
        return False
    chosen = [o for o, yes in zip(call.operands(), call.doubled, strict=True) if yes and o.dtype.is_float]
    if not chosen:
        return False
    power = draw.pick(1, 2, 3)
    scaled = {o: o.of(encode(o.decoded * 2.0**power, o.dtype), o.layout) for o in chosen}
    if not all(same(made.decoded, o.decoded * 2.0**power).all() for o, made in scaled.items()):
        return False  # the scaled numbers do not fit the type
    other = call.with_args(call.mapped(lambda o: scaled.get(o, o)))
    return _judged(lab, other, draw, cost, "scaling")


def padding_changes_nothing(lab: Lab, call: Call, draw: Draw, cost: Cost) -> bool:
    """Padding leaves the result as it is."""
    if call.padded is None:
        return False
    longer, cut = call.padded
    for operand in longer.operands():  # the call's own data, followed by padding
        operand.make(draw.mode, Precision(DType.F32, DType.F32), 1)
    return _judged(lab, call, draw, cost, "padding", cut(_run(lab, longer)[0]), str(longer))


def attributes_count(lab: Lab, call: Call, draw: Draw, cost: Cost) -> bool:
    """The same operands with other attributes give the right result too."""
    if not call.altered:
        return False
    return _judged(lab, _altered(call), draw, cost, "attributes")


def _altered(call: Call) -> Call:
    named = zip((parameter.name for parameter in call.op.parameters), call.args, strict=True)
    return call.with_args(tuple(call.altered.get(name, value) for name, value in named))


def each_has_its_attributes(lab: Lab, call: Call, draw: Draw, cost: Cost) -> bool:
    """Two calls in one graph, with the same operands and different attributes, have their own results."""
    if not call.altered:
        return False
    other = _altered(call)
    with TracedCall(lab.backend, call) as traced:
        second = trace_op(traced.ctx, call.op, other.mapped(traced.tensors.__getitem__))
        traced.write()
        traced.ctx.compute(*traced.results, second)
        for each, result in ((call, traced.results[0]), (other, second)):
            got = from_bytes(result.bytes(), result.dtype, result.shape)
            try:
                judge(each, traced, [got], cost, draw.mode, "together")
            except Fault as fault:
                fault.message += f"\n  in a graph of {call} and {other}"
                raise
    return True


RELATIONS: dict[str, Relation] = {
    "layout": contiguous_equals_strided,
    "parts": parts_equal_whole,
    "scaling": scaled_operands,
    "padding": padding_changes_nothing,
    "attributes": attributes_count,
    "together": each_has_its_attributes,
}
OTHER_CALLS: dict[str, Callable[[Call], Call]] = {"layout": _contiguous, "attributes": _altered}
"""The calls that these relations judge in place of the drawn one."""
SAME_GRAPH = ("scaling",)
"""The relations that need no other graph, which a run of few shapes keeps."""
