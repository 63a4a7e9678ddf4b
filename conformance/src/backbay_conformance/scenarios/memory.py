"""Memory: true reports, dry runs equal to real runs, and refused allocations that leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backbay import (
    AllocationStatus,
    BackbayError,
    Backend,
    Context,
    DType,
    NoMemoryError,
    Tensor,
    UnsupportedOpError,
)

from ..checks.traced_call import TracedCall, make
from ..draw.draw import Draw
from ..fault import Fault, must_raise, require
from ..suite.case import CASES
from ..suite.lab import Lab, scenario
from .weights.drawn_weights import LAYERS, open_drawn_weights

Extents = tuple[int, int, int]  # columns, tokens and layers of a network


def extents(draw: Draw) -> Extents:
    """By turn small ones, such whose results have MiB, which allocators may keep in other pools, and of many layers."""
    small = draw.pick(32, 8, 64, 33), draw.pick(4, 1, 17), draw.pick(2, 1, 3)
    return draw.by_turn(small, (64, 8192, small[2]), (8, 1, 80))


def network(ctx: Context, size: Extents) -> tuple[Tensor, Tensor]:
    """Build some layers of products, which are results, and sums; returns input and output."""
    n, tokens, layers = size
    x = first = ctx.input().empty(DType.F32, n, tokens)
    for layer in range(layers):
        own = ctx.layer(layer)
        w = own.empty(DType.F32, n, n)
        y = w.mulmat(own, x)
        x = x.add(own, y).clamp(own, -100.0, 100.0)
        state = own.zeros(DType.F32, n, tokens + layer)
        ctx.forward(y, x.copy(own, state.slice(own, 1, 0, tokens)))
    return first, x


@scenario("memory", tiny=1, smoke=2, default=10, nightly=100)
def dry_run_tells_what_a_real_run_takes(lab: Lab, draw: Draw) -> None:
    """A graph reserved without memory has the same report as with memory, except for the statuses."""
    size, reports = extents(draw), []
    for alloc in (False, True):
        with lab.fresh(alloc_memory=alloc) as backend, backend.new_context() as ctx:
            _, y = network(ctx, size)
            ctx.forward(y).reserve()
            reports.append(backend.memory())
    dry, real = reports
    totals = dry.total(), real.total()
    require(totals[0] == totals[1], "a dry run books other bytes than a real run", *totals)
    require(dry.allocated() == 0, "a dry run holds memory", dry.allocated())
    sizes = [[m.size for device in report.devices for m in device.entries()] for report in reports]
    require(sizes[0] == sizes[1], "the entries of the reports differ", dry, real)


@scenario("memory", smoke=4, default=76, nightly=300)
def a_dry_run_books_what_each_op_works_in(lab: Lab, draw: Draw) -> None:
    """A call of one op, whose working memory no larger op hides, has the same report in a dry run and after a run."""
    call, totals = CASES[draw.by_turn(*CASES)].draw(draw), []
    draw.note(str(call))
    for alloc in (False, True):
        backend = lab.fresh(alloc_memory=alloc)
        try:
            traced = TracedCall(backend, call)
            traced.ctx.forward(*traced.results).reserve()
            totals.append(backend.memory().total())
            if alloc:
                make(call, draw.mode, traced.precision, 0)
                traced.write()
                traced.ctx.compute(*traced.results)
                totals.append(backend.memory().total())
        except UnsupportedOpError:  # which the case's own calls judge
            return
        finally:
            backend.close()
    require(len(set(totals)) == 1, "a dry run, `reserve` and a run book different bytes", *totals)


@scenario("memory", tiny=1, smoke=1, default=3, nightly=10)
def dry_run_refuses_to_run(lab: Lab, draw: Draw) -> None:
    """Without allocated memory, compute, load and read are refused."""
    with lab.fresh(alloc_memory=False) as backend, backend.new_context() as ctx:
        _, y = network(ctx, extents(draw))
        for act in (lambda: ctx.compute(y), backend.load, y.floats):
            must_raise("a compute, load or read without allocated memory", BackbayError, act, "memory")


@scenario("memory", smoke=2, default=10, nightly=100)
def what_was_reserved_is_all_that_computing_takes(lab: Lab, draw: Draw) -> None:
    """After `reserve`, repeated computes allocate and compile nothing."""
    with lab.fresh() as backend:
        at_rest = backend.memory().total()
        with backend.new_context() as ctx:
            x, y = network(ctx, extents(draw))
            ctx.forward(y).reserve()
            before, total = vars(ctx.counters).copy(), backend.memory().total()
            taken = ctx.counters.bytes_allocated
            require(total - at_rest >= taken, "the report lacks allocated memory", total - at_rest, taken)
            for value in (1.0, 2.0):
                x.from_floats(np.full(x.size, value))
                ctx.compute(y)
                y.floats()
            after = vars(ctx.counters)
            for what in ("bytes_allocated", "compilations", "traced_nodes"):
                require(after[what] == before[what], f"computing changed {what}", before[what], after[what])
            require(backend.memory().total() == total, "the report changed", total, backend.memory().total())


@scenario("memory", tiny=1, smoke=2, default=8, nightly=50)
def closing_gives_everything_back(lab: Lab, draw: Draw) -> None:
    """Closing a context restores the earlier memory report."""
    with lab.fresh() as backend:
        at_rest = backend.memory().total()
        size = extents(draw)
        for _ in range(3):
            ctx = backend.new_context()
            x, y = network(ctx, size)
            x.from_floats(np.ones(x.size))
            ctx.compute(y)
            held = backend.memory()
            require(held.total() > at_rest, "a computed graph takes no memory", held)
            require(held.allocated() == held.total(), "some booked memory is not marked as allocated", held)
            ctx.close()
            left = backend.memory()
            require(left.total() == at_rest, "a closed context still holds memory", left)


@scenario("memory", smoke=2, default=8, nightly=50)
def what_does_not_fit_is_refused_and_freed(lab: Lab, draw: Draw) -> None:
    """With a limit that a graph exceeds, the refused entry is marked, the rest is freed, and a smaller graph fits.

    The limit is on the device that holds most of the graph.
    """
    rest, needed = measured(lab)
    device = max(needed, key=lambda name: needed[name] - rest[name])
    limit = rest[device] + max(1, (needed[device] - rest[device]) * draw.pick(1, 2, 3) // 4)
    with lab.fresh(max_memory={device: limit}) as backend:
        held = backend.memory().total()
        _refused(backend, device, limit)
        require(backend.memory().total() == held, "a refused allocation still holds memory", backend.memory())
        with backend.new_context() as ctx:
            computes(ctx)


def computes(ctx: Context) -> None:
    """Raise Fault unless a small graph still computes."""
    x = ctx.from_floats([1.0, 2.0])
    y = x.add(ctx, x)
    ctx.compute(y)
    require(y.floats().tolist() == [2.0, 4.0], "a graph does not compute after a refusal", y.floats())


def measured(lab: Lab) -> tuple[dict[str, int], dict[str, int]]:
    with lab.fresh(alloc_memory=False) as backend:
        rest = by_device(backend)
        with backend.new_context() as ctx:
            ctx.forward(trace_wide(ctx)).reserve()
            return rest, by_device(backend)


def by_device(backend: Backend) -> dict[str, int]:
    return {device.id: device.total() for device in backend.memory().devices}


def trace_wide(ctx: Context) -> Tensor:
    x = ctx.input().empty(DType.F32, 256, 64)
    y = ctx.layer(0).empty(DType.F32, 256, 256).mulmat(ctx, x)
    return x.add(ctx, y).concat(ctx, y, 1)


def _refused(backend: Backend, device: str, limit: int) -> None:
    ctx = backend.new_context()
    try:
        ctx.forward(trace_wide(ctx)).reserve()
    except NoMemoryError as error:
        failed = [row for row in error.memory.rows() if row[3].status is AllocationStatus.Failed]
        require(len(failed) == 1, "expected one entry marked as failed", error.memory)
        require(failed[0][0] == device, "another device is marked", failed[0][0], device)
        held = by_device(backend)[device]
        require(held <= limit, "more is held than max_memory allows", held, limit)
    else:
        raise Fault("memory", "more was allocated than max_memory allows")
    finally:
        ctx.close()


ENDLESS = 1 << 50  # a number of f32 elements larger than any address space


@scenario("memory", smoke=1, default=2, nightly=10)
def what_no_machine_has_is_refused(lab: Lab, draw: Draw) -> None:
    """A leaf or a result larger than any memory is refused even without a limit; other graphs still compute."""
    with lab.fresh() as backend, backend.new_context() as ctx:
        x = ctx.from_floats([1.0, 2.0])
        y = x.add(ctx, x)
        ctx.compute(y)
        held = backend.memory().total()
        _no_memory(lambda: ctx.empty(DType.F32, ENDLESS), "a leaf")
        with backend.new_context() as other:
            huge = other.from_floats([1.0]).repeat(other, 0, ENDLESS)
            _no_memory(lambda: other.forward(huge).reserve(), "a result")
        total = backend.memory().total()
        require(total == held, "a refused allocation still holds memory", held, total)
        ctx.compute(y)
        require(y.floats().tolist() == [2.0, 4.0], "a graph does not compute after a refusal", y.floats())


def _no_memory(act: Callable[[], object], what: str) -> None:
    try:
        act()
    except (NoMemoryError, UnsupportedOpError):
        return  # the backend may decline the op because of its size
    raise Fault("memory", f"{what} larger than any memory was not refused")


# -- reserve without compute, and bookings ---------------------------------------------------------------


def chain(draw: Draw, ctx: Context) -> tuple[Tensor, list[Tensor]]:
    """The input and some results of a small graph, each with memory of its own."""
    n, m = (64, 6000) if draw.on_turn(1, 3) else (draw.pick(64, 8, 33), draw.pick(16, 3, 40))
    x = ctx.empty(DType.F32, n, m)
    w = ctx.layer(1).empty(draw.pick(DType.F32, DType.F16), n, n)
    y, made = x, []
    for _ in range(draw.pick(3, 1, 6)):
        y = w.mulmat(ctx, y).add(ctx, x)
        made.append(y)
    return x, made


@scenario("memory", smoke=1, default=8, nightly=50)
def what_was_only_reserved_is_given_back(lab: Lab, draw: Draw) -> None:
    """Reserve in several contexts without a compute, and close them in any order: all memory comes back."""
    with lab.fresh(alloc_memory=not draw.flag(4)) as backend:
        at_rest = backend.memory().total()
        contexts = [backend.new_context() for _ in range(draw.pick(1, 2, 4))]
        for ctx in contexts:
            ctx.forward(*chain(draw, ctx)[1])
            ctx.reserve()
            if draw.flag(3):
                ctx.reserve()
        if backend.memory().total() <= at_rest:
            raise Fault("memory", "a reserved graph takes no memory")
        for ctx in sorted(contexts, key=lambda ctx: draw.below(100)):
            held = backend.memory().total()
            ctx.close()
            if backend.memory().total() >= held:
                told = "closing a reserved context gives nothing back"
                raise Fault("memory", f"{told}: {held} bytes stay booked")
        if left := backend.memory().total() - at_rest:
            raise Fault("memory", f"contexts that only reserved are closed, and {left} bytes stay booked")


@scenario("memory", smoke=1, default=8, nightly=50)
def bookings_are_no_less_than_the_data(lab: Lab, draw: Draw) -> None:
    """Outputs that can be read at the same time, and the weights of each layer, need at least their own bytes.

    Some models have so many layers that the name of one begins as that of another.
    """
    layers = draw.by_turn(LAYERS, 12, LAYERS, 101)
    with open_drawn_weights(lab, draw, layers) as (backend, weights):
        backend.load()
        memory = backend.memory()
        for layer in range(layers):
            least = sum(w.stored.nbytes for name, w in weights.items() if name.startswith(f"blk.{layer}."))
            booked = sum(d.weights[layer].size for d in memory.devices if layer < len(d.weights))
            if booked < least:
                raise Fault("memory", f"layer {layer} has weights of {least} bytes, and {booked} are booked")
        with backend.new_context() as ctx:
            x, outputs = chain(draw, ctx)
            x.from_floats(np.ones(x.size))
            before = backend.memory().total()
            ctx.compute(*outputs)
            least = sum(y.nbytes for y in outputs)
            grown = backend.memory().total() - before
            if grown < least:
                raise Fault("memory", f"{len(outputs)} outputs have {least} bytes, and {grown} are booked")
