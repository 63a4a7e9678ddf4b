"""Comparison of a call's results with its case's formula, within the bounds of the declared precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from backbay import DType, Level, Op, Precision, ops

from ..draw.data import Mode
from ..draw.operand import Operand
from ..fault import Fault
from ..numbers.comparison import ElementErrors, compare
from ..numbers.encoding import FLOOR, LARGEST, NARROW, Array, encode, round_to, unit
from ..numbers.number import Cost, Number
from ..suite.case import Call
from .traced_call import TracedCall

MOST = 4  # the numbers of a row that a message shows

Index = tuple[int | None, ...]
"""An index by dimension, dimension 0 first; None stands for the whole of dimension 0."""

PRODUCTS = (ops.mulmat, ops.mulmat_full_prec)
OF_ROWS: frozenset[Op[Any, Any]] = frozenset(
    {
        ops.softmax,
        ops.layer_norm,
        ops.rms_norm,
        ops.l2_norm,
        ops.sum_rows,
        ops.mean,
        ops.variance,
        ops.stddev,
        ops.cumsum,
    }
)
"""The ops whose results depend on a whole row."""


Place = tuple[int, ...]
"""An index of an array, dimension 0 last."""


def operands_at(call: Call, place: Place, shape: Place) -> str:
    """The elements or rows that the result's element at a place depends on; empty if they are many.

    `shape` is the shape of the result's array, with reversed extents.
    """
    shown = [f"{name}[{where}] = {numbers}" for name, where, numbers in _located(call, place, shape)]
    return "\n  with " + "; ".join(shown) if shown else ""


def element_at(call: Call, place: Place, errors: ElementErrors) -> str:
    """The call of the result's element at a place, such as `exp(50.03) = 5.3e+21`."""
    numbers = {name: found for name, _, found in _located(call, place, errors.expected.shape)}
    result = f"{errors.got[place]:.9g}"
    if not numbers:
        return f"{call} at {place[::-1]}: {result}"
    shown = []
    for parameter, value in zip(call.op.parameters, call.args, strict=True):
        if parameter.name in numbers:
            shown.append(numbers[parameter.name])
        elif value != parameter.default:
            shown.append(f"{parameter.name}={value}")
    return f"{call.op.name}({', '.join(shown)}) = {result}"


def _located(call: Call, place: Place, shape: Place) -> Iterator[tuple[str, str, str]]:
    """The name, index and numbers of each operand that can be shown."""
    named = zip([parameter.name for parameter in call.op.parameters], call.args, strict=True)
    operands = {name: value for name, value in named if isinstance(value, Operand)}
    if any(operand.raw is None for operand in operands.values()):
        return
    for name, operand, at in _pieces(call, operands, place[::-1], shape[::-1]):
        key = tuple(slice(None) if index is None else index for index in reversed(at))
        where = ", ".join(":" if index is None else str(index) for index in at)
        yield name, where, _numbers(operand.decoded[key])


def _pieces(
    call: Call, operands: dict[str, Operand], at: tuple[int, ...], shape: tuple[int, ...]
) -> Iterator[tuple[str, Operand, Index]]:
    """Each operand that can be shown, with the index of its element or row."""
    if call.op in PRODUCTS:
        (first, w), (second, x) = operands.items()
        yield first, w, (None, at[0], *[_grouped(at, shape, w, n) for n in range(2, len(w.shape))])
        yield second, x, (None, *at[1 : len(x.shape)])
        return
    if call.op is ops.rows:
        (first, table), (second, ids) = operands.items()
        yield second, ids, at[1:]
        row = int(ids.decoded[at[:0:-1]])
        yield first, table, (at[0], row, *[_wrapped(at, table, n) for n in range(2, len(table.shape))])
        return
    if call.op is ops.set_rows:
        (_, _), (first, source), (second, ids) = operands.items()
        written = np.argwhere(ids.decoded == at[1]) if len(ids.shape) == 1 else np.empty((0, 1))
        for (row,) in written[:1].tolist():
            yield second, ids, (row,)
            yield first, source, (at[0], row, *at[2:])
        return
    for name, operand in operands.items():
        if _repeats_to(operand, shape, whole=call.op in OF_ROWS):
            index = tuple(_wrapped(at, operand, n) for n in range(len(operand.shape)))
            own = not index or len(index) < len(shape) or operand.shape[1:] != shape[1:]
            yield name, operand, index if own or call.op not in OF_ROWS else (None, *index[1:])


