"""Diagonals, triangles and triangular systems against NumPy, PyTorch and ONNX's node tests."""

import math
import warnings
from functools import partial
from itertools import product

import numpy as np
import pytest
from exact import normal

from backbay import DType

rng = np.random.default_rng(11)
NAN, INF = math.nan, math.inf
KINDS = {  # by the distance of a column from the diagonal
    "upper-diag": lambda x: np.triu(x, 0),
    "upper": lambda x: np.triu(x, 1),
    "lower-diag": lambda x: np.tril(x, 0),
    "lower": lambda x: np.tril(x, -1),
}
VARIANTS = list(product((True, False), repeat=3))


numbers = partial(normal, rng)


@pytest.mark.parametrize("shape", [(5,), (1, 4), (3, 1, 6), (2, 3, 1, 1), (2, 0, 1, 3)])
def test_diag_is_numpys(call, shape):
    x = numbers(*shape)
    y = call("diag", x)
    rows = x.reshape(-1, shape[-1])
    assert y.shape == (*shape[:-2], shape[-1], shape[-1])
    for matrix, row in zip(y.reshape(len(rows), shape[-1], shape[-1]), rows, strict=True):
        np.testing.assert_array_equal(matrix, np.diag(row))


def test_diag_of_nothing(call):
    assert call("diag", np.zeros(0)).shape == (0, 0)


def test_diag_is_zero_beside_nan_and_infinities(call):
    y = call("diag", np.array([NAN, INF, -0.0]))
    np.testing.assert_array_equal(y, [[NAN, 0, 0], [0, INF, 0], [0, 0, 0]])
    assert np.signbit(y[2, 2])
    assert not np.signbit(y[0, 1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (2, 3, 4, 4), (0, 3, 3), (2, 0, 0), (1,)])
def test_tri_is_numpys(call, kind, shape):
    x = numbers(*shape)
    expected = KINDS[kind](np.atleast_2d(x)).reshape(shape)
    np.testing.assert_array_equal(call("tri", x, kind), expected)


def test_tri_drops_nan_and_infinities(call):
    x = np.array([[1, NAN], [INF, 4]])
    np.testing.assert_array_equal(call("tri", x, "lower-diag"), [[1, 0], [INF, 4]])
    np.testing.assert_array_equal(call("tri", x, "upper"), [[0, NAN], [0, 0]])


def systems(n, m, left, *batch):
    """A well-conditioned matrix, both of its triangles full, and a right-hand side."""
    a = numbers(*batch, n, n) / max(n, 1) + 2 * np.eye(n)
    return a.astype(np.float32).astype(np.float64), numbers(*batch, *((n, m) if left else (m, n)))


@pytest.mark.parametrize(("lower", "left", "unit"), VARIANTS)
@pytest.mark.parametrize(("n", "m", "batch"), [(1, 1, ()), (5, 3, ()), (17, 2, (2, 3)), (33, 5, (2,))])
def test_solve_tri_solves(call, lower, left, unit, n, m, batch):
    a, b = systems(n, m, left, *batch)
    t = np.tril(a) if lower else np.triu(a)
    if unit:
        t[..., np.arange(n), np.arange(n)] = 1
    expected = (
        np.linalg.solve(t, b)
        if left
        else np.linalg.solve(t.swapaxes(-1, -2), b.swapaxes(-1, -2)).swapaxes(-1, -2)
    )
    np.testing.assert_allclose(call("solve_tri", a, b, lower, left, unit), expected, rtol=2**-24, atol=1e-13)


@pytest.mark.parametrize(("lower", "left", "unit"), VARIANTS)
def test_solve_tri_is_torchs(call, lower, left, unit):
    torch = pytest.importorskip("torch")
    a, b = systems(9, 4, left, 2, 3)
    theirs = torch.linalg.solve_triangular(
        torch.from_numpy(a), torch.from_numpy(b), upper=not lower, left=left, unitriangular=unit
    )
    np.testing.assert_allclose(
        call("solve_tri", a, b, lower, left, unit), theirs.numpy(), rtol=2**-24, atol=1e-13
    )


