"""Writes into leaves: over what they read, and into every type that a cache may have."""

from __future__ import annotations

import numpy as np

from backbay import BackbayError, Context, DType, Spec, Tensor, ops

from ..draw.draw import Draw
from ..numbers.comparison import Fault, must_equal
from ..numbers.rounding import round_to
from ..suite.lab import Lab
from ..suite.scenario import scenario
from .graphs import numbers

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


@scenario("graph", smoke=2, default=len(OVERLAPS) * 2, nightly=100)
def a_copy_reads_all_before_it_writes(lab: Lab, draw: Draw) -> None:
    """Copies of parts of a leaf over other parts of it, moved, spread and transposed in place."""
    way, source, target = draw.by_turn(*OVERLAPS)
    kind, unit = draw.by_turn(DType.F32, DType.F16, DType.BF16, each=3), draw.pick(1, 9, 40)
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


LOST = 0.4
"""The most that a quantized element may differ from what was written, relative to the largest that was written."""


@scenario("cache", smoke=1, default=4, nightly=20)
def every_type_of_a_cache_is_written(lab: Lab, draw: Draw) -> None:
    """set_rows writes each type that cache_config() offers, and leaves the other rows as they are.

    A backend without set_rows for f32 has no caches, so its cache_config() promises nothing.
    """
    given = [Spec(DType.F32, (32, 8)), Spec(DType.F32, (32, 1)), Spec(DType.I32, (1,))]
    if not lab.backend.supports(ops.set_rows, given):
        return
    rng, rows = np.random.default_rng(draw.below(1 << 16)), draw.pick(8, 33)
    for dtype in lab.backend.cache_config().dtypes:
        n = max(dtype.block_size, 32) * draw.pick(1, 3)
        new = rng.standard_normal((3, n))
        at = rng.permutation(rows)[:3]
        draw.note(f"rows {at.tolist()} of {dtype}[{n},{rows}]")
        with lab.backend.new_context() as ctx:
            try:
                cache = ctx.zeros(dtype, n, rows)
                ctx.compute(cache.set_rows(ctx, ctx.from_floats(new), ctx.from_ints(at)))
            except BackbayError as error:
                told = f"cache_config() offers {dtype}, which set_rows cannot write: {error}"
                raise Fault("cache", told) from None
            held = cache.numpy()
        must_equal(np.delete(held, at, 0), np.zeros((rows - 3, n)), f"other rows of {dtype}", "cache")
        if dtype.is_float:
            must_equal(held[at], round_to(new, dtype), f"rows of {dtype}", "cache")
        elif not (np.abs(held[at] - new) <= LOST * np.abs(new).max()).all():
            raise Fault("cache", f"rows of {dtype} do not hold what was written")
