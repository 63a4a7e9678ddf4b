"""Cases of arithmetic on two tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from backbay import Op, ops

from ..draw.data import Made, Making, Numbers
from ..draw.draw import PAST, Draw
from ..draw.operand import Operand
from ..numbers.encoding import Array
from ..numbers.number import Number
from ..suite.case import Call, case


def repeated(t2: Number, shape: tuple[int, ...]) -> Number:
    """t2 repeated to a shape: element i of a dimension is t2's element i mod n."""
    rank = max(len(shape), len(t2.shape))
    t2 = t2.reshape(*(1,) * (rank - len(t2.shape)), *t2.shape)
    for axis, want in enumerate((1,) * (rank - len(shape)) + shape):
        if t2.shape[axis] != want:
            index = np.arange(want) % max(1, t2.shape[axis])
            t2 = t2.moved(lambda a, index=index, axis=axis: np.take(a, index, axis))  # type: ignore[misc]
    return t2.reshape(*shape)


def second_shape(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that repeats to `shape`: the same, with divisors of some extents, or of lower rank."""
    kind = draw.below(4)
    if kind == 0 or not shape:
        return shape
    if draw.on_turn(7, 20):
        return ()
    divisors = [[d for d in range(1, n + 1) if n % d == 0] or [0] for n in shape]
    second = [draw.pick(n, *(d[:1] if kind == 1 else d)) for n, d in zip(shape, divisors, strict=True)]
    while len(second) > 1 and second[-1] == 1 and draw.flag():
        second.pop()
    return tuple(second)


REPEATS = (
    # the shape, and that of the second operand
    ((PAST,), (PAST,)),
    ((2, PAST), (1, PAST)),
    ((2, 1, PAST), (2,)),
    ((1, 1, 1, PAST), (1, 1, 1, 1)),
    ((66, 3), (2, 3)),
    ((5, 70), (5, 2)),
    ((3, 2, 66), (3, 2, 2)),
    ((2, 3, 1, 102), (2, 1, 1, 3)),
    ((771, 2), (3, 1)),
    ((3, 514), (1, 2)),
    ((2, 1, 1285), (2, 1, 5)),
    ((1, 2, 2, 600), (1, 2, 2, 2)),
    ((33, 40, 4, 2), (33, 1, 4, 1)),
    ((4, 68, 70, 2), (4, 2, 2, 1)),
    ((2, 2 * PAST), (1, 2)),
    ((6, 8), (2, 4)),
    ((4, 1, 6), (2, 1, 3)),
    ((4, 3, 1, 9), (2, 3, 1, 3)),
    ((1, 6, 4), (1, 3, 2)),
    ((2, 6, 1, 4), (1, 3, 1, 2)),
    ((1, 1, 4, 4), (1, 1, 2, 2)),
    ((3, 2, 4, 9), (1, 2, 2, 3)),
    ((4, 6, 6, 4), (2, 3, 2, 2)),
)
"""An extent past 2^16 in each dimension, more than 32 or 256 repeats of several elements in each, and several elements
repeated in each two dimensions, and in all.
"""


def operands(draw: Draw, second: Numbers | Made) -> tuple[Operand, Operand, dict[str, Any]]:
    shape = draw.shape(scalars=True)
    other = second_shape(draw, shape)
    shape, other = draw.listed(*REPEATS) or (shape, other)
    x = draw.floats(shape, Numbers("0nisb"))
    t2 = draw.floats(other, second, dtype=draw.other_float())
    if draw.on_turn(5, 8) and not draw.exact:  # one tensor as both operands
        t2 = x
    split = draw.below(len(shape)) if shape else 0
    same = split < len(t2.shape) and t2.shape[split] == shape[split]
    once = split >= len(t2.shape) or t2.shape[split] == 1
    batch = (split, split if same else None) if shape and (same or once) else None
    return x, t2, {"batch": batch, "batch_out": split}


ARITHMETIC: dict[Op[Any, Any], Callable[[Number, Number], Number]] = {
    ops.add: operator.add,
    ops.sub: operator.sub,
    ops.mul: operator.mul,
    ops.div: operator.truediv,
}


def arithmetic(op: Op[Any, Any], draw: Draw) -> Call:
    divides = op is ops.div and draw.exact
    x, t2, relations = operands(draw, Made(powers_of_two) if divides else Numbers("0nisb"))
    function = ARITHMETIC[op]
    return Call((x, t2), lambda x, t2: function(x, repeated(t2, x.shape)), doubled=(True, True), **relations)


def powers_of_two(making: Making, operand: Operand) -> Array:
    size = int(np.prod(operand.shape, dtype=np.int64))
    return np.asarray(making.rng.choice([1.0, -2.0, 4.0, 0.5, -8.0], size))


for op in ARITHMETIC:
    case(op)(partial(arithmetic, op))
