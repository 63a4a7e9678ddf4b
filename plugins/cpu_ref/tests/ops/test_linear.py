"""Triangles and triangular systems against PyTorch and ONNX's node tests."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from exact import normal

rng = np.random.default_rng(11)
VARIANTS = list(product((True, False), repeat=3))


numbers = partial(normal, rng)


def systems(n, m, left, *batch):
    """A well-conditioned matrix, both of its triangles full, and a right-hand side."""
    a = numbers(*batch, n, n) / max(n, 1) + 2 * np.eye(n)
    return a.astype(np.float32).astype(np.float64), numbers(*batch, *((n, m) if left else (m, n)))


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


def test_solve_tri_defaults_to_lower_left(call):
    a, b = systems(4, 3, True)
    np.testing.assert_array_equal(call("solve_tri", a, b), call("solve_tri", a, b, True, True, False))


def test_solve_tri_of_shapes_that_differ_by_trailing_ones(call):
    a, b = systems(3, 2, True)
    y = call("solve_tri", a, b)
    np.testing.assert_array_equal(call("solve_tri", a[None, None], b), y)
    np.testing.assert_array_equal(call("solve_tri", a, b[None]), y[None])
    np.testing.assert_array_equal(
        call("solve_tri", a[:1, :1], b[0]), b[0].astype(np.float32) / a[0, 0].astype(np.float32)
    )


def test_tri_is_onnxs(call):
    from onnx_cases import cases_of

    kinds = {(1, 0): "upper-diag", (1, 1): "upper", (0, 0): "lower-diag", (0, -1): "lower"}
    ran = []
    for case in cases_of("Trilu"):
        node, (inputs, outputs) = case.model.graph.node[0], case.data_sets[0]
        if inputs[0].shape[-1] == inputs[0].shape[-2]:
            upper = node.attribute[0].i if node.attribute else 1
            x, k = inputs[0], int(inputs[1]) if len(inputs) > 1 else 0
            if (upper, k) in kinds:
                y = call("tri", x.astype(np.float32), kinds[upper, k])
                np.testing.assert_array_equal(y, outputs[0], err_msg=case.name)
                ran.append(case.name)
    assert len(ran) >= 3, ran
