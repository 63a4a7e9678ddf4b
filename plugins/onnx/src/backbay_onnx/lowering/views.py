"""Views of a storage at any offset and strides: a reshape and a slice where strides nest, else a gather."""

from __future__ import annotations

from collections.abc import Sequence

from backbay import Node
from backbay.internals import Size

from .emitter import Emitter


def window_rows(b: Emitter, node: Node, width: Size) -> tuple[Size, Size] | None:
    """The first row of a storage that a view shows, and the number of rows, if the view is cut from whole rows."""
    if node.rank < 2:
        return None
    unit, symbols = node.dtype.type_size, b.symbols
    start, extents = symbols.offset(node) // unit, b.extents(node)
    steps = [symbols.stride(node, n) // unit for n in range(1, node.rank)]
    order = _by_stride(steps)
    slowest, step = extents[order[-1]], steps[order[-1] - 1]
    if not width.divides(step):
        return None
    rows = slowest * (step // width)
    if not _nests(start % step, extents, steps, order, rows * width):
        return None
    return start // step * (step // width), rows


def strided_view(
    b: Emitter, node: Node, storage: str, *, raw: bool, window: tuple[Size, Size] | None = None
) -> str:
    """The value of a view, from the value of its storage; `raw`: in bytes of a quantized type.

    `window` is the first element and the number of elements of the storage that the value holds, if not all.
    """
    symbols, dtype = b.symbols, node.dtype
    unit, size = (1, 1) if raw else (dtype.type_size, dtype.block_size)
    start = symbols.offset(node) // unit * size
    steps = [symbols.stride(node, n) // unit * size for n in range(1, node.rank)]
    extents, total = b.extents(node), b.product(b.extents(node.storage))
    if window is not None:
        start, total = start - window[0], window[1]
    if raw:
        extents[0] = extents[0] // dtype.block_size * dtype.type_size
        total = total // dtype.block_size * dtype.type_size
    if node.rank == 0:
        return b.shaped(b.sliced(b.shaped(storage, [-1]), 0, start, start + 1), [])
    order = _by_stride(steps)
    if _nests(start, extents, steps, order, total):
        return _nested(b, storage, start, extents, steps, order, total, whole=window is not None)
    flat = b.shaped(storage, [-1])
    if _adjoins(b, extents, steps):
        return b.shaped(b.sliced(flat, 0, start, start + b.product(extents)), extents)
    return b.add("Gather", flat, b.grid(start, extents, [1, *steps]))


def _by_stride(steps: Sequence[Size]) -> list[int]:
    """Dimensions 1 and up, smallest stride first; guards keep the order."""
    order: list[int] = []
    for n in range(1, len(steps) + 1):
        place = len(order)
        while place and not steps[order[place - 1] - 1].at_most(steps[n - 1]):
            place -= 1
        order.insert(place, n)
    return order


def _nests(
    start: Size, extents: Sequence[Size], steps: Sequence[Size], order: Sequence[int], total: Size
) -> bool:
    """Whether the storage, cut at each stride, has every dimension as a slice of one axis."""
    if any(step.same(0) for step in steps):
        return False
    cuts = [*[steps[n - 1] for n in order], total]
    if not all(cuts[i].divides(cuts[i + 1]) for i in range(len(cuts) - 1)):
        return False
    for i, n in enumerate([0, *order]):
        begin, room = _place(start, cuts, i)
        if not (begin + extents[n]).at_most(room):
            return False
    return True


def _place(start: Size, cuts: Sequence[Size], i: int) -> tuple[Size, Size]:
    """Where a view begins on the i-th axis of the cut storage, and how long that axis is."""
    inside = start % cuts[i] if i < len(cuts) - 1 else start
    return (inside // cuts[i - 1], cuts[i] // cuts[i - 1]) if i else (inside, cuts[0])


def _nested(
    b: Emitter,
    storage: str,
    start: Size,
    extents: Sequence[Size],
    steps: Sequence[Size],
    order: Sequence[int],
    total: Size,
    *,
    whole: bool,
) -> str:
    """Cut the storage at each stride, then slice; `whole` leaves out a slice that drops nothing."""
    cuts = [*[steps[n - 1] for n in order], total]
    places = [_place(start, cuts, i) for i in range(len(cuts))]
    value = b.shaped(storage, [room for _, room in places])
    rank, dims = len(cuts), [0, *order]
    if not whole or not all(
        begin.same(0) and extents[n].same(room) for (begin, room), n in zip(places, dims, strict=True)
    ):
        value = _cut(b, value, places, [extents[n] for n in dims])
    return b.transposed(value, *[rank - 1 - dims.index(rank - 1 - axis) for axis in range(rank)])


def _cut(b: Emitter, value: str, places: Sequence[tuple[Size, Size]], extents: Sequence[Size]) -> str:
    lows = b.vector([begin for begin, _ in reversed(places)])
    highs = b.vector(
        [begin + extent for (begin, _), extent in reversed(list(zip(places, extents, strict=True)))]
    )
    return b.add("Slice", value, lows, highs)


def _adjoins(b: Emitter, extents: Sequence[Size], steps: Sequence[Size]) -> bool:
    expected = extents[0]
    for extent, step in zip(extents[1:], steps, strict=True):
        if not (step.same(expected) or extent.same(1)):
            return False
        expected = expected * extent
    return True
