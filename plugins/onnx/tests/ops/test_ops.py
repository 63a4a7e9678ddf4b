"""Calls that the conformance suite does not draw, and regressions of this plugin, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_oracle import Case, Scene, check

import backbay
from backbay import DType, ops

F16 = DType.F16
CASES: dict[str, Case] = {}


def case(op: Any, what: str) -> Any:
    def add(function: Case) -> Case:
        name = f"{op.name} {what}"
        assert name not in CASES
        CASES[name] = function
        return function

    return add


# -- rank 0 and empty operands ---------------------------------------------------------------------------

UNARY = (
    ops.neg, ops.fill, ops.softmax, ops.l2_norm, ops.rms_norm, ops.layer_norm, ops.sum_rows, ops.mean, ops.variance,
    ops.cumsum,
)  # fmt: skip
for _op in UNARY:
    _args = (2.5,) if _op is ops.fill else ()
    case(_op, "scalar")(lambda s, n=_op.name, a=_args: getattr(s.floats(), n)(s.ctx, *a))
for _op in (ops.add, ops.sub, ops.mul, ops.div):
    case(_op, "scalar")(lambda s, n=_op.name: getattr(s.floats(6, 4), n)(s.ctx, s.floats().exp(s.ctx)))
case(ops.pad, "scalar, by nothing")(lambda s: s.floats().pad(s.ctx, 0, 0))
case(ops.reshape, "to scalar")(lambda s: s.floats(1, 1).reshape(s.ctx).neg(s.ctx))
case(ops.rows, "one")(lambda s: s.floats(6, 9).rows(s.ctx, s.ints(below=9)))
case(ops.mean, "of nothing")(lambda s: s.floats(0, 3).mean(s.ctx))
case(ops.sum_rows, "of nothing")(lambda s: s.floats(0, 3).sum_rows(s.ctx))
case(ops.mulmat, "no terms")(lambda s: s.floats(0, 8).mulmat(s.ctx, s.floats(0, 5)))
case(ops.mulmat, "no terms in a batch")(lambda s: s.floats(0, 7, 3).mulmat(s.ctx, s.floats(0, 2, 3)))
case(ops.conv1d_dw, "no data")(lambda s: s.floats(0, 4, 2).conv1d_dw(s.ctx, s.floats(3, 1, 4), 1, 2))
case(ops.conv3d, "no data")(lambda s: s.floats(2, 1, 1, 2).conv3d(s.ctx, s.floats(3, 0, 2, 2), 2, p1=1))
case(ops.conv1d_dw, "nothing")(lambda s: s.floats(9, 4, 0).conv1d_dw(s.ctx, s.floats(3, 1, 4)))
case(ops.interpolate, "nearest, empty")(lambda s: s.floats(5, 4, 3).interpolate(s.ctx, (0, 4, 3), "nearest"))
case(ops.interpolate, "bilinear, empty")(
    lambda s: s.floats(5, 4, 3).interpolate(s.ctx, (0, 4, 3), "bilinear")
)
case(ops.rope, "no tokens")(lambda s: s.floats(8, 3, 0).rope(s.ctx, s.ints(0), 8, 1e4))
for _what, _tokens, _history in (("no history", 3, 0), ("no tokens", 0, 5)):
    case(ops.scaled_dot_product_attention, _what)(
        lambda s, t=_tokens, h=_history: s.floats(16, 8, t).scaled_dot_product_attention(
            s.ctx, s.floats(16, 2, h), s.floats(12, 2, h), scale=0.25
        )
    )
for _what, _d, _dv, _heads in (
    ("tiled", 24, 24, 4),
    ("many queries, other values", 24, 16, 4),
    ("many queries, shared", 24, 24, 2),
):
    case(ops.scaled_dot_product_attention, _what)(
        lambda s, d=_d, dv=_dv, h=_heads: s.floats(d, 4, 100).scaled_dot_product_attention(
            s.ctx, s.floats(d, h, 130), s.floats(dv, h, 130), scale=0.25
        )
    )

# -- fewer or more dimensions than usual -----------------------------------------------------------------

case(ops.permute, "higher")(lambda s: s.floats(5, 3).permute(s.ctx, 1, 3, 0, 2).contiguous(s.ctx))
case(ops.concat, "new dimension")(lambda s: s.floats(6).concat(s.ctx, s.floats(6), 2))
case(ops.conv2d, "one image")(lambda s: s.floats(3, 2, 4, 5).conv2d(s.ctx, s.floats(7, 6, 4)))
case(ops.im2col, "one image")(lambda s: s.floats(3, 2, 4, 5).im2col(s.ctx, s.floats(7, 6, 4)))
case(ops.rope, "one head")(lambda s: s.floats(8).rope(s.ctx, s.ints(1, below=99), 8, 1e4))
case(ops.argsort, "as ids")(lambda s: s.floats(6, 9).rows(s.ctx, s.floats(9).argsort(s.ctx)))

# -- views and writes: each is lowered to a reshape and slice, a slice of a row, or a gather or scatter ----

for _what, _args in (
    ("plain", (8, (4, 3))), ("rows", (40, (4, 2), (40,))), ("columns", (8, (3, 4), (40,))), ("third", (0, (2, 5, 3), (8, 40))),
    ("swapped", (0, (2, 3, 5), (40, 8))), ("overlapping", (4, (3, 4), (8,))), ("repeated", (4, (3, 4), (0,))),
    ("odd", (12, (3, 4), (28,))), ("flat", (16, (20,))), ("scalar", (16, ())), ("none", (4, (0, 3), (8,))),
    ("split rows", (8, (2, 2, 3), (20, 40))),
):  # fmt: skip
    case(ops.view, _what)(lambda s, a=_args: s.floats(10, 6).view(s.ctx, *a).scale(s.ctx, 2.0))
case(ops.view, "of a view")(
    lambda s: s.floats(10, 6).slice(s.ctx, 1, 2, 6).view(s.ctx, 8, (4, 3), (40,)).contiguous(s.ctx)
)
case(ops.view, "of a result")(
    lambda s: s.floats(10, 6).neg(s.ctx).view(s.ctx, 8, (4, 3), (40,)).contiguous(s.ctx)
)
case(ops.view, "of f16")(lambda s: s.floats(10, 6, dtype=F16).view(s.ctx, 4, (4, 3), (20,)).contiguous(s.ctx))
case(ops.view, "of quantized")(
    lambda s: s.quantized(DType.Q4_0, 64, 6).view(s.ctx, 18, (32, 3), (36,)).mulmat(s.ctx, s.floats(32, 2))
)
case(ops.view, "as result")(lambda s: s.floats(10, 6).neg(s.ctx).view(s.ctx, 8, (4, 3), (40,)))


def written(make: Any, write: Any) -> Case:
    """The written leaf as it is afterwards, and the alias."""

    def run(s: Scene) -> Any:
        state = make(s)
        return [state, write(s, state)]

    return run


case(ops.copy, "column")(
    written(lambda s: s.floats(6, 4), lambda s, x: s.floats(1, 4).copy(s.ctx, x.slice(s.ctx, 0, 2, 3)))
)
case(ops.copy, "permuted")(
    written(lambda s: s.floats(6, 4), lambda s, x: s.floats(4, 6).copy(s.ctx, x.permute(s.ctx, 1, 0)))
)
case(ops.copy, "overlapping")(
    written(
        lambda s: s.floats(6, 4), lambda s, x: x.slice(s.ctx, 1, 0, 3).copy(s.ctx, x.slice(s.ctx, 1, 1, 4))
    )
)
case(ops.copy, "steps")(
    written(lambda s: s.floats(6, 8), lambda s, x: s.floats(6, 4).copy(s.ctx, x.slice(s.ctx, 1, 0, 8, 2)))
)


@pytest.mark.parametrize("name", CASES)
def test_an_op_gives_the_result_of_the_reference(name: str) -> None:
    check(CASES[name], sums=128, onnx={"precision": "exact"})


# -- faults of ONNX Runtime that this plugin works around ------------------------------------------------


def test_attention_over_permuted_halves_survives() -> None:
    """A fusion of ONNX Runtime ended the process here."""

    def attend(s: Scene) -> Any:
        q, k = s.floats(8, 4, 2, 2, dtype=F16), s.floats(8, 2, 257, 2, dtype=F16)
        v = s.floats(32, 2, 2, 257, dtype=F16).permute(s.ctx, 0, 1, 3, 2)
        return q.scaled_dot_product_attention(s.ctx, k, v, scale=0.125)

    check(attend)


def test_small_angles_below_zero_keep_their_digits() -> None:
    with backbay.open(None, backend="onnx") as opened, opened.new_context() as ctx:
        x = ctx.from_floats(np.repeat([0.0, -1.0], 32), 64, 1, 1)
        y = x.rope(ctx, ctx.from_ints([7]), 64, 5e5, -1.0, "neox")
        ctx.compute(y)
        np.testing.assert_allclose(
            y.numpy().ravel()[:32], np.sin(-7 * 5e5 ** (-np.arange(32) / 32)), rtol=1e-5
        )
