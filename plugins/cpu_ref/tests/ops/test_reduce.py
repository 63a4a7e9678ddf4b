"""Softmax, norms, sums and sorting over dimension 0, against their formulas in float64."""

import math
from itertools import product

import numpy as np
import pytest
from exact import FLOATS, LAYOUTS, Case, check, leaf, value

from backbay import DType

INF, NAN = math.inf, math.nan
SHAPES = [(5,), (1,), (7, 3), (33, 1, 2), (3, 2, 2, 2), (4, 0), ()]
SUMS = 1e-13  # float64 sums in another order differ by some units of their last place


def by_rows(formula):
    """A formula of a row, given as a list of numbers, for all rows."""

    def whole(x, *columns, **attributes):
        rows = np.reshape(x, (x.shape[0] if x.ndim else 1, -1), order="F")
        others = [None if c is None else np.ravel(c).tolist() for c in columns]
        done = [formula(row.tolist(), *others, **attributes) for row in rows.T]
        return np.array(done, float).T.reshape((-1 if done else rows.shape[0], *x.shape[1:]), order="F")

    return whole


def softmax(row):
    powers = [math.exp(v - max(row)) for v in row]
    return [p / math.fsum(powers) for p in powers]


def mean(row):
    return math.fsum(row) / len(row)


def variance(row):
    return mean([(v - mean(row)) ** 2 for v in row])


def affine(row, weight, bias):
    weight, bias = weight or [1.0] * len(row), bias or [0.0] * len(row)
    return [v * w + b for v, w, b in zip(row, weight, bias, strict=True)]


def layer_norm(row, weight=None, bias=None, eps=1e-5):
    root = math.sqrt(variance(row) + float(np.float32(eps)))
    return affine([(v - mean(row)) / root for v in row], weight, bias)


def rms_norm(row, weight=None, eps=1e-5):
    root = math.sqrt(mean([v * v for v in row]) + float(np.float32(eps)))
    return affine([v / root for v in row], weight, None)


def l2_norm(row, eps=1e-12):
    root = max(math.sqrt(math.fsum(v * v for v in row)), float(np.float32(eps)))
    return [v / root for v in row]


def scalar(function):
    return lambda row: [function(row)]


FORMULAS = [
    ("softmax", softmax, {}, 1),
    ("layer_norm", layer_norm, {}, 3),
    ("layer_norm", layer_norm, {"eps": 0.5}, 3),
    ("rms_norm", rms_norm, {}, 2),
    ("rms_norm", rms_norm, {"eps": 0.1}, 2),
    ("l2_norm", l2_norm, {}, 1),
    ("l2_norm", l2_norm, {"eps": 2.5}, 1),
    ("cumsum", lambda row: [math.fsum(row[: i + 1]) for i in range(len(row))], {}, 1),
]
REDUCTIONS = {
    "sum_rows": math.fsum,
    "mean": mean,
    "variance": variance,
    "stddev": lambda row: math.sqrt(variance(row)),
}


def reduced(formula):
    whole = by_rows(scalar(formula))
    return lambda x: whole(x).reshape((1, *x.shape[1:]), order="F")


def kept(formula):
    whole = by_rows(formula)
    return lambda x, *columns, **attributes: whole(x, *columns, **attributes).reshape(x.shape, order="F")


def cases():
    for name, formula, attributes, operands in FORMULAS:
        for shape in SHAPES:
            column = shape[:1] or (1,)
            choices = [(), (column,), (column, column), (None, column)]
            for columns in [c for c in choices if len(c) < operands]:
                yield Case(name, (shape, *columns), kept(formula), attributes, SUMS)
    for name, formula in REDUCTIONS.items():
        yield from (Case(name, (shape,), reduced(formula), slack=SUMS) for shape in SHAPES)


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_each_row_is_its_formula_rounded_once(ctx, case):
    for dtype, layout in product(FLOATS, LAYOUTS):
        check(ctx, case, [dtype, DType.F32, DType.F16], [layout, "plain", "stepped"], None)


ROWS = [  # op, attributes, a row, what becomes of it
    ("rms_norm", {"eps": 0.0}, [0.0, 0.0], [NAN, NAN]),
    ("layer_norm", {"eps": 0.0}, [2.0, 2.0], [NAN, NAN]),
    ("l2_norm", {"eps": 0.0}, [0.0, 0.0], [NAN, NAN]),
    ("cumsum", {}, [INF, -INF], [INF, NAN]),
]


@pytest.mark.parametrize(("op", "attributes", "row", "result"), ROWS)
def test_the_edges_of_a_row_touch_no_other_row(ctx, op, attributes, row, result):
    other = [0.5, -1.5]
    y = value(ctx, getattr(leaf(ctx, np.array([row, other]).T), op)(ctx, **attributes)).T
    alone = value(ctx, getattr(leaf(ctx, other), op)(ctx, **attributes))
    np.testing.assert_array_equal(y, [result, alone])


@pytest.mark.parametrize("op", ["argsort", "top_k"])
@pytest.mark.parametrize("row", [[1.0, NAN, 1.0, INF, -INF, NAN], [NAN] * 5, [2.0] * 7, [0.0, -0.0]], ids=str)
def test_each_position_comes_once_with_ties_and_nan(ctx, op, row):
    x = leaf(ctx, row)
    y = value(ctx, x.top_k(ctx, len(row)) if op == "top_k" else x.argsort(ctx))
    assert sorted(y.tolist()) == list(range(len(row)))
