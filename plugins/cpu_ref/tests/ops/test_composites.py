"""Core's composites give the results of the reference's kernels."""

import numpy as np
import pytest
from exact import leaf, numbers

from backbay import OPS, DType, Level
from backbay_cpu_ref import CpuRef

F32, F16, BF16 = DType.F32, DType.F16, DType.BF16
ATTENTION = {"scale": 0.5}
CALLS = [  # op, shapes of operands, attributes; leaves of ids are lists
    ("silu", [(5, 3)], {}), ("silu", [(5, 3), (5, 3)], {}),
    ("gelu", [(5, 3)], {}), ("gelu", [(5, 3), (5, 3)], {}),
    ("quick_gelu", [(5, 3)], {}), ("quick_gelu", [(5, 3), (5, 3)], {}),
    ("relu", [(5, 3)], {}), ("relu", [(5, 3), (5, 3)], {}),
    ("swiglu", [(5, 3), (5, 3)], {"alpha": 1.702, "limit": 0.8}),
    ("sqr", [(5, 3)], {}), ("neg", [(5, 3)], {}),
    ("add_id", [(4, 2, 3), (4, 5), [[0, 4], [1, 1], [3, 2]]], {}),
    ("rms_norm", [(33, 3)], {"eps": 1e-5}), ("rms_norm", [(33, 3), (33,)], {"eps": 1e-5}),
    ("layer_norm", [(33, 3)], {"eps": 1e-5}), ("layer_norm", [(33, 3), (33,)], {}),
    ("layer_norm", [(33, 3), (33,), (33,)], {}), ("layer_norm", [(33, 3), None, (33,)], {}),
    ("l2_norm", [(33, 3)], {"eps": 1e-6}), ("variance", [(33, 3)], {}), ("stddev", [(33, 3)], {}),
    ("top_k", [(9, 3)], {"k": 4}), ("top_k", [(9, 3)], {"k": 0}),
    ("scaled_dot_product_attention", [(4, 4, 3), (4, 2, 5), (6, 2, 5)], ATTENTION),
    ("scaled_dot_product_attention", [(4, 4, 3, 2), (4, 2, 5, 2), (6, 2, 5, 2), (5, 8)], ATTENTION | {"softcap": 2.0}),
    ("scaled_dot_product_attention", [(4, 4, 3), (4, 2, 5), (6, 2, 5), (5, 3, 4)], ATTENTION | {"sinks": (4,)}),
    ("scaled_dot_product_attention", [(4, 4, 3), (4, 2, 5), (6, 2, 5)], ATTENTION | {"vmla": (6, 7, 4)}),
    ("scaled_dot_product_attention", [(4, 4, 3), (4, 2, 0), (6, 2, 0)], ATTENTION),
    ("scaled_dot_product_attention", [(4, 4, 0), (4, 2, 5), (6, 2, 5), (5,)], ATTENTION),
]  # fmt: skip
ONLY_COMPOSITES = ["duplicate", "pad", "repeat_4d", "set"]
"""Ops without a kernel in the reference: its tests of them by formula test core's composites."""
STEPS = {F32: 2.0**-20, F16: 2.0**-10, BF16: 2.0**-7}
"""A composite rounds between its steps: some units of f32's last place, and then those of the result's dtype."""


def lacking(*names):
    """The reference without some kernels."""

    class Lacking(CpuRef):
        kernels = {op: kernel for op, kernel in CpuRef.kernels.items() if op.name not in names}

    return Lacking


def made(ctx, op, operands, attributes, dtype):
    random = np.random.default_rng(7)

    def tensor(shape, of=dtype):
        if isinstance(shape, list):
            return ctx.from_ints(shape)
        return leaf(ctx, numbers(random, shape, of), of) if isinstance(shape, tuple) else shape

    small = F16 if op == "scaled_dot_product_attention" and dtype is BF16 else dtype  # masks are not bf16
    x, *others = [tensor(shape, small if i == 3 else dtype) for i, shape in enumerate(operands)]
    y = getattr(x, op)(ctx, *others, **{name: tensor(given) for name, given in attributes.items()})
    ctx.compute(y)
    return y


@pytest.mark.parametrize(("op", "operands", "attributes"), CALLS, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_a_composite_gives_the_result_of_the_kernel(op, operands, attributes, dtype):
    with CpuRef() as whole, lacking(op)() as backend, whole.new_context() as a, backend.new_context() as b:
        kernel, composite = made(a, op, operands, attributes, dtype), made(b, op, operands, attributes, dtype)
        assert whole.supports(OPS[op], []).level is Level.KERNEL
        assert backend.supports(OPS[op], []).level is Level.COMPOSITE
        assert (kernel.dtype, kernel.shape) == (composite.dtype, composite.shape)
        step = STEPS.get(kernel.dtype, 0)
        np.testing.assert_allclose(
            composite.numpy(), kernel.numpy(), rtol=step, atol=step if dtype is F32 else step / 8
        )


def test_every_composite_is_among_these_tests():
    covered = {op for op, _, _ in CALLS} | set(ONLY_COMPOSITES)
    assert covered == {name for name, op in OPS.items() if op.composite is not None and not op.inline}
    assert all(OPS[name] not in CpuRef.kernels for name in ONLY_COMPOSITES)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "l2_norm", "stddev"])
def test_a_composite_keeps_sums_of_small_floats_in_f32(op, dtype):
    with (
        lacking("rms_norm", "layer_norm", "l2_norm", "stddev", "variance")() as backend,
        backend.new_context() as ctx,
    ):
        x = leaf(ctx, [300.0, -300.0, 300.0, -300.0], dtype)  # whose squares no f16 holds
        y = getattr(x, op)(ctx)
        ctx.compute(y)
        expected = {"l2_norm": 0.5, "stddev": 300.0}.get(op, 1.0)
        assert y.dtype is dtype
        assert np.abs(y.numpy()).tolist() == [expected] * y.size


def test_views_of_a_composite_look_at_its_result():
    with lacking("silu", "sqr")() as backend, backend.new_context() as ctx:
        x = leaf(ctx, np.arange(6.0).reshape(2, 3).T)
        y = x.sqr(ctx).slice(ctx, 1, 1, 2).permute(ctx, 1, 0)
        ctx.compute(y)
        assert y.numpy().T.tolist() == [[9.0, 16.0, 25.0]]
