"""Two views of one tensor as the operands of one op, as in models with a fused gate and up projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backbay import Context, Tensor

from ..cases.matrix import product
from ..draw.draw import Draw
from ..numbers.number import Number, scalar
from ..suite.lab import Lab
from ..suite.scenario import scenario
from .blocks import judge_block, normal, rounded

ALPHA, LIMIT = 1.5, 2.0


def swiglu(x: Number, up: Number) -> Number:
    gate = x.clip(-np.inf, LIMIT)
    gate = gate * (gate * scalar(ALPHA, x.cost)).sigmoid()
    return gate * up.clip(-LIMIT, LIMIT) + gate


PAIRED: dict[str, tuple[tuple[float, ...], Callable[[Number, Number], Any]]] = {
    "silu": ((), lambda a, b: rounded(a * a.sigmoid()) * b),
    "sub": ((), lambda a, b: a - b),
    "relu": ((), lambda a, b: a.clip(0, np.inf) * b),
    "swiglu": ((ALPHA, LIMIT), swiglu),
    "mul": ((), lambda a, b: a * b),
}
"""Ops on two halves of a tensor, with attributes and formulas."""


@scenario("graph", smoke=3, default=20, nightly=200)
def halves_of_one_tensor(lab: Lab, draw: Draw) -> None:
    """Both orders of the halves of a leaf or of a product."""
    name = list(PAIRED)[draw.turn % len(PAIRED)]
    attributes, function = PAIRED[name]
    n, tokens, turned, made = draw.pick(16, 8, 33), draw.pick(3, 1, 17), draw.flag(), draw.flag()
    pairs = {"x": normal(draw, 2 * n, tokens), "w": normal(draw, 2 * n, 2 * n, scale=0.3)}

    def trace(ctx: Context, t: dict[str, Tensor]) -> Tensor:
        whole = t["w"].mulmat(ctx, t["x"]) if made else t["x"]
        halves = [whole.slice(ctx, 0, low, low + n) for low in ((n, 0) if turned else (0, n))]
        y: Tensor = getattr(halves[0], name)(ctx, halves[1], *attributes)
        return y

    def formula(v: dict[str, Number]) -> Number:
        whole = rounded(product(v["w"], v["x"])) if made else v["x"]
        first, second = whole[..., :n], whole[..., n:]
        return rounded(function(second, first) if turned else function(first, second))

    first, second = ({key: pair[i] for key, pair in pairs.items()} for i in (0, 1))
    judge_block(lab, draw, first, trace, formula, second)
