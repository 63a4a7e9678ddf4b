"""Plans that have lived: after many runs, after another graph was refused, and with several views of one leaf."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backbay import Backend, Context, DType, NoMemoryError, Tensor, UnsupportedOpError

from ..draw.draw import Draw
from ..numbers.encoding import Array
from ..suite.lab import Lab, open_contexts, scenario
from .graphs import numbers
from .leaves import UNGUARDED, expect
from .memory import ENDLESS

RUNS = 260
"""More than a byte counts, and than a plan may be used before an engine makes it anew."""


SMALL = 2  # integers of at most this size, whose products and sums are exact in each float type


def traced(ctx: Context, n: int) -> tuple[Tensor, Tensor, Callable[[Array], Array]]:
    """A leaf, a result, and the result of the leaf's numbers."""
    x = ctx.input().from_floats(np.zeros((n, n)))
    y = x.mulmat(ctx, x).add(ctx, x).neg(ctx)
    return x, y, lambda a: -(a @ a.T + a)


@scenario("graph", smoke=0, default=1, nightly=4)
def a_plan_stays_right_for_hundreds_of_runs(lab: Lab, draw: Draw) -> None:
    """One plan runs again and again, each time on new numbers; others of its kind run now and then."""
    n = draw.pick(4, 1, 33)
    with lab.fresh(debug=UNGUARDED) as backend, backend.new_context() as ctx, backend.new_context() as other:
        (x, y, formula), (_, beside, _) = traced(ctx, n), traced(other, n)
        for run in range(RUNS):
            data = numbers(draw, (n, n), SMALL)
            x.from_floats(data)
            if draw.flag(16):
                other.compute(beside)
            ctx.compute(y)
            expect(f"run {run}", y, formula(data))


def unsupported(backend: Backend, ctx: Context) -> bool:
    """Whether blocks that cannot be made were refused."""
    for dtype in (DType.IQ2_XXS, DType.IQ1_S, DType.Q4_K, DType.Q8_0):
        try:
            ctx.forward(ctx.from_floats(np.zeros((1, dtype.block_size))).cast(ctx, dtype)).reserve()
        except UnsupportedOpError:
            return True
    return False


def too_large(backend: Backend, ctx: Context) -> bool:
    try:
        ctx.forward(ctx.from_floats([1.0]).repeat(ctx, 0, ENDLESS)).reserve()
    except (NoMemoryError, UnsupportedOpError):
        return True
    return False


@scenario("graph", smoke=1, default=6, nightly=40)
def an_old_plan_runs_after_another_is_refused(lab: Lab, draw: Draw) -> None:
    """A plan has run; another graph is refused for lack of memory, or for an op; the next run of the first is right."""
    n, refused = draw.pick(4, 1, 33), draw.by_turn(too_large, unsupported)
    with lab.fresh(debug=UNGUARDED) as backend, open_contexts(backend, 2) as (ctx, other):
        x, y, formula = traced(ctx, n)
        for _ in range(draw.below(3)):
            ctx.compute(y)
        for turn in range(3):
            told = "another graph was refused" if refused(backend, other) else "nothing was refused"
            draw.note(f"turn {turn}: {told} ({refused.__name__})")
            data = numbers(draw, (n, n), SMALL)
            x.from_floats(data)
            ctx.compute(y)
            expect(f"the first run after {told}", y, formula(data))


JOINED: dict[str, tuple[Callable[[Context, Tensor, Tensor], Tensor], Callable[[Array, Array], Array]]] = {
    "concat": (lambda ctx, a, b: a.concat(ctx, b, 1), lambda a, b: np.concatenate([a, b])),
    "concat, dimension 0": (lambda ctx, a, b: a.concat(ctx, b, 0), lambda a, b: np.concatenate([a, b], 1)),
    "add": (lambda ctx, a, b: a.add(ctx, b), lambda a, b: a + b),
    "sub": (lambda ctx, a, b: a.sub(ctx, b), lambda a, b: a - b),
    "mul": (lambda ctx, a, b: a.mul(ctx, b), lambda a, b: a * b),
    "mulmat": (lambda ctx, a, b: a.mulmat(ctx, b), lambda a, b: b @ a.T),
}


@scenario("core", smoke=2, default=18, nightly=180)
def two_views_of_one_leaf(lab: Lab, draw: Draw) -> None:
    """An op on two parts of one leaf of equal shapes, apart, adjoining or overlapping, in either order."""
    what, dtype = draw.by_turn(*JOINED), draw.by_turn(DType.F32, DType.F16, DType.BF16, each=len(JOINED))
    trace, formula = JOINED[what]
    rows, columns = draw.pick(3, 1, 8, 32), draw.pick(4, 1, 32)
    starts = draw.below(2 * rows + 1), draw.below(2 * rows + 1)
    data = numbers(draw, (columns, 3 * rows), SMALL)
    draw.note(
        f"{what} of rows {starts[0]} and {starts[1]} and the next {rows - 1} of {dtype}[{columns},{3 * rows}]"
    )
    with lab.backend.new_context() as ctx:
        leaf = ctx.empty(dtype, columns, 3 * rows).from_floats(data)
        a, b = (leaf.slice(ctx, 1, start, start + rows) for start in starts)
        y = trace(ctx, a, b)
        ctx.compute(y)
        expect(what, y, formula(*(data[start : start + rows] for start in starts)))
