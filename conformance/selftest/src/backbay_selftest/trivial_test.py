"""The simplest test: each op once, on ones. A fault that this test sees is trivial."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from backbay import OPS, Backend, Context, DType, Tensor
from backbay.internals import trace_op

Traced = Callable[[Context, Tensor], Tensor]


def _ids(ctx: Context, *shape: int) -> Tensor:
    return ctx.from_ints(np.zeros(shape[::-1], np.int32), *shape)


def _weight(ctx: Context, *shape: int) -> Tensor:
    return ctx.from_floats(np.ones(shape[::-1], np.float32), *shape)


def _of(name: str, count: int = 1) -> Traced:
    """An op of so many operands, all of them x, with its other parameters' defaults."""
    op = OPS[name]
    rest = [() if p.variadic else p.default for p in op.parameters[count:]]
    return lambda ctx, x: trace_op(ctx, op, [x] * count + rest)


UNARY = (
    "neg", "sqr", "sqrt", "exp", "sin", "cos", "tanh", "sigmoid", "relu", "silu", "gelu", "gelu_erf", "quick_gelu", "softplus",
    "softmax", "rms_norm", "layer_norm", "l2_norm", "sum_rows", "mean", "variance", "stddev", "cumsum", "argsort",
    "contiguous", "duplicate",
)  # fmt: skip
ON_ONES: dict[str, Traced] = {
    **{name: _of(name) for name in UNARY},
    **{name: _of(name, 2) for name in ("add", "sub", "mul", "div")},
    "scale": lambda ctx, x: x.scale(ctx, 2.0),
    "clamp": lambda ctx, x: x.clamp(ctx, 0.0, 2.0),
    "fill": lambda ctx, x: x.fill(ctx, 3.0),
    "cast": lambda ctx, x: x.cast(ctx, DType.F16),
    "swiglu": lambda ctx, x: x.swiglu(ctx, x, 1.702, 7.0),
    "mulmat": lambda ctx, x: _weight(ctx, 8, 4).mulmat(ctx, x),
    "mulmat_full_prec": lambda ctx, x: _weight(ctx, 8, 4).mulmat_full_prec(ctx, x),
    "mulmat_id": lambda ctx, x: _weight(ctx, 8, 4, 2).mulmat_id(ctx, x.reshape(ctx, 8, 1, 4), _ids(ctx, 1, 4)),
    "add_id": lambda ctx, x: x.reshape(ctx, 8, 1, 4).add_id(ctx, _weight(ctx, 8, 2), _ids(ctx, 1, 4)),
    "top_k": lambda ctx, x: x.top_k(ctx, 2),
    "permute": lambda ctx, x: x.permute(ctx, 1, 0),
    "slice": lambda ctx, x: x.slice(ctx, 1, 1, 3),
    "pad": lambda ctx, x: x.pad(ctx, 1),
    "concat": lambda ctx, x: x.concat(ctx, x, 0),
    "repeat": lambda ctx, x: x.repeat(ctx, 1, 2),
    "rows": lambda ctx, x: x.rows(ctx, _ids(ctx, 2)),
    "copy": lambda ctx, x: x.copy(ctx, ctx.zeros(DType.F32, 8, 4)),
    "set_rows": lambda ctx, x: ctx.zeros(DType.F32, 8, 4).set_rows(ctx, x.slice(ctx, 1, 0, 1), _ids(ctx, 1)),
    "conv2d": lambda ctx, x: _weight(ctx, 3, 3, 1, 1).conv2d(ctx, x.reshape(ctx, 8, 4, 1, 1)),
    "conv3d": lambda ctx, x: _weight(ctx, 2, 2, 1, 1).conv3d(ctx, x.reshape(ctx, 8, 4, 1, 1), 1),
    "conv1d_dw": lambda ctx, x: x.conv1d_dw(ctx, _weight(ctx, 3, 1, 4)),
    "im2col": lambda ctx, x: _weight(ctx, 3, 3, 1, 1).im2col(ctx, x.reshape(ctx, 8, 4, 1, 1)),
    "avg_pool2d": lambda ctx, x: x.avg_pool2d(ctx, 2, 2),
    "interpolate": lambda ctx, x: x.interpolate(ctx, (16, 8)),
    "rope": lambda ctx, x: x.reshape(ctx, 8, 1, 4).rope(ctx, ctx.from_ints([0, 1, 2, 3]), 8, 10000.0),
    "ssm_conv": lambda ctx, x: x.ssm_conv(ctx, _weight(ctx, 4, 4)),
    "diag": lambda ctx, x: x.slice(ctx, 1, 0, 1).contiguous(ctx, 8).diag(ctx),
    "tri": lambda ctx, x: x.slice(ctx, 0, 0, 4).contiguous(ctx).tri(ctx, "lower"),
    "solve_tri": lambda ctx, x: x.slice(ctx, 0, 0, 4).contiguous(ctx).solve_tri(ctx, _weight(ctx, 2, 4)),
    "scaled_dot_product_attention": lambda ctx, x: x.reshape(ctx, 8, 1, 4).scaled_dot_product_attention(
        ctx, x.reshape(ctx, 8, 1, 4), x.reshape(ctx, 8, 1, 4), scale=0.5
    ),
}  # fmt: skip


def on_ones(backend: Backend) -> list[NDArray[np.float32] | str]:
    """The result of each op on ones of shape (8, 4), or the name of its error."""
    results: list[NDArray[np.float32] | str] = []
    for trace in ON_ONES.values():
        with backend.new_context() as ctx:
            try:
                y = trace(ctx, _weight(ctx, 8, 4))
                ctx.compute(y)
                results.append(y.floats())
            except Exception as error:  # noqa: BLE001 - what it raises is a result like others
                results.append(type(error).__name__)
    return results


def differs(wrong: Sequence[NDArray[np.float32] | str], right: Sequence[NDArray[np.float32] | str]) -> bool:
    """Whether a test with a usual tolerance tells two sets of results apart."""
    for a, b in zip(wrong, right, strict=True):
        if isinstance(a, str) or isinstance(b, str):
            if not (isinstance(a, str) and isinstance(b, str) and a == b):
                return True
        elif a.shape != b.shape or not np.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True):
            return True
    return False
