"""Cases of elementwise ops, and of arithmetic on two tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from math import erfc, log, pi
from typing import Any

import numpy as np

from backbay import DType, Op, ops

from ..draw.data import Bits, ComputedNumbers, Fill, FillContext, Numbers
from ..draw.draw import PAST, Draw
from ..draw.operand import Operand
from ..numbers.encoding import FLOOR, LARGEST, Array, encode, opposite
from ..numbers.number import Number, scalar
from ..suite.case import Args, Call, builder, case
from .write import QUANTIZED, converted, convertible, no_integer

# -- arithmetic on two tensors ----------------------------------------------------------------------------


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


def operands(draw: Draw, second: Numbers | ComputedNumbers) -> tuple[Operand, Operand, dict[str, Any]]:
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
    x, t2, relations = operands(draw, ComputedNumbers(powers_of_two) if divides else Numbers("0nisb"))
    function = ARITHMETIC[op]
    return Call((x, t2), lambda x, t2: function(x, repeated(t2, x.shape)), doubled=(True, True), **relations)


def powers_of_two(making: FillContext, operand: Operand) -> Array:
    size = int(np.prod(operand.shape, dtype=np.int64))
    return np.asarray(making.rng.choice([1.0, -2.0, 4.0, 0.5, -8.0], size))


for op in ARITHMETIC:
    case(op)(partial(arithmetic, op))


# -- functions of each element -----------------------------------------------------------------------------

Unary = Callable[[Number], Number]


def simple(
    op: Op[Any, Any],
    formula: Unary,
    fill: Numbers,
    *,
    exact: bool = True,
    free: Any = None,
    signed: bool = False,
    special: Fill | None = None,
) -> None:
    """A case of an op with one operand and no attributes; each dimension is a batch.

    Now and then the data are `special`, if given.
    """

    def draw_call(draw: Draw) -> Call:
        shape = draw.shape(scalars=True)
        x = draw.floats(shape, fill if special is None else draw.fill(fill, fill, special))
        return Call((x,), formula, exact=exact, free=free, signed=signed, **draw.batch(shape))

    case(op)(draw_call)


ALL = Numbers("0nisb")
ANY = Numbers("0nis")
NARROW = Numbers("0nis", low=-110, high=100)


def brim(making: FillContext, operand: Operand) -> Array:
    """Arguments of both signs near those whose power of e leaves the range of a float type."""
    size = int(np.prod(operand.shape, dtype=np.int64))
    kinds = (DType.F16, DType.F32, DType.BF16)
    ends = [abs(log(end)) for kind in kinds for end in (LARGEST[kind], FLOOR[kind])]
    sides = making.rng.choice([-1.0, 1.0], size)
    return np.asarray(sides * (making.rng.choice(ends, size) + making.rng.uniform(-0.7, 0.2, size)))


def far(making: FillContext, operand: Operand) -> Array:
    """Large arguments of both signs, whose reduction by a rounded multiple of pi is off."""
    size = int(np.prod(operand.shape, dtype=np.int64))
    most = 11 if operand.dtype is DType.F16 else 15
    return np.asarray(making.rng.choice([-1.0, 1.0], size) * np.exp(making.rng.uniform(5, most, size)))


simple(ops.sqr, lambda x: x * x, ALL)
simple(ops.sqrt, lambda x: x.sqrt(), Numbers("0nisb", low=-3), exact=False, signed=True)
simple(ops.exp, lambda x: x.exp(), NARROW, exact=False, special=ComputedNumbers(brim))
# The reduction of an argument loses nothing, however large the argument is.
simple(ops.sin, lambda x: x.wave(np.sin, argument=0), ANY, exact=False, special=ComputedNumbers(far))
simple(ops.cos, lambda x: x.wave(np.cos, argument=0), ANY, exact=False, special=ComputedNumbers(far))
simple(ops.tanh, lambda x: x.tanh(), ALL, exact=False, special=ComputedNumbers(brim))
simple(ops.sigmoid, lambda x: x.sigmoid(), ALL, exact=False, special=ComputedNumbers(brim))


def softplus(x: Number) -> Number:
    smooth = x.monotone(lambda v: np.logaddexp(0, v), argument=2)
    # log(1 + e^x), as ggml and CUDA's kernels compute it, loses the part of e^x below the last bit of 1
    return Number(smooth.value, smooth.error + 4 * x.cost.step, x.cost)


def gelu_erf(x: Number) -> Number:
    tail = (x * -float(np.sqrt(0.5))).monotone(np.vectorize(erfc, otypes=[np.float64]), argument=4)
    # 1 + erf(z) cancels for large negative z, and neither ggml nor ONNX has an erfc
    return x * 0.5 * Number(tail.value, tail.error + 4 * x.cost.step, x.cost)


simple(ops.softplus, softplus, ALL, exact=False, special=ComputedNumbers(brim))
simple(ops.gelu_erf, gelu_erf, ANY, exact=False, free=np.isneginf)


@builder(ops.neg)
def neg_call(args: Args, **relations: Any) -> Call:
    """Compared by bits, since neg also changes the sign of zero."""
    return Call(args, partial(opposite, dtype=args[0].dtype), raw=True, **relations)


@case(ops.neg)
def neg(draw: Draw) -> Call:
    shape = draw.shape(scalars=True)
    return neg_call((draw.floats(shape, ALL),), **draw.batch(shape))


# -- gated -----------------------------------------------------------------------------------------------


def gated(op: Op[Any, Any], activate: Unary, *, activated: bool = False, free: Any = np.isneginf) -> None:
    """A case of an activation with an optional `up`."""

    def formula(x: Number, up: Number | None) -> Number:
        y = activate(x.activation() if activated else x)
        if activated and x.cost.activation is DType.F16:  # a lookup table in f16 rounds the result as well
            y = y.activation()
        return y if up is None else y * up

    def opened(x: Array, up: Array | None) -> Array:
        return np.asarray(free(x))

    def draw_call(draw: Draw) -> Call:
        shape = draw.shape(scalars=True)
        usual, broken = (Numbers(special, low=-60, high=60) for special in ("0s", "0nis"))
        large = Numbers(low=-3e4, high=3e4, loud=True)
        fill = draw.fill(usual, broken, usual, broken, ComputedNumbers(brim), large)
        x = draw.floats(shape, fill, activated=activated)
        up = draw.floats(shape, Numbers(), dtype=draw.other_float()) if draw.flag() else None
        doubled = None if up is None else (False, True)
        relations = draw.batch(shape, 1 if up is None else 2)
        return Call((x, up), formula, exact=op is ops.relu, free=opened, doubled=doubled, **relations)

    case(op)(draw_call)


def gelu(x: Number) -> Number:
    inner = (x * x * x * scalar(0.044715, x.cost) + x) * scalar((2 / pi) ** 0.5, x.cost)
    t = inner.tanh()
    return x * 0.5 * (t + 1.0)


gated(ops.relu, lambda x: x.clip(0, np.inf), free=np.isnan)
gated(ops.silu, lambda x: x * x.sigmoid())
gated(ops.gelu, gelu, activated=True)
gated(ops.quick_gelu, lambda x: x * (x * scalar(1.702, x.cost)).sigmoid(), activated=True)


@case(ops.swiglu)
def swiglu(draw: Draw) -> Call:
    shape = draw.shape(scalars=True)
    x = draw.floats(shape, Numbers(low=-60, high=60))
    up = draw.floats(shape, Numbers(), dtype=draw.other_float())
    alpha = draw.many_digits(draw.pick(1.702, 1.0, 0.5, 2.25))
    limit = draw.many_digits(draw.pick(7.0, 1.0, 0.25, 100.0))

    def formula(x: Number, up: Number, alpha: float, limit: float) -> Number:
        gate = x.clip(-np.inf, limit)
        gate = gate * (gate * scalar(alpha, x.cost)).sigmoid()
        return gate * up.clip(-limit, limit) + gate  # less exact near up = -1 than gate * (up + 1)

    other = {"alpha": 0.75, "limit": draw.pick(0.5, 3.0)} if draw.flag(4) else {}
    return Call((x, up, alpha, limit), formula, exact=False, altered=other, **draw.batch(shape, 2))


# -- with attributes -------------------------------------------------------------------------------------


@case(ops.clamp)
def clamp(draw: Draw) -> Call:
    shape = draw.shape(scalars=True)
    low = draw.many_digits(draw.pick(0.0, -1.0, -7.0, -np.inf, 3.0))
    high = low + draw.pick(1.0, 0.0, 4.0, np.inf) if np.isfinite(low) else draw.pick(2.0, np.inf)
    x = draw.floats(shape, draw.fill(Numbers("0is"), Numbers("0nis")))
    return clamp_call((x, low, high), **draw.batch(shape))


@builder(ops.clamp)
def clamp_call(args: Args, **relations: Any) -> Call:
    return Call(
        args,
        lambda x, low, high: x.clip(low, high),
        free=lambda x, low, high: np.isnan(x),
        instead=(np.nan, *args[1:]),
        **relations,
    )


@case(ops.scale)
def scale(draw: Draw) -> Call:
    shape = draw.shape(scalars=True)
    s = draw.pick(2.0, -3.0, 1.0, 0.0, -1.0) if draw.exact else draw.pick(0.3, 1.7, -1e-3, 13.7, 0.0, 1e4)
    extreme = draw.listed(np.inf, -np.inf, np.nan, -0.0, 3e38, 1e-38, -1e20)
    s = extreme if extreme is not None else s if draw.exact else draw.many_digits(s)
    x = draw.floats(shape, ALL)
    return Call(
        (x, s),
        lambda x, s: x * float(np.float32(s)),
        signed=True,
        doubled=(True,),
        altered={"s": 4.0} if draw.flag(4) else {},
        **draw.batch(shape),
    )


FILLED = (0.0, -2.5, np.nan, -0.0, np.inf, 1e-3, -np.inf, 7.25, 3e38, 65519.0, 1e-40)
"""Values for floats: ordinary, special, and near the ends of the types."""
# Integers that single precision cannot hold, up to the limits of the types.
WHOLE = {
    DType.I32: (0, 2**24 + 1, -(2**31), -7, 2**31 - 1, 123456),
    DType.I64: (0, 2**53 + 2, -(2**63), -7, 2**24 + 1, 2**32 + 5, -(2**53) + 1, 2**62),
}


@case(ops.fill)
def fill(draw: Draw) -> Call:
    dtype = draw.by_turn(draw.float_dtype(), DType.I64, draw.float_dtype(), DType.I32)
    x = draw.operand(dtype, draw.shape(scalars=True), Bits())
    return fill_call((x, float(draw.by_turn(*WHOLE.get(dtype, FILLED), each=4))))


@builder(ops.fill)
def fill_call(args: Args) -> Call:
    kind = args[0].dtype
    return Call(args, lambda x, value: encode(np.full(x.shape, value), kind), raw=True)


@case(ops.cast)
def cast(draw: Draw) -> Call:
    target = draw.by_turn(DType.F32, DType.I64, DType.F16, DType.I32, DType.BF16)
    floats = draw.float_dtype()
    source = draw.by_turn(floats, DType.I64, floats, DType.F32, DType.I32, floats, DType.I64)
    shape = draw.shape(scalars=True)
    x = draw.operand(source, shape, convertible(source, target))
    return cast_call((x, target), **draw.batch(shape))


@builder(ops.cast)
def cast_call(args: Args, **relations: Any) -> Call:
    source, target = args[0].dtype, args[1]
    return Call(
        args,
        lambda raw, dtype: converted(raw, source, dtype),
        raw=True,
        free=no_integer if source.is_float and target.is_integer else None,
        instead=None,
        **relations,
    )


@case(ops.cast, "quant")
def cast_quantized(draw: Draw) -> Call:
    """From quantized types to floats, and from f32 to quantized types."""
    if draw.flag():
        target = draw.by_turn(*QUANTIZED, each=3)
        blocks = draw.pick(33, 129) if draw.flag(8) else draw.pick(1, 2, 5)
        x = draw.floats((target.block_size * blocks, *draw.sides(2, 40)), Numbers(), dtype=DType.F32)
        return cast_call((x, target))
    source, wanted = draw.quantized_dtype(), draw.pick(DType.F32, DType.F16, DType.BF16)
    x = draw.operand(source, (source.block_size * draw.pick(1, 2), *draw.sides(2, 20)), Bits())
    return cast_call((x, wanted))
