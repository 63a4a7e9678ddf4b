"""Parts of one tensor: halves that merged ops take, a part of itself, zeros around an image, copies over other parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backbay import Context, DType, Tensor

from ...cases.elementwise import repeated
from ...cases.matrix import product
from ...cases.spatial import conv2d_formula, planes
from ...draw.draw import Draw
from ...machines.fusible_chains import rounded
from ...numbers.comparison import must_equal
from ...numbers.number import Number, scalar
from ...suite.lab import Lab, scenario
from ..graphs import numbers
from .blocks import judge_block, normal

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
    name = draw.by_turn(*PAIRED)
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

    judge_block(lab, draw, pairs, trace, formula)


JOINED: dict[str, Callable[[Number, Number], Number]] = {
    "mul": lambda a, b: a * b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "div": lambda a, b: a / b,
}
"""Ops on two tensors, the second of which is repeated."""


@scenario("graph", smoke=2, default=16, nightly=160)
def a_tensor_and_a_part_of_it(lab: Lab, draw: Draw) -> None:
    """A result with a row, a column or an element of itself, which an op that works in place overwrites first."""
    name, part = draw.by_turn(*JOINED), draw.by_turn("row", "column", "element", "row", "rows")
    n, tokens, made = draw.pick(16, 8, 33), draw.pick(4, 2, 18), draw.by_turn("sqr", "mulmat", each=2)
    at, along = draw.pick(0, tokens - 1), draw.pick(0, n - 1)
    pairs = {"x": normal(draw, n, tokens), "w": normal(draw, n, n, scale=0.3)}
    rows, columns = {
        "row": (slice(at, at + 1), slice(0, n)),
        "column": (slice(0, tokens), slice(along, along + 1)),
        "element": (slice(at, at + 1), slice(along, along + 1)),
        "rows": (slice(0, tokens // 2), slice(0, n)),
    }[part]

    def trace(ctx: Context, t: dict[str, Tensor]) -> Tensor:
        x = t["x"].sqr(ctx) if made == "sqr" else t["w"].mulmat(ctx, t["x"]).relu(ctx)
        x = x.scale(ctx, 2.0) if name != "div" else x.clamp(ctx, 0.5, 4.0)
        t2 = x.slice(ctx, 1, rows.start, rows.stop).slice(ctx, 0, columns.start, columns.stop)
        y: Tensor = getattr(x, name)(ctx, t2)
        return y

    def formula(v: dict[str, Number]) -> Number:
        x = rounded(v["x"] * v["x"]) if made == "sqr" else rounded(product(v["w"], v["x"])).clip(0, np.inf)
        x = rounded(x * 2.0) if name != "div" else x.clip(0.5, 4.0)
        return rounded(JOINED[name](x, repeated(x[rows, columns], x.shape)))

    judge_block(lab, draw, pairs, trace, formula)


@scenario("graph", smoke=1, default=16, nightly=120)
def images_between_zeros(lab: Lab, draw: Draw) -> None:
    """pad before a convolution or a pool, which optimizers merge, and a bias and an activation behind it."""
    width, height, channels = draw.pick(6, 5, 9), draw.pick(5, 7), draw.pick(2, 1, 3)
    before, behind = draw.pick(1, 0, 2), draw.pick(1, 2, 0)
    k, s, p = draw.pick(3, 2, 1), draw.pick(1, 2), draw.pick(0, 1)
    name, gated = draw.by_turn("avg_pool2d", "conv2d", "im2col"), draw.flag()
    images = draw.pick(1, 2)
    pairs = {
        "x": normal(draw, width, height, channels, images),
        "w": normal(draw, k, k, channels, 4, scale=0.3),
    }
    pairs["bias"] = normal(draw, 1, 1, 4 if name == "conv2d" else channels)
    amounts = (before, behind, before, behind)

    def trace(ctx: Context, t: dict[str, Tensor]) -> Tensor:
        x = t["x"].pad_ext(ctx, *amounts) if before else t["x"].pad(ctx, behind, behind)
        if name == "im2col":
            return t["w"].im2col(ctx, x, s, s, p, p)
        y = x.avg_pool2d(ctx, k, s, float(p)) if name == "avg_pool2d" else t["w"].conv2d(ctx, x, s, s, p, p)
        y = y.add(ctx, t["bias"])
        return y.relu(ctx) if gated else y

    def formula(v: dict[str, Number]) -> Number:
        x = v["x"].moved(lambda a: np.pad(a, ((0, 0), (0, 0), (before, behind), (before, behind))))
        seen = planes(x, (k, k), (s, s, p, p, 1, 1))  # (N, C, OH, KH, OW, KW)
        if name == "im2col":
            n, _, rows, _, columns, _ = seen.shape
            return seen.transpose(0, 2, 4, 1, 3, 5).reshape(n, rows, columns, channels * k * k)
        if name == "avg_pool2d":
            ones = Number(np.ones((channels, k, k)), 0.0, x.cost)
            sums = seen.einsum("ncyixj,cij->ncyx", ones, k * k)
            y = rounded(sums / float(k * k))
        else:
            y = rounded(conv2d_formula(v["w"], x, s, s, p, p, 1, 1))
        y = rounded(y + v["bias"])
        return y.clip(0, np.inf) if gated else y

    judge_block(lab, draw, pairs, trace, formula)


# -- copies over other parts -----------------------------------------------------------------------------

Cut = tuple[slice, slice]
OVERLAPS: tuple[tuple[str, Cut, Cut], ...] = (
    # whether x is turned; the rows and columns of x, and those of dst
    ("turned", (slice(0, 8), slice(0, 8)), (slice(0, 8), slice(0, 8))),
    ("", (slice(0, 6), slice(0, 8)), (slice(2, 8), slice(0, 8))),
    ("turned", (slice(0, 5), slice(3, 8)), (slice(0, 5), slice(2, 7))),
    ("", (slice(3, 8), slice(0, 8)), (slice(0, 5), slice(0, 8))),
    ("", (slice(0, 8), slice(1, 8)), (slice(0, 8), slice(0, 7))),
    ("turned", (slice(0, 3), slice(0, 8)), (slice(0, 8), slice(2, 5))),
    ("", (slice(0, 8), slice(0, 7)), (slice(0, 8), slice(1, 8))),
    ("", (slice(4, 8), slice(0, 8)), (slice(0, 8, 2), slice(0, 8))),
    ("turned", (slice(2, 8), slice(0, 8)), (slice(0, 8), slice(0, 6))),
    ("", (slice(0, 8, 2), slice(0, 8)), (slice(4, 8), slice(0, 8))),
)
"""Copies of parts of a square into parts of the same square, in eighths of its sides."""


@scenario("graph", smoke=2, default=len(OVERLAPS) * 3, nightly=100)
def a_copy_reads_all_before_it_writes(lab: Lab, draw: Draw) -> None:
    """Copies of parts of a leaf over other parts of it, moved, spread and transposed in place."""
    way, source, target = draw.by_turn(*OVERLAPS)
    kind = draw.by_turn(DType.F32, DType.F16, DType.BF16, each=3)
    unit = draw.by_turn(40, 1, 9, each=len(OVERLAPS))  # a leaf of 400 KiB, which may be copied piece by piece
    with lab.backend.new_context() as ctx:
        held = numbers(draw, (8 * unit, 8 * unit), 100)
        leaf = ctx.empty(kind, 8 * unit, 8 * unit).from_floats(held)
        x, y = part_of(ctx, leaf, source, unit), part_of(ctx, leaf, target, unit)
        wrote = (x.permute(ctx, 1, 0) if way else x).copy(ctx, y)
        draw.note(f"{way} {source} of {unit} to {target}, {kind}")
        for turn in range(2):
            taken = held[scaled_cut(source, unit)].copy()
            held[scaled_cut(target, unit)] = taken.T if way else taken
            ctx.compute(wrote)
            must_equal(leaf.numpy(), held, f"after copy {turn} of a part of a leaf into it")


def scaled_cut(cut: Cut, unit: int) -> Cut:
    """A cut in units of so many elements; steps stay as they are."""
    rows, columns = (slice(part.start * unit, part.stop * unit, part.step) for part in cut)
    return rows, columns


def part_of(ctx: Context, leaf: Tensor, cut: Cut, unit: int) -> Tensor:
    rows, columns = scaled_cut(cut, unit)
    part = leaf.slice(ctx, 1, rows.start, rows.stop, rows.step or 1)
    return part.slice(ctx, 0, columns.start, columns.stop)
