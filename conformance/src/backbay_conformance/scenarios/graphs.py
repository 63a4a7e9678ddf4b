"""Random graphs of small integers: chains, shared parts, views of views, reads after writes, several outputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backbay import DType

from ..draw.draw import Draw
from ..machines.wiring import Twin, Wiring
from ..numbers.rounding import Array
from ..suite.lab import Lab
from ..suite.scenario import scenario

PEAK = 200.0
"""All results are clamped to it: each float type holds such integers, and single precision their products."""


def numbers(draw: Draw, shape: tuple[int, ...], peak: int = 9) -> Array:
    rng = np.random.default_rng(draw.below(1 << 16))
    return rng.integers(-peak, peak + 1, shape[::-1]).astype(np.float64)


@scenario("graph", tiny=1, smoke=12, default=150, nightly=1500)
def random_graph(lab: Lab, draw: Draw) -> None:
    """Build a graph, compute it, compute it again with new data, then grow it."""
    with lab.backend.new_context() as ctx:
        wiring = Wiring(ctx)
        n, m = draw.pick(4, 1, 3, 8, 17, 32, 33), draw.pick(3, 1, 2, 5, 16)
        leaves = [wiring.leaf(numbers(draw, (n, m))) for _ in range(1 + draw.below(3))]
        states = [wiring.leaf(numbers(draw, (n, m + draw.below(3)))) for _ in range(draw.below(3))]
        grow(draw, wiring, states, 2 + draw.below(14))
        outputs = chosen(draw, wiring)
        draw.note("; ".join(wiring.log))
        wiring.check(outputs, states, "first")
        for leaf in leaves:
            wiring.rewrite(leaf, numbers(draw, leaf.shape))
        wiring.check(outputs, states, "with new data")
        if draw.flag():
            wiring.rewrite(leaves[0], numbers(draw, leaves[0].shape))
            wiring.check(outputs[: 1 + draw.below(len(outputs))], states, "with fewer outputs")
        if draw.flag():
            grow(draw, wiring, states, 1 + draw.below(5))
            wiring.check(chosen(draw, wiring), states, "after tracing more")


def grow(draw: Draw, wiring: Wiring, states: list[Twin], steps: int) -> None:
    for _ in range(steps):
        if states and draw.flag(4):
            write(draw, wiring, draw.pick(*states))
        else:
            x = recent(draw, wiring)
            draw.pick(*STEPS)(draw, wiring, x)


def recent(draw: Draw, wiring: Wiring) -> Twin:
    """In half of the cases one of the last four twins, so that chains grow long."""
    twins = wiring.twins
    return twins[-1 - draw.below(min(len(twins), 4))] if draw.flag() else twins[draw.below(len(twins))]


def chosen(draw: Draw, wiring: Wiring) -> list[Twin]:
    """The outputs: the last twin and some others, which may be inputs of other nodes, or views."""
    made = [twin for twin in wiring.twins if twin.evaluate is not None] or wiring.twins
    picked = {made[-1], *[made[draw.below(len(made))] for _ in range(draw.below(3))]}
    return sorted(picked, key=wiring.twins.index)


def bounded(wiring: Wiring, x: Twin) -> Twin:
    """x clamped; x itself may be too large for later ops, and is no operand of them."""
    wiring.twins.remove(x)
    return wiring.op("clamp", x, -PEAK, PEAK, evaluate=lambda a: np.clip(a, -PEAK, PEAK))


# -- steps -----------------------------------------------------------------------------------------------


def unary(draw: Draw, wiring: Wiring, x: Twin) -> None:
    name = draw.pick("neg", "relu", "contiguous", "duplicate", "sqr")
    function: Callable[[Array], Array] = {
        "neg": lambda a: -a,
        "relu": lambda a: np.maximum(a, 0),
        "sqr": lambda a: a * a,
    }.get(name, np.array)
    bounded(wiring, wiring.op(name, x, evaluate=function))


def scaled(draw: Draw, wiring: Wiring, x: Twin) -> None:
    s = draw.pick(2.0, -1.0, 3.0)
    bounded(wiring, wiring.op("scale", x, s, evaluate=lambda a: a * s))


def narrowed(draw: Draw, wiring: Wiring, x: Twin) -> None:
    """x cast to another float type and back."""
    there = wiring.op("cast", x, draw.pick(DType.F16, DType.BF16), evaluate=np.array)
    wiring.op("cast", there, DType.F32, evaluate=np.array)


def binary(draw: Draw, wiring: Wiring, x: Twin) -> None:
    partners = [twin for twin in wiring.twins if twin.shape == x.shape or twin.shape == (x.shape[0], 1)]
    partners = [twin for twin in partners if twin.tensor.dtype is DType.F32] or [x]
    y, name = partners[draw.below(len(partners))], draw.pick("add", "sub", "mul")
    function: Callable[[Array, Array], Array] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[name]
    bounded(wiring, wiring.op(name, x, y, evaluate=function))


def product(draw: Draw, wiring: Wiring, x: Twin) -> None:
    weight = wiring.leaf(numbers(draw, (x.shape[0], draw.pick(x.shape[0], 1, 3, 16)), 2))
    y = wiring.op("mulmat", weight, x, evaluate=lambda w, a: a @ w.T)
    bounded(wiring, y)


def folded(draw: Draw, wiring: Wiring, x: Twin) -> None:
    if draw.flag():
        bounded(wiring, wiring.op("sum_rows", x, evaluate=lambda a: a.sum(-1, keepdims=True)))
    else:
        bounded(wiring, wiring.op("cumsum", x, evaluate=lambda a: a.cumsum(-1)))


def transposed(draw: Draw, wiring: Wiring, x: Twin) -> None:
    """A transposed view, and in half of the cases a copy of it."""
    y = wiring.op("permute", x, 1, 0, evaluate=lambda a: a.T)
    if draw.flag():
        wiring.op("contiguous", y, evaluate=np.array)


def sliced(draw: Draw, wiring: Wiring, x: Twin) -> None:
    dim = draw.below(2)
    low = draw.below(x.shape[dim])
    high = low + 1 + draw.below(x.shape[dim] - low)
    step = draw.pick(1, 2)
    index = (slice(None),) * (1 - dim) + (slice(low, high, step),)
    wiring.op("slice", x, dim, low, high, step, evaluate=lambda a: a[index])


def joined(draw: Draw, wiring: Wiring, x: Twin) -> None:
    partners = [
        t
        for t in wiring.twins
        if t.shape[0] == x.shape[0] and t.tensor.dtype is DType.F32 and t.shape[1] < 40
    ]
    if x.shape[1] < 40 and x.tensor.dtype is DType.F32:
        y = partners[draw.below(len(partners))]
        wiring.op("concat", x, y, 1, evaluate=lambda a, b: np.concatenate([a, b]))


def gathered(draw: Draw, wiring: Wiring, x: Twin) -> None:
    ids = (
        np.random.default_rng(draw.below(1 << 16))
        .integers(0, x.shape[1], draw.pick(1, 2, 5))
        .astype(np.int32)
    )
    wiring.op("rows", x, wiring.ids(ids), evaluate=lambda a, i: a[i])


def routed(draw: Draw, wiring: Wiring, x: Twin) -> None:
    """Rows of a table, with ids that sort a row of x."""
    n = x.shape[0]
    if x.tensor.dtype is not DType.F32 or n > 128:
        return
    rng, k, at = np.random.default_rng(draw.below(1 << 16)), 1 + draw.below(n), draw.below(x.shape[1])
    fractions = wiring.leaf(rng.permutation(n)[None] / 128)  # no two keys of a row are equal
    keys = wiring.op("add", x, fractions, evaluate=np.add)
    if draw.flag():
        ids = wiring.op("argsort", keys, evaluate=lambda a: a.argsort(-1))
    else:
        ids = wiring.op("top_k", keys, k, evaluate=lambda a: (-a).argsort(-1)[:, :k])
    row = wiring.op("slice", ids, 1, at, at + 1, evaluate=lambda a: a[at : at + 1])
    table = wiring.leaf(numbers(draw, (draw.pick(n, 4), n)))
    taken = wiring.op("rows", table, row, evaluate=lambda a, i: a[i])
    for hidden in (fractions, keys, ids, row, taken):
        wiring.twins.remove(hidden)
    wiring.op("reshape", taken, *taken.shape[:2], evaluate=lambda a: a[0])


STEPS = (
    unary,
    scaled,
    binary,
    product,
    folded,
    transposed,
    sliced,
    joined,
    gathered,
    routed,
    narrowed,
    binary,
    unary,
)


# -- writes ----------------------------------------------------------------------------------------------


def write(draw: Draw, wiring: Wiring, state: Twin) -> None:
    """A write into a state; later ops read its result."""
    rows = [t for t in wiring.twins if t.shape[0] == state.shape[0] and 0 < t.shape[1] <= state.shape[1]]
    rows = [t for t in rows if t.tensor.dtype is DType.F32]
    x = rows[draw.below(len(rows))]
    draw.pick(copied, placed, scattered)(draw, wiring, state, x)


def copied(draw: Draw, wiring: Wiring, state: Twin, x: Twin) -> None:
    low = draw.below(state.shape[1] - x.shape[1] + 1)
    target = wiring.op("slice", state, 1, low, low + x.shape[1], evaluate=lambda a: a[low : low + x.shape[1]])

    def evaluate(a: Array, dst: Array) -> Array:
        dst[...] = np.array(a)
        return dst

    wiring.forward(wiring.op("copy", x, target, evaluate=evaluate))


def placed(draw: Draw, wiring: Wiring, state: Twin, x: Twin) -> None:
    low = draw.below(state.shape[1] - x.shape[1] + 1)

    def evaluate(dst: Array, a: Array) -> Array:
        dst[low : low + len(a)] = np.array(a)
        return dst

    wiring.forward(wiring.op("set", state, x, low * state.tensor.stride(1), evaluate=evaluate))


def scattered(draw: Draw, wiring: Wiring, state: Twin, x: Twin) -> None:
    order = (
        np.random.default_rng(draw.below(1 << 16)).permutation(state.shape[1])[: x.shape[1]].astype(np.int32)
    )

    def evaluate(dst: Array, a: Array, ids: Array) -> Array:
        dst[ids] = np.array(a)
        return dst

    wiring.forward(wiring.op("set_rows", state, x, wiring.ids(order), evaluate=evaluate))
