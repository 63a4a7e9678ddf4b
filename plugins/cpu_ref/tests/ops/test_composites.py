"""Core's composite of attention gives the results of the reference's kernel; the conformance suite holds the others."""

import numpy as np
import pytest
from exact import leaf, numbers

from backbay import OPS, DType, Level
from backbay_cpu_ref import CpuRef

F32, F16, BF16 = DType.F32, DType.F16, DType.BF16
ATTENTION = {"scale": 0.5}
CALLS = [  # op, shapes of operands, attributes
    ("scaled_dot_product_attention", [(4, 4, 3), (4, 2, 5), (6, 2, 5)], ATTENTION),
    ("scaled_dot_product_attention", [(4, 4, 3, 2), (4, 2, 5, 2), (6, 2, 5, 2), (5, 8)], ATTENTION | {"softcap": 2.0}),
    ("scaled_dot_product_attention", [(4, 4, 3), (4, 2, 5), (6, 2, 5), (5, 3, 4)], ATTENTION | {"sinks": (4,)}),
    ("scaled_dot_product_attention", [(4, 4, 3), (4, 2, 5), (6, 2, 5)], ATTENTION | {"vmla": (6, 7, 4)}),
    ("scaled_dot_product_attention", [(4, 4, 3), (4, 2, 0), (6, 2, 0)], ATTENTION),
    ("scaled_dot_product_attention", [(4, 4, 0), (4, 2, 5), (6, 2, 5), (5,)], ATTENTION),
]  # fmt: skip
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
