"""Ops that a backend's life traces on small integers, each with its NumPy equivalent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from backbay import Tensor

from .machine import Choose
from .shadow import ContextShadow, Shadow
from .small_model import WIDTH

Array = NDArray[Any]
EXACT = 2048.0  # integers up to this are exact in every type that a backend may round activations to


class Life(Protocol):
    """The source of operands."""

    def open_contexts(self) -> list[ContextShadow]: ...

    def weight(self, choose: Choose) -> Shadow: ...


Traced = Callable[[Life, ContextShadow, Shadow, Choose], Shadow | None]


def _unary(
    peak: Callable[[float], float], trace: Callable[..., Tensor], function: Callable[[Array], Array]
) -> Traced:
    def made(life: Life, ctx: ContextShadow, x: Shadow, choose: Choose) -> Shadow | None:
        top = peak(x.peak)
        return Shadow(trace(x.tensor, ctx.ctx), ctx, "", top, (x,), function) if top <= EXACT else None

    return made


def _binary(life: Life, ctx: ContextShadow, x: Shadow, choose: Choose) -> Shadow | None:
    """add or mul with a node of the same shape, from this context or a leaf of another context."""
    others = [n for n in ctx.nodes if n.shape == x.shape]
    others += [
        n for c in life.open_contexts() if c is not ctx for n in c.nodes if n.is_leaf and n.shape == x.shape
    ]
    if not others:
        return None
    y = others[choose.below(len(others))]
    if choose.below(2):
        made = Shadow(x.tensor.mul(ctx.ctx, y.tensor), ctx, "", x.peak * y.peak, (x, y), np.multiply)
    else:
        made = Shadow(x.tensor.add(ctx.ctx, y.tensor), ctx, "", x.peak + y.peak, (x, y), np.add)
    return made if made.peak <= EXACT else None


def _rows(life: Life, ctx: ContextShadow, x: Shadow, choose: Choose) -> Shadow | None:
    """A view of some rows, along dimension 1."""
    extent = x.tensor.dim(1)
    if x.tensor.rank < 2 or extent < 2:
        return None
    low = choose.below(extent)
    high = low + 1 + choose.below(extent - low)
    return Shadow(
        x.tensor.slice(ctx.ctx, 1, low, high), ctx, "", x.peak, (x,), lambda a: a[low:high], view=True
    )  # fmt: skip


def _transposed(life: Life, ctx: ContextShadow, x: Shadow, choose: Choose) -> Shadow | None:
    if x.tensor.rank != 2:
        return None
    return Shadow(x.tensor.permute(ctx.ctx, 1, 0), ctx, "", x.peak, (x,), np.transpose, view=True)


def _product(life: Life, ctx: ContextShadow, x: Shadow, choose: Choose) -> Shadow | None:
    """The product of a weight and x."""
    w = life.weight(choose)
    peak = w.peak * x.peak * WIDTH
    if x.tensor.dim(0) != WIDTH or x.tensor.rank != 2 or peak > EXACT:
        return None
    return Shadow(w.tensor.mulmat(ctx.ctx, x.tensor), ctx, "", peak, (w, x), lambda a, b: b @ a.T)


TRACED: dict[str, Traced] = {
    "neg": _unary(lambda p: p, Tensor.neg, np.negative),
    "double": _unary(lambda p: 2 * p, lambda x, ctx: x.scale(ctx, 2.0), lambda a: 2 * a),
    "relu": _unary(lambda p: p, Tensor.relu, lambda a: np.maximum(a, 0)),
    "sqr": _unary(lambda p: p * p, Tensor.sqr, np.square),
    "contiguous": _unary(lambda p: p, Tensor.contiguous, lambda a: a),
    "sum_rows": _unary(lambda p: p * WIDTH, Tensor.sum_rows, lambda a: a.sum(-1, keepdims=True)),
    "binary": _binary,
    "slice": _rows,
    "permute": _transposed,
    "product": _product,
}
