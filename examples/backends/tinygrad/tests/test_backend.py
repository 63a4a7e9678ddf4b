"""The backend is found by its name, and computes. The conformance suite tests everything else."""

import numpy as np

import backbay


def test_it_computes() -> None:
    with backbay.open(None, backend="tinygrad") as backend, backend.new_context() as ctx:
        w = ctx.from_floats([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])  # f32[2,3]: dimension 0 is the innermost
        x = ctx.from_floats([[1.0, 1.0]])
        y = w.mulmat(ctx, x).silu(ctx)  # core composes silu of sigmoid and mul
        ctx.compute(y)
        np.testing.assert_allclose(y.floats(), [2.857722, 6.993622, 10.999816], rtol=1e-6)
        x.from_floats([[1.0, 0.0]])
        ctx.compute(y)  # the same graph again, with other data in its leaf
        np.testing.assert_allclose(y.floats(), [0.7310586, 2.857722, 4.966536], rtol=1e-6)
