"""Ops on each element, and arithmetic on two tensors, against their formulas in float64."""

import math
from itertools import product

import numpy as np
import pytest
from exact import FLOATS, LAYOUTS, Case, assert_rounds_to, check, leaf, rounded, value

from backbay import DType

INF, NAN = math.inf, math.nan
SHAPES = [(5,), (1,), (7, 3), (4, 1, 3), (3, 2, 2, 2), (0, 3), ()]
# NumPy's functions and C's may differ by some units of float64's last place, which its rounding to f32 hides but for ties.
LIBM = 1e-14


def each(function):
    return np.vectorize(function, otypes=[np.float64])


def sigmoid(x):
    return math.exp(x) / (1 + math.exp(x))


def gelu(x):
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


UNARY = {
    "neg": (lambda x: -x, 0),
    "sqr": (lambda x: x * x, 0),
    "sqrt": (lambda x: math.sqrt(x) if x >= 0 else NAN, 0),
    "exp": (math.exp, LIBM),
    "sin": (math.sin, LIBM),
    "cos": (math.cos, LIBM),
    "tanh": (math.tanh, LIBM),
    "sigmoid": (sigmoid, LIBM),
    "softplus": (lambda x: math.log(1 + math.exp(x)), LIBM),
    "gelu_erf": (lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))), LIBM),
}
GATED = {
    "relu": (lambda x: max(x, 0), 0),
    "silu": (lambda x: x * sigmoid(x), LIBM),
    "gelu": (gelu, LIBM),
    "quick_gelu": (lambda x: x * sigmoid(1.702 * x), LIBM),
}


def clipped(x, min, max):
    return np.where(x < min, min, np.where(x > max, max, x))


WITH_ATTRIBUTES = [
    ("clamp", clipped, {"min": -0.7, "max": 1.3}),
    ("clamp", clipped, {"min": 0.1, "max": INF}),
    ("scale", lambda x, s: x * float(np.float32(s)), {"s": 0.1}),
    ("scale", lambda x, s: x * s, {"s": 0}),
    ("fill", lambda x, value: np.full(x.shape, value), {"value": 0.1}),
]
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
REPEATS = [
    ((5,), (5,)), ((6, 4), (3, 2)), ((6, 4), (1, 4)), ((6, 4), (6,)), ((4, 3, 2, 2), (2, 1, 2)), ((4,), (1,)),
    ((4,), ()), ((4,), (2, 1, 1)), ((3, 0), (3, 1)), ((0, 3), (5, 1)), ((), ()),
]  # fmt: skip


def swiglu(x, up, alpha, limit):
    g, u = min(x, limit), max(-limit, min(up, limit))
    return g * sigmoid(alpha * g) * (u + 1)


def cases():
    for name, (formula, slack) in (UNARY | GATED).items():
        yield from (Case(name, (shape,), each(formula), slack=slack) for shape in SHAPES)
    for name, (formula, slack) in GATED.items():
        gated = each(lambda x, up, formula=formula: formula(x) * up)
        yield from (Case(name, (shape, shape), gated, slack=slack) for shape in SHAPES)
    for name, formula, attributes in WITH_ATTRIBUTES:
        yield from (Case(name, (shape,), formula, attributes) for shape in SHAPES)
    for shape in SHAPES:
        attributes = {"alpha": 1.75, "limit": 0.875}  # floats that float32 holds
        yield Case(
            "swiglu",
            (shape, shape),
            each(lambda x, up, alpha, limit: swiglu(x, up, alpha, limit)),
            attributes,
            LIBM,
        )
    for (name, formula), (a, b) in product(BINARY.items(), REPEATS):
        yield Case(name, (a, b), lambda x, t2, formula=formula: formula(x, repeated(t2, x.shape)))


def repeated(t2, shape):
    """Element i of a dimension is t2's i mod n."""
    y = np.empty(shape)
    for place in np.ndindex(shape):
        extents = (*t2.shape, *[1] * len(shape))
        source = [i % n for i, n in zip(place, extents, strict=False)] + [0] * (t2.ndim - len(shape))
        y[place] = t2[tuple(source[: t2.ndim])]
    return y


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_each_element_is_its_formula_rounded_once(ctx, case):
    for dtype, layout in product(FLOATS, LAYOUTS):
        check(ctx, case, [dtype] * 2, [layout] * 2, None)


EDGES = [  # op, attributes, input, results that are right
    ("sqrt", {}, [-1.0, -0.0, INF], [[NAN], [-0.0], [INF]]),
    ("softplus", {}, [1e4, -INF, INF, -1e4], [[1e4], [0.0], [INF], [0.0]]),
    ("scale", {"s": INF}, [0.0, 1.0], [[NAN], [INF]]),
]


@pytest.mark.parametrize(("op", "attributes", "data", "right"), EDGES)
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=str)
def test_the_ends_of_the_range_are_as_documented(ctx, op, attributes, data, right, dtype):
    y = value(ctx, getattr(leaf(ctx, data, dtype), op)(ctx, **attributes))
    for number, allowed in zip(y, right, strict=True):
        assert any(same(number, rounded(other, dtype)) for other in allowed), (number, allowed)


def same(a, b):
    return (np.isnan(a) and np.isnan(b)) or (a == b and np.signbit(a) == np.signbit(b))


def test_the_gelu_of_a_number_far_below_zero_keeps_its_digits(ctx):
    x = np.float32([-5.0, -6.0, -7.5])
    exact = [
        float(v) / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
        for v in x.astype(float)
    ]
    np.testing.assert_allclose(value(ctx, leaf(ctx, x).gelu(ctx)), exact, rtol=2**-23)


def test_up_may_have_trailing_ones_more_or_less(ctx):
    x, up = leaf(ctx, [1.0, 2.0]), leaf(ctx, [[3.0], [4.0]])
    assert value(ctx, x.relu(ctx, up)).tolist() == [3.0, 8.0]
    assert value(ctx, up.relu(ctx, x)).tolist() == [[3.0], [8.0]]
    assert_rounds_to(
        value(ctx, x.swiglu(ctx, up, 1.0, 9.0)), each(swiglu)([1, 2], [3, 4], 1.0, 9.0), DType.F32, LIBM
    )


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64], ids=str)
def test_an_integer_is_filled_with_what_it_can_hold(ctx, dtype):
    lowest = -(2.0 ** (31 if dtype is DType.I32 else 63))
    x = ctx.zeros(dtype, 2, 2)
    assert value(ctx, x.fill(ctx, 7)).tolist() == [[7, 7], [7, 7]]
    assert value(ctx, x.fill(ctx, lowest)).tolist() == [[int(lowest)] * 2] * 2