@pytest.mark.parametrize(("lower", "left", "unit"), VARIANTS)
def test_solve_tri_reads_one_triangle_only(call, lower, left, unit):
    a, b = systems(6, 2, left)
    kept = np.tril(np.ones((6, 6)), -1 if unit else 0)
    spoiled = np.where(kept if lower else kept.T, a, NAN)
    np.testing.assert_array_equal(
        call("solve_tri", spoiled, b, lower, left, unit), call("solve_tri", a, b, lower, left, unit)
    )


def test_solve_tri_defaults_to_lower_left(call):
    a, b = systems(4, 3, True)
    np.testing.assert_array_equal(call("solve_tri", a, b), call("solve_tri", a, b, True, True, False))


def test_solve_tri_keeps_nan_in_its_column_and_zero_pivots_below(call):
    a, b = systems(4, 3, True)
    b[1, 2] = NAN
    np.testing.assert_array_equal(np.isnan(call("solve_tri", a, b)), np.outer([0, 1, 1, 1], [0, 0, 1]))
    a[2, 2], b = 0, systems(4, 3, True)[1]
    y = call("solve_tri", a, b)
    np.testing.assert_array_equal(np.isfinite(y), np.outer([1, 1, 0, 0], [1, 1, 1]))


def test_solve_tri_of_shapes_that_differ_by_trailing_ones(call):
    a, b = systems(3, 2, True)
    y = call("solve_tri", a, b)
    np.testing.assert_array_equal(call("solve_tri", a[None, None], b), y)
    np.testing.assert_array_equal(call("solve_tri", a, b[None]), y[None])
    np.testing.assert_array_equal(
        call("solve_tri", a[:1, :1], b[0]), b[0].astype(np.float32) / a[0, 0].astype(np.float32)
    )


@pytest.mark.parametrize(("n", "m", "batch"), [(0, 3, ()), (3, 0, ()), (2, 2, (0, 1))])
def test_solve_tri_of_nothing(call, n, m, batch):
    a, b = systems(n, m, True, *batch)
    assert call("solve_tri", a, b).shape == b.shape


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
def test_dtypes(backend, dtype):
    with backend.new_context() as ctx:
        a = ctx.empty(dtype, 2, 2).from_floats(np.array([[2, 0], [1, 4]]))
        diagonal = ctx.empty(dtype, 2).from_floats(np.array([1, 2])).diag(ctx)
        triangle, solved = a.tri(ctx, "lower"), a.solve_tri(ctx, a)
        ctx.compute(diagonal, triangle, solved)
        assert (diagonal.dtype, triangle.dtype, solved.dtype) == (dtype, dtype, DType.F32)
        np.testing.assert_array_equal(diagonal.numpy(), [[1, 0], [0, 2]])
        np.testing.assert_array_equal(triangle.numpy(), [[0, 0], [1, 0]])
        np.testing.assert_array_equal(solved.numpy(), np.eye(2))


def test_tri_is_onnxs(call):
    pytest.importorskip("onnx")
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the cases of other ops overflows on purpose
        cases = collect_testcases(None)
    kinds = {(1, 0): "upper-diag", (1, 1): "upper", (0, 0): "lower-diag", (0, -1): "lower"}
    ran = []
    for case in cases:
        node, (inputs, outputs) = case.model.graph.node[0], case.data_sets[0]
        if node.op_type == "Trilu" and inputs[0].shape[-1] == inputs[0].shape[-2]:
            upper = node.attribute[0].i if node.attribute else 1
            x, k = inputs[0], int(inputs[1]) if len(inputs) > 1 else 0
            if (upper, k) in kinds:
                y = call("tri", x.astype(np.float32), kinds[upper, k])
                np.testing.assert_array_equal(y, outputs[0], err_msg=case.name)
                ran.append(case.name)
    assert len(ran) >= 3, ran
