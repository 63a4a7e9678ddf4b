"""Leaves: each context has its own; new data and writes from other contexts take effect."""

from __future__ import annotations

import numpy as np

from backbay import BackbayError, Backend, Context, Debug, DType, Spec, Tensor, ops

from ..draw.draw import Draw
from ..fault import Fault, require
from ..numbers.comparison import must_equal
from ..numbers.encoding import Array, round_to
from ..suite.lab import Lab, open_contexts, scenario
from .graphs import PEAK, numbers

UNGUARDED = Debug()
"""Without poison and guard zones, as in normal use: they might hide a backend that reuses old results."""


def place(draw: Draw, ctx: Context) -> Context:
    """The place of a leaf: with the graph, in host memory, or with a layer."""
    return draw.pick(ctx, ctx.input(), ctx.layer(0), ctx.layer(1))


def expect(what: str, got: Tensor, want: Array) -> None:
    """Compare a result, and read it again: a read leaves it as it is."""
    must_equal(got.numpy(), want, what)
    must_equal(got.numpy(), want, f"{what}, read again")


@scenario("graph", smoke=1, default=12, nightly=100)
def each_new_element_counts(lab: Lab, draw: Draw) -> None:
    """Compute again after one element of a leaf has changed, at any position."""
    with lab.fresh(debug=UNGUARDED) as backend, backend.new_context() as ctx:
        shape = (draw.pick(33, 5, 100, 257), draw.pick(5, 1, 12))
        before, other = numbers(draw, shape), numbers(draw, shape)
        x, y = place(draw, ctx).from_floats(before), ctx.from_floats(other)
        total = x.mul(ctx, y).add(ctx, y)
        for _ in range(4):
            ctx.compute(total)
            expect("a changed element", total, before * other + other)
            flat = before.reshape(-1)
            at = draw.pick(flat.size - 1, flat.size // 2, draw.below(flat.size))
            flat[at] += draw.pick(1, -3)
            x.from_floats(before)
            draw.note(f"element {at} of {shape}")
        ctx.compute(total)
        expect("a changed element", total, before * other + other)


@scenario("graph", smoke=1, default=8, nightly=60)
def contexts_alike_have_leaves_of_their_own(lab: Lab, draw: Draw) -> None:
    """The same graph in up to 20 contexts, each with its own data, computed in random order and then all read."""
    backend, shape, where = lab.backend, (draw.pick(4, 1, 33), draw.pick(3, 1, 8)), draw.below(4)
    contexts = [backend.new_context() for _ in range(draw.by_turn(3, 20, 12, 2))]
    try:
        graphs = []
        for ctx in contexts:
            data = [numbers(draw, shape) for _ in range(2)]
            at = (ctx, ctx.input(), ctx.layer(0), ctx.layer(1))[where]
            leaves = [at.from_floats(part) for part in data]
            graphs.append((ctx, leaves, leaves[0].sub(ctx, leaves[1]).scale(ctx, 2.0)))
        for _ in range(3):
            drawn = [[numbers(draw, shape) for _ in leaves] for _, leaves, _ in graphs]
            for (_, leaves, _), data in zip(graphs, drawn, strict=True):
                for leaf, part in zip(leaves, data, strict=True):
                    leaf.from_floats(part)
            for n in sorted(range(len(graphs)), key=lambda n: draw.below(100)):
                ctx, _, result = graphs[n]
                ctx.compute(result)
                expect(f"context {n}", result, 2 * (drawn[n][0] - drawn[n][1]))
            for n, (_, _, result) in enumerate(graphs):
                expect(f"context {n}, read after others ran", result, 2 * (drawn[n][0] - drawn[n][1]))
    finally:
        for ctx in sorted(contexts, key=lambda ctx: draw.below(100)):
            ctx.close()


@scenario("graph", smoke=0, default=1, nightly=2, structures=0)
def many_contexts_of_other_sizes(lab: Lab, draw: Draw) -> None:
    """More open contexts than a table of compiled graphs may hold, no two of one size, all compute again and again."""
    count = draw.by_turn(150, 300)
    with open_contexts(lab.backend, count) as contexts:
        leaves = [ctx.from_floats(np.ones((1, 1 + n))) for n, ctx in enumerate(contexts)]
        results = [x.scale(ctx, 2.0).add(ctx, x) for ctx, x in zip(contexts, leaves, strict=True)]
        for turn in range(2):
            draw.note(f"{count} contexts, turn {turn}")
            for n in sorted(range(count), key=lambda n: draw.below(turn + 1)):
                data = numbers(draw, (1 + n, 1))
                leaves[n].from_floats(data)
                contexts[n].compute(results[n])
                must_equal(results[n].numpy(), 3 * data, f"turn {turn}: context {n} of {count}")


@scenario("graph", tiny=1, smoke=2, default=20, nightly=150)
def contexts_with_the_same_ops_in_other_wirings(lab: Lab, draw: Draw) -> None:
    """Graphs of as many nodes of the same ops and sizes, whose operands differ, run in turn, and then all are read."""
    n, length = draw.pick(4, 1, 32, 33), draw.pick(4, 3, 6, 12, 40)
    kinds = [draw.pick("mulmat", "add", "neg", "sub") for _ in range(length)]
    kinds[: min(length, 3)] = ["mulmat"] * min(length, 3)  # whose results take no operand's place
    with open_contexts(lab.backend, draw.pick(2, 3, 6)) as contexts:
        draw.note(f"{len(contexts)} contexts, each with {', '.join(kinds)} of ({n}, {n})")
        graphs = [wired(draw, ctx, n, kinds) for ctx in contexts]
        for turn in range(2):
            for k in sorted(range(len(graphs)), key=lambda k: draw.below(100)):
                contexts[k].compute(graphs[k][0])
                expect(f"turn {turn}: context {k}", *graphs[k])
            for k, graph in enumerate(graphs):
                expect(f"turn {turn}: context {k}, read after others ran", *graph)


def wired(draw: Draw, ctx: Context, n: int, kinds: list[str]) -> tuple[Tensor, Array]:
    arrays = [numbers(draw, (n, n))]
    rng = np.random.default_rng(draw.below(1 << 16))
    moved = np.eye(n)[rng.permutation(n)]  # a product with it moves elements, so that no number grows
    tensors, w = [ctx.from_floats(arrays[0])], ctx.from_floats(moved)

    for kind in (*kinds, "add", "add"):  # the last two read early results
        x, a, j = tensors[-1], arrays[-1], draw.below(len(tensors))
        if kind == "mulmat":
            y, b = w.mulmat(ctx, x), a @ moved.T
        elif kind == "neg":
            y, b = x.neg(ctx), -a
        elif kind == "add":
            y, b = x.add(ctx, tensors[j]), a + arrays[j]
        else:
            y, b = x.sub(ctx, tensors[j]), a - arrays[j]
        tensors.append(y.clamp(ctx, -PEAK, PEAK))
        arrays.append(np.clip(b, -PEAK, PEAK))
    return tensors[-1], arrays[-1]


READ = ("itself", "weight", "scaled", "copied")
"""How a leaf is read: as it is, as the weight of a product, which engines rearrange, or by another op."""


def read_in(ctx: Context, leaf: Tensor, way: str) -> Tensor:
    if way == "weight":
        turned = leaf.mulmat(ctx, ctx.from_floats(np.eye(leaf.dim(0))))
        return turned.permute(ctx, 1, 0)
    if way == "scaled":
        return leaf.scale(ctx, -1.0).scale(ctx, -1.0)
    return leaf.contiguous(ctx) if way == "copied" else leaf


@scenario("graph", smoke=1, default=8, nightly=60)
def a_leaf_of_another_context_is_read_when_it_runs(lab: Lab, draw: Draw) -> None:
    """One context owns a leaf, a second one writes to it, and a third one, or the owner, reads it in each compute."""
    with open_contexts(lab.backend, 3) as (owner, writer, reader):
        way = draw.by_turn(*READ)
        n, rows = draw.pick(4, 1, 33), draw.pick(3, 2, 9)
        if way == "weight":
            n, rows = draw.pick((64, 96), (256, 65))
        held, own = numbers(draw, (n, rows)), draw.by_turn(True, False, each=len(READ))
        leaf = place(draw, reader if own else owner).from_floats(held)
        one = reader.from_floats(np.ones((1, n)))
        result = read_in(reader, leaf, way).add(reader, one)
        if own:  # the reader's graph is compiled before any other knows its leaf
            reader.compute(result)
        row = writer.from_floats(np.zeros((1, n)))
        at = draw.below(rows)
        wrote = row.copy(writer, leaf.view(writer, at * leaf.stride(1), (n, 1), (leaf.stride(1),)))
        for turn in range(3):
            reader.compute(result)
            expect("what another context holds", result, held + 1)
            if turn and draw.flag():
                held = numbers(draw, (n, rows))
                leaf.from_floats(held)
            else:
                held[at] = numbers(draw, (n, 1))[0]
                row.from_floats(held[at : at + 1])
                writer.compute(wrote)
        reader.compute(result)
        expect("what another context wrote", result, held + 1)


@scenario("memory", smoke=1, default=4, nightly=20)
def leaves_are_booked_with_their_layer(lab: Lab, draw: Draw) -> None:
    """A layer's leaf is reported as that layer's cache, on one device, until its context closes."""
    with lab.fresh() as backend, backend.new_context() as first:
        for layer in range(3):
            first.layer(layer).zeros(DType.F32, 4)
        layer, before = draw.below(3), caches(backend)
        with backend.new_context() as ctx:
            leaf = ctx.layer(layer).zeros(draw.pick(DType.F32, DType.F16), 64, draw.pick(5, 1, 100))
            grown = {key: size - before.get(key, 0) for key, size in caches(backend).items()}
            grown = {key: size for key, size in grown.items() if size}
            right = [key[1] for key in grown] == [layer] and sum(grown.values()) >= leaf.nbytes
            require(right, f"a leaf of layer {layer} with {leaf.nbytes} bytes is booked as {grown}")
        after = caches(backend)
        require(after == before, f"after close {after} is booked, before it was {before}")


def caches(backend: Backend) -> dict[tuple[str, int], int]:
    return {
        (device.id, layer): entry.size
        for device in backend.memory().devices
        for layer, entry in enumerate(device.cache)
        if entry.size
    }


@scenario("cache", smoke=2, default=24, nightly=200)
def rows_behind_those_that_are_read_are_kept(lab: Lab, draw: Draw) -> None:
    """Graphs write any rows of a state, and read its first ones: few, then more or fewer; every write stays."""
    rows, width, axis = draw.pick(8, 33, 64), draw.pick(4, 7, 32), draw.by_turn(1, 0)
    dtype = draw.pick(DType.F32, DType.F16)
    shape = (width, rows) if axis else (rows, width)
    with lab.backend.new_context() as store:
        state = store.zeros(dtype, *shape, row_axis=axis)
        held = np.zeros((rows, width))
        for turn in range(3 + draw.below(3)):
            if turn and draw.flag(4):
                held = numbers(draw, (width, rows))
                state.from_floats(held if axis else held.T)
            with lab.backend.new_context() as ctx:
                count, first = 1 + draw.below(min(rows, 5)), draw.below(rows)
                places = (first + np.arange(count) * draw.pick(1, 3)) % rows
                new = numbers(draw, (width, count))
                upto = 1 + draw.below(rows)
                draw.note(f"{state}, row axis {axis}: rows {places.tolist()} are written, {upto} are read")
                written = write(ctx, state, axis, new, places)
                held[places] = new
                ctx.forward(*written)
                seen = written[-1] if axis and draw.flag() else state  # after all writes, as they are roots
                read = seen.slice(ctx, axis, 0, upto).contiguous(ctx).cast(ctx, DType.F32)
                ctx.compute(read)
                want = held[:upto] if axis else held[:upto].T
                must_equal(read.numpy(), want, f"graph {turn}: the first {upto} rows")
            whole = state.numpy().astype(np.float64)
            must_equal(whole, held if axis else held.T, f"the state after graph {turn}")


def write(ctx: Context, state: Tensor, axis: int, new: np.ndarray, places: np.ndarray) -> list[Tensor]:
    """Rows written by set_rows, or columns one by one."""
    if axis:
        return [state.set_rows(ctx, ctx.from_floats(new), ctx.from_ints(places))]
    written = []
    for place, column in zip(places.tolist(), new, strict=True):
        target = state.slice(ctx, 0, place, place + 1)
        written.append(ctx.from_floats(column.reshape(-1, 1)).copy(ctx, target))
    return written


ALIKE = ((2.0**-21, 2.0**-22), (1 + 2.0**-22, 1 + 2.0**-23), (2.0**30, 2.0**30 + 128), (2.0**-90, 2.0**-91))
"""Pairs of float attributes that few decimals do not tell apart."""


@scenario("graph", smoke=1, default=4, nightly=40)
def contexts_alike_but_for_an_attribute(lab: Lab, draw: Draw) -> None:
    """Contexts whose graphs differ in nothing but a number that is nearly the same, each with its own results."""
    pair, data = draw.by_turn(*ALIKE), 2.0 ** numbers(draw, (draw.pick(4, 33), 3), 3)
    with open_contexts(lab.backend, len(pair)) as contexts:
        results = [ctx.from_floats(data).scale(ctx, s) for ctx, s in zip(contexts, pair, strict=True)]
        for ctx, result, s in zip(contexts, results, pair, strict=True):
            ctx.compute(result)
            draw.note(f"scale by {s}")
            expect(f"scale by {s}, one of {pair}", result, data * s)


@scenario("graph", smoke=1, default=4, nightly=40)
def fresh_leaves_hold_zeros(lab: Lab, draw: Draw) -> None:
    """Zeros as large as a leaf, a result or a write that was just freed; without poison, which would fill them first.

    Once they have MiB, which allocators may keep in other pools.
    """
    rows = draw.pick(3, 1, 33)
    shape = draw.by_turn((64, rows), (5, rows), (4096, 300), (256, rows))
    with lab.fresh(debug=UNGUARDED) as backend:
        for _ in range(3):
            with backend.new_context() as ctx:
                zeros = [place(draw, ctx).zeros(DType.F32, *shape) for _ in range(3)]
                total = zeros[0].add(ctx, zeros[1])
                ctx.compute(total)
                for tensor in (*zeros, total):
                    expect("fresh zeros", tensor, np.zeros(shape[::-1]))
                filled = ctx.from_floats(numbers(draw, shape) + 100)
                ctx.compute(filled.scale(ctx, 2.0).copy(ctx, zeros[2]))


@scenario("core", smoke=1, default=8, nightly=60)
def what_the_host_writes_is_taken_at_once(lab: Lab, draw: Draw) -> None:
    """The caller's array may change as soon as a leaf is written: the leaf and its readers have what was written."""
    size = draw.by_turn(4096, 1, 65, 1 << 18)
    way = draw.by_turn("from_floats", "from_ints", "from_bytes", each=2)
    with lab.backend.new_context() as ctx:
        at, dtype = place(draw, ctx), DType.I32 if way == "from_ints" else DType.F32
        given = (np.arange(size) % 61 - 30).astype(np.int32 if dtype is DType.I32 else np.float32)
        held, leaf = given.copy(), at.empty(dtype, size)
        y = leaf.contiguous(ctx) if dtype is DType.I32 else leaf.scale(ctx, 2.0)
        draw.note(f"{way} of {size} numbers")
        for turn in range(2):
            getattr(leaf, way)(given.view(np.uint8) if way == "from_bytes" else given)
            given[:] = 9 + turn
            if draw.flag():
                expect("a leaf", leaf, held)
            ctx.compute(y)
            given[:] = 7
            expect("a leaf, after a compute", leaf, held)
            expect("a result", y, held * (1 if dtype is DType.I32 else 2))
            given[:] = held = held + 1


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
        new = rng.standard_normal((3, n), np.float32)
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
