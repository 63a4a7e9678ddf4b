"""One weight of a file, used in several ways at once: its parts, and ops on nothing but the weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import numpy as np

from backbay import Backend, Context, DType, Tensor, ops

from ...draw.draw import Draw
from ...draw.operand import Operand
from ...fault import Fault
from ...numbers.encoding import Array
from ...suite.lab import Lab, open_contexts, scenario
from .drawn_weights import CLOSE, STORED, compare_results, compare_weight, drawn_weight, open_weights

NAME, WIDTH = "blk.0.attn_qkv.weight", 256


@contextmanager
def open_weight(lab: Lab, weight: Operand) -> Iterator[tuple[Backend, Tensor]]:
    """A backend and the weight of its file, which afterwards still holds the file's data."""
    with open_weights(lab, {NAME: weight}, 1) as backend:
        backend.load()
        tensor = backend.get(NAME)
        assert tensor is not None
        yield backend, tensor
        compare_weight(backend, NAME, weight)


def rows_of(ctx: Context, w: Tensor, way: str, low: int, high: int) -> Tensor:
    """One of several equal parts of the weight's rows, taken in one of several ways."""
    if way == "view":
        return w.view(ctx, low * w.dtype.row_size(WIDTH), (w.shape[0], high - low))
    if way == "chunk":
        return w.chunk(ctx, 1, high - low)[low // (high - low)]
    return w.slice(ctx, 1, low, high)


@scenario("core", smoke=1, default=14, nightly=140)
def parts_of_a_weight(lab: Lab, draw: Draw) -> None:
    """Products with parts of one weight that differ in nothing but their place, in one graph or in a context for each."""
    dtype, way = draw.by_turn(*STORED), draw.by_turn("slice", "view", "chunk")
    rows, parts, apart = draw.pick(4, 1, 33), draw.pick(3, 2, 4), draw.flag()
    weight, at = drawn_weight(draw, dtype, (WIDTH, rows * parts)), draw.below(WIDTH)
    places = list(pairwise(range(0, rows * parts + 1, rows)))
    draw.note(f"{parts} parts of {weight.spec}, each {way}, {'in contexts' if apart else 'in one graph'}")
    count = len(places) if apart else 1
    with open_weight(lab, weight) as (backend, w), open_contexts(backend, count) as contexts:
        products = []
        for n, (low, high) in enumerate(places):
            ctx = contexts[n % len(contexts)]
            x = ctx.from_floats(np.eye(1, WIDTH, at))
            part = rows_of(ctx, w, way, low, high)
            if not backend.supports(ops.mulmat, [part, x]):
                return
            products.append(part.mulmat(ctx, x))
        for n, ctx in enumerate(contexts):
            ctx.compute(*products[n :: len(contexts)])
        limit = CLOSE * np.abs(weight.decoded).max(initial=0)
        for (low, high), product in zip(places, products, strict=True):
            want = weight.decoded[low:high, at]
            if not (np.abs(product.numpy()[0] - want) <= limit).all():
                raise Fault("weights", f"a product with rows {low} to {high} is not that of the file's data")


ALONE: dict[str, tuple[Callable[[Context, Tensor, int], Tensor], Callable[[Array, int], Array]]] = {
    "scale": (lambda ctx, w, n: w.scale(ctx, float(n)), lambda a, n: a * n),
    "clamp": (lambda ctx, w, n: w.clamp(ctx, -float(n), float(n)), lambda a, n: a.clip(-n, n)),
    "repeat_4d": (
        lambda ctx, w, n: w.slice(ctx, 1, n, n + 1).repeat_4d(ctx, WIDTH, 3),
        lambda a, n: a[[n] * 3],
    ),
    "contiguous": (lambda ctx, w, n: w.slice(ctx, 0, n, n + 5).contiguous(ctx), lambda a, n: a[:, n : n + 5]),
    "sum_rows": (
        lambda ctx, w, n: w.slice(ctx, 0, n, n + 5).sum_rows(ctx),
        lambda a, n: a[:, n : n + 5].sum(1, keepdims=True),
    ),
    "add": (
        lambda ctx, w, n: w.slice(ctx, 1, n, n + 1).add(ctx, w.slice(ctx, 1, 0, 1)),
        lambda a, n: a[n : n + 1] + a[:1],
    ),
}
"""Ops on nothing but a weight, with a number that alone tells two of them apart, and their formulas."""


@scenario("core", smoke=1, default=12, nightly=120)
def what_is_made_of_a_weight_alone(lab: Lab, draw: Draw) -> None:
    """Ops that backends may compute once and keep: two alike but for a number, in one graph and in two contexts."""
    name = draw.by_turn(*ALONE)
    op, formula = ALONE[name]
    weight = drawn_weight(draw, draw.pick(DType.F32, DType.F32, DType.F16), (WIDTH, draw.pick(5, 4, 33)))
    draw.note(f"{name} of {weight.spec}")
    with open_weight(lab, weight) as (backend, w):
        for numbers in ((1, 3), (2,), (1,)):
            with backend.new_context() as ctx:
                told = f"{name} of a weight, with "
                made = {f"{told}{n}": (op(ctx, w, n), formula(weight.decoded, n)) for n in numbers}
                compare_results(ctx, made)


SHAPES = ((33,), (16, 3), (5, 3, 2), (3, 3, 2, 4), (1,), (64, 1, 2))


@scenario("core", smoke=1, default=6, nightly=60)
def weights_of_each_rank(lab: Lab, draw: Draw) -> None:
    """Biases, factors of norms and kernels of a file: added to a leaf, and turned around."""
    dtype, shape = draw.pick(DType.F32, DType.F16, DType.BF16), draw.by_turn(*SHAPES)
    weight = drawn_weight(draw, dtype, shape)
    draw.note(str(weight.spec))
    with open_weight(lab, weight) as (backend, w):
        if tuple(w.shape) != shape:
            raise Fault("weights", f"a weight of {weight.spec} has the shape {tuple(w.shape)}")
        want = weight.decoded.reshape((1,) * (4 - len(shape)) + shape[::-1])
        with backend.new_context() as ctx:
            x = ctx.from_floats(np.full(shape[::-1], 0.5))
            turned = w.permute(ctx, 1, 0, 3, 2).contiguous(ctx)
            made = {
                f"{weight.spec}, a leaf plus the weight": (x.add(ctx, w), weight.decoded + 0.5),
                f"{weight.spec}, turned": (turned, want.transpose(1, 0, 3, 2).reshape(turned.shape[::-1])),
            }
            compare_results(ctx, made)


# -- weights that look like those of another file ---------------------------------------------------------

ALIKE = 64, 4096  # bytes in which two weights begin alike, and end alike
MATRICES = (*STORED, DType.Q5_0, DType.Q5_K)


@scenario("core", smoke=1, default=18, nightly=180)
def weights_that_begin_alike(lab: Lab, draw: Draw) -> None:
    """Weights of a second file have the names, sizes and first and last bytes of a first one's, and their own products."""
    dtype, alike = draw.by_turn(*MATRICES), draw.by_turn(*ALIKE, each=len(MATRICES))
    width = 256 if dtype.block_size > 32 else draw.pick(64, 32, 256)
    shape = width, draw.pick(8, 16, 33) if alike == ALIKE[0] else -(-3 * alike // dtype.row_size(width))
    first = drawn_weight(draw, dtype, shape)
    second = beginning_like(first, drawn_weight(draw, dtype, shape), alike)
    chosen = np.arange(shape[0]) if draw.flag() else np.array([draw.below(shape[0])])
    together = draw.flag()
    told = "open together" if together else "one after the other"
    draw.note(f"two files of {first.spec}, whose first and last {alike} bytes are equal, {told}")
    with ExitStack() as opened:
        for weight in (first, second, first):
            backend = opened.enter_context(open_weights(lab, {NAME: weight}, 1))
            backend.load()
            products_and_rows(backend, weight, chosen)
            if not together:
                opened.close()


def beginning_like(first: Operand, other: Operand, alike: int) -> Operand:
    """Another weight, whose first and last bytes, in whole blocks, are those of a first one."""
    raw = other.stored.copy()
    unit = first.dtype.type_size
    mine, theirs = (stored.reshape(-1).view(np.uint8).reshape(-1, unit) for stored in (raw, first.stored))
    same = -(-alike // unit)
    mine[:same], mine[-same:] = theirs[:same], theirs[-same:]
    return other.of(raw)


def products_and_rows(backend: Backend, weight: Operand, chosen: Array) -> None:
    w, (width, rows) = backend.get(NAME), weight.shape
    assert w is not None
    with backend.new_context() as ctx:
        x, ids = ctx.from_floats(np.eye(width)[chosen]), ctx.from_ints(range(rows))
        made: dict[str, tuple[Tensor, Array]] = {}
        if backend.supports(ops.mulmat, [w, x]):
            made[f"columns of {weight.spec}"] = w.mulmat(ctx, x), weight.decoded[:, chosen].T
        if backend.supports(ops.rows, [w, ids]):
            made[f"all rows of {weight.spec}"] = w.rows(ctx, ids), weight.decoded
        compare_results(ctx, made, close=CLOSE)