def _grouped(at: tuple[int, ...], shape: tuple[int, ...], w: Operand, n: int) -> int:
    """The slice of a product's first operand, which consecutive groups of slices share."""
    return at[n] // max(1, shape[n] // w.shape[n]) if n < len(at) else 0


def _wrapped(at: tuple[int, ...], operand: Operand, n: int) -> int:
    return at[n] % operand.shape[n] if n < len(at) else 0


def _repeats_to(operand: Operand, shape: tuple[int, ...], *, whole: bool) -> bool:
    """Whether the operand, repeated, has the shape of the result, of which dimension 0 may be summed."""
    extents = (*shape, 1, 1, 1, 1)
    return all(
        extent and (extents[n] % extent == 0 or (n == 0 and whole)) for n, extent in enumerate(operand.shape)
    )


def _numbers(found: Array) -> str:
    flat = found.reshape(-1)
    more = f" ... ({flat.size})" if flat.size > MOST else ""
    return " ".join(f"{number:.9g}" for number in flat[:MOST].tolist()) + more


NORMAL = 2.0**-126  # the smallest normal number of f32
SHRUNK = 8  # the most by which sums in f16 may be kept smaller than they are


def cost_of(call: Call, level: Level, precision: Precision) -> Cost:
    """The roundoffs of the declared precision; a composite rounds each step to its operands' type."""
    composite = level is Level.COMPOSITE
    steps = [unit(operand.dtype) for operand in call.operands() if composite and operand.dtype.is_float]
    cost = replace(Cost.of(precision, max(steps, default=0.0)), flushes=precision.flushes_subnormals)
    if precision.accumulate is DType.F16:
        return replace(cost, largest=LARGEST[DType.F16], smallest=SHRUNK * FLOOR[DType.F16])
    return cost


def expect(call: Call, cost: Cost) -> list[Any]:
    assert call.formula is not None

    def argument(operand: Operand) -> Any:
        if call.raw or operand.dtype.is_integer:
            return operand.stored
        return Number(operand.decoded, 0.0, cost)

    with np.errstate(all="ignore"):
        expected = call.formula(*call.mapped(argument))
    return list(expected) if isinstance(expected, list) else [expected]


@dataclass(frozen=True)
class JudgedCall:
    """A call with its results, and the cost by which they were judged."""

    call: Call
    got: list[Array]
    dtypes: list[DType]
    cost: Cost


def judge(
    call: Call, traced: TracedCall, got: list[Array], cost: Cost, mode: Mode, check: str = ""
) -> list[ElementErrors]:
    """The errors of the results that have bounds; Fault if a result is wrong."""
    try:
        return _errors(call, traced, got, cost, mode, check)
    except Fault as fault:
        fault.judged = JudgedCall(call, got, [tensor.dtype for tensor in traced.results], cost)
        raise


def _errors(
    call: Call, traced: TracedCall, got: list[Array], cost: Cost, mode: Mode, check: str
) -> list[ElementErrors]:
    other = flushed(call) if cost.flushes else None
    if call.verify is not None:
        _verify(call, other, got[0], check)
        return []
    expected = expect(call, cost)
    others: list[Any] = [None] * len(expected) if other is None else expect(other, cost)
    if len(got) == 2 * len(expected):
        expected, others = expected * 2, others * 2
    if len(got) != len(expected):
        raise Fault(check or "shape", f"expected {len(expected)} results, got {len(got)}")
    free = left_open(call, other)
    exact = call.exact and mode == "exact" and _stays_exact(call, cost)
    found: list[ElementErrors] = []
    for want, second, have, tensor in zip(expected, others, got, traced.results, strict=True):
        try:
            errors = compare(
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
            if fault.place is not None:
                fault.message += operands_at(call, fault.place, want.shape)
            raise
        if errors is not None:
            found.append(errors)
    return found


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
