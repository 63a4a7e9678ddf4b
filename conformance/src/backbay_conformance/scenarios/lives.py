"""Lives: random ones as machines, and the turns of a life that chance seldom takes."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from backbay import Backend, Context, DType, NotComputedError, Precision, Tensor, ops
from backbay.internals import ProfiledRun

from ..draw.data import FillContext, Numbers
from ..draw.draw import Draw
from ..draw.layout import Layout
from ..draw.model_file import write_model
from ..draw.operand import Operand
from ..machines.backend_life import BackendLife
from ..machines.cache_life import CacheLife
from ..machines.machine import walk
from ..machines.shadow import ShadowedGraph
from ..numbers.comparison import Fault, first_bits, must_equal, must_raise, require
from ..numbers.encoding import Array, from_bytes
from ..suite.lab import Lab, scenario
from .graphs import PEAK, chosen, forward, grow, numbers
from .threads import DelayedCancel, cancelled


@scenario("core", tiny=1, smoke=6, default=40, nightly=400, structures=2)
def backend_life(lab: Lab, draw: Draw) -> None:
    """Contexts, leaves, graphs and weights in any order, against plain NumPy; every result known to the bit."""
    walk(BackendLife, lab, draw, 40)


@scenario("cache", tiny=1, smoke=6, default=40, nightly=400)
def cache_life(lab: Lab, draw: Draw) -> None:
    """A cache stored, read, shifted, copied, shortened and moved, against attention over the plain history."""
    walk(CacheLife, lab, draw, 30)


# -- a compute that is cancelled -------------------------------------------------------------------------


@scenario("graph", smoke=1, default=12, nightly=100)
def a_cancelled_compute_leaves_nothing_behind(lab: Lab, draw: Draw) -> None:
    """Cancel after any number of looks, rewrite a leaf or a state, and compute: only the new data count."""
    n, layers = draw.pick(8, 33, 4), draw.pick(12, 3, 40)
    with lab.backend.new_context() as ctx:
        w, x = ctx.from_floats(np.eye(n)), ctx.from_floats(numbers(draw, (n, 3)))
        state, y = ctx.zeros(DType.F32, n, 3), x
        for _ in range(layers):
            y = w.mulmat(ctx, y).add(ctx, x).clamp(ctx, -99.0, 99.0)
        ctx.forward(y.copy(ctx, state))
        total = y.add(ctx, state)
        if draw.flag():
            ctx.compute(total)
        for looks in (draw.below(3), draw.below(layers * 3), draw.below(layers * 6)):
            draw.note(f"{layers} layers, cancelled after {looks} looks")
            x.from_floats(numbers(draw, (n, 3)))
            if cancelled(partial(ctx.compute, total, cancel=DelayedCancel(looks))):
                must_raise("a read after a cancelled compute", NotComputedError, total.floats, "life")
            data = numbers(draw, (n, 3))
            x.from_floats(data)
            state.from_floats(np.zeros((3, n)))
            ctx.compute(total)
            want = data
            for _ in range(layers):
                want = np.clip(want + data, -99, 99)
            after = f"after a compute that was cancelled at look {looks}"
            must_equal(total.numpy(), 2 * want, after, "life")
            must_equal(state.numpy(), want, f"{after}, a state", "life")


@scenario("memory", smoke=1, default=4, nightly=40)
def a_cancelled_compute_is_given_back(lab: Lab, draw: Draw) -> None:
    """Once its context is closed, a compute that was cancelled books nothing more."""
    n, layers, booked = draw.pick(33, 8, 160), draw.pick(12, 3), []
    with lab.fresh() as backend:
        for looks in (None, draw.below(3), draw.below(layers * 3), None):
            with backend.new_context() as ctx:
                y = x = ctx.from_floats(numbers(draw, (n, 3)))
                for _ in range(layers):
                    y = y.add(ctx, x).clamp(ctx, -99.0, 99.0)
                cancelled(partial(ctx.compute, y, cancel=None if looks is None else DelayedCancel(looks)))
            booked.append(backend.memory().total())
            draw.note(f"cancelled after {looks} looks; {booked} bytes are booked")
    if len(set(booked)) > 1:
        told = "after contexts that computed, were cancelled twice, and computed"
        raise Fault("memory", f"{told}: {booked} bytes")


# -- a load that is cancelled ----------------------------------------------------------------------------

LAYERS = 3
ALIGNMENTS = (32, 4096, 8, 128)  # of the weights within a file
MORE_PARTS = 3  # a load looks at its cancellation at least once in so many parts that its progress tells
EXACT = Precision(DType.F32, DType.F32)
STORED = (DType.F32, DType.F16, DType.Q8_0, DType.BF16, DType.Q4_0, DType.Q4_K, DType.Q6_K)
"""The types of weights, among them those that backends rearrange when they load."""


def drawn_weights(draw: Draw, layers: int = LAYERS) -> dict[str, Operand]:
    found = {}
    for layer in range(layers):
        for part in ("attn_q", "ffn_down"):
            dtype = draw.pick(*STORED)
            shape = (256 * draw.pick(1, 2), draw.pick(4, 1, 33, 64))
            found[f"blk.{layer}.{part}.weight"] = drawn_weight(draw, dtype, shape)
    found["token_embd.weight"] = drawn_weight(draw, draw.pick(*STORED), (256, 7))
    found["output.weight"] = drawn_weight(draw, draw.pick(*STORED), (256, 5))
    return found


def drawn_weight(draw: Draw, dtype: DType, shape: tuple[int, ...]) -> Operand:
    operand = Operand(dtype, shape, Numbers(most=7), Layout(), draw.below(1 << 16))
    rng = np.random.default_rng(operand.seed)
    operand.hold(operand.fill(FillContext(rng, "exact", EXACT, 0), operand))
    return operand


@contextmanager
def open_drawn_weights(
    lab: Lab, draw: Draw, layers: int = LAYERS
) -> Iterator[tuple[Backend, dict[str, Operand]]]:
    """A backend with the drawn weights of a file, which are not loaded yet."""
    weights = drawn_weights(draw, layers)
    with open_weights(lab, weights, layers, draw.by_turn(*ALIGNMENTS)) as backend:
        yield backend, weights


@contextmanager
def open_weights(
    lab: Lab, weights: dict[str, Operand], layers: int, alignment: int = ALIGNMENTS[0], **params: Any
) -> Iterator[Backend]:
    """A backend with the weights of a file, which are not loaded yet."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_weights(Path(folder) / "weights.gguf", weights, layers, alignment)
        with lab.fresh(path, **params) as backend:
            yield backend


def write_weights(
    path: Path, weights: dict[str, Operand], layers: int = LAYERS, alignment: int = ALIGNMENTS[0]
) -> Path:
    stored = ((name, weight.dtype, weight.stored) for name, weight in weights.items())
    return write_model(path, layers, stored, 256, alignment)


@scenario("core", smoke=1, default=16, nightly=150)
def a_cancelled_load_can_be_repeated(lab: Lab, draw: Draw) -> None:
    """Cancel a load after any number of looks, once or twice, and load again: every weight is the file's."""
    with open_drawn_weights(lab, draw) as (backend, weights):
        looks = draw.by_turn(1, 2, 3, 0, 5, 9, 4, 17)
        for at in (looks, *[draw.below(looks + 2)] * draw.below(2)):
            draw.note(f"load cancelled after {at} looks")
            if not cancelled(partial(backend.load, cancel=DelayedCancel(at))):
                break
            tensor = backend.get("output.weight")
            if tensor is not None:
                must_raise("a read after a cancelled load", NotComputedError, tensor.floats, "life")
        load_and_compare(backend, weights)


@scenario("core", smoke=1, default=4, nightly=40)
def a_load_is_cancelled_by_its_progress(lab: Lab, draw: Draw) -> None:
    """Cancel a load when its progress first tells a part: it does not go on, part by part, to its end."""
    later: set[float] = set()
    stop = Event()

    def progress(part: float) -> None:
        if 0 < part < 1:
            later.update([part] if stop.is_set() else [])
            stop.set()

    with open_drawn_weights(lab, draw) as (backend, weights):
        ended = cancelled(partial(backend.load, progress, stop))
    draw.note(f"{len(later)} parts of {len(weights)} weights followed the cancellation")
    if not ended and len(later) >= MORE_PARTS:
        raise Fault("life", f"a load that was cancelled went on to its end, {len(later)} parts more")


def load_and_compare(backend: Backend, weights: dict[str, Operand]) -> None:
    backend.load()
    for name, weight in weights.items():
        compare_weight(backend, name, weight)
    product_of_each(backend, weights)


def compare_weight(backend: Backend, name: str, weight: Operand) -> None:
    tensor = backend.get(name)
    if tensor is None:
        raise Fault("weights", f"get({name!r}) gives nothing")
    got = from_bytes(tensor.bytes(), weight.dtype, weight.shape)
    if got.tobytes() != weight.stored.tobytes():
        differ = first_bits(weight.stored, got, weight.dtype)
        raise Fault("weights", f"{name} of {weight.spec} does not hold the file's data: {differ}")


def product_of_each(backend: Backend, weights: dict[str, Operand]) -> None:
    """Compare the first element of each row, as a product with a unit vector gives it."""
    with backend.new_context() as ctx:
        unit = ctx.from_floats(np.eye(1, 512)[:, :256]), ctx.from_floats(np.eye(1, 512))
        results: dict[str, tuple[Tensor, Array]] = {}
        for name, weight in weights.items():
            tensor, rows = backend.get(name), weight.shape[1]
            assert tensor is not None
            if backend.supports(ops.mulmat, [tensor, unit[0]]):
                x, low = unit[weight.shape[0] > 256], rows // 2
                results[name] = tensor.mulmat(ctx, x), weight.decoded[:, 0]
                if rows > 1:
                    y = tensor.slice(ctx, 1, low, rows).mulmat(ctx, x)
                    results[f"rows {low} to {rows} of {name}"] = y, weight.decoded[low:, 0]
            some = [min(1, rows - 1), rows // 2]
            ids = ctx.from_ints(some)
            if backend.supports(ops.rows, [tensor, ids]):  # of a weight that a product may have rearranged
                results[f"rows of {name}"] = tensor.rows(ctx, ids), weight.decoded[some]
        compare_results(ctx, results, close=CLOSE)


CLOSE = 0.02
"""The most that a product may be off, relative to the largest: activations may be rounded to blocks."""


def compare_results(ctx: Context, results: dict[str, tuple[Tensor, Array]], close: float = 0.0) -> None:
    """Compute results of weights, and compare them with what they must be."""
    ctx.compute(*[y for y, _ in results.values()])
    for told, (y, want) in results.items():
        limit = close * np.abs(want).max(initial=0)
        if close and not np.allclose(y.numpy(), want, rtol=close, atol=limit):
            raise Fault("weights", f"a product with or a read of {told} is not that of the file's data")
        if not close:
            must_equal(y.numpy(), want, told, "weights")


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


# -- a compute that is profiled --------------------------------------------------------------------------

PROFILES, RUNS = 2, 2
CLOCKS = 1e-4  # seconds by which the clocks of a backend and of core may differ


@scenario("graph", tiny=1, smoke=2, default=16, nightly=100)
def a_profiled_compute(lab: Lab, draw: Draw) -> None:
    """Profile a graph between two computes as ever: results are right each time, times fit into their runs."""
    with lab.backend.new_context() as ctx:
        wiring = ShadowedGraph(ctx)
        n, m = draw.pick(4, 1, 17, 32), draw.pick(3, 1, 16)
        leaf = wiring.leaf(numbers(draw, (n, m)), 9)
        states = [wiring.leaf(numbers(draw, (n, m + draw.below(3))), PEAK) for _ in range(draw.below(3))]
        grow(draw, wiring, states, 12)
        outputs = chosen(draw, wiring)
        forward(draw, wiring, outputs)
        if draw.flag():
            wiring.check(outputs, states, "before a profile")
        profiles = []
        for profile in range(PROFILES):
            with lab.backend.profiling() as runs:
                for number in range(RUNS):
                    wiring.rewrite(leaf, numbers(draw, leaf.shape))
                    wiring.check(outputs, states, f"profile {profile}, run {number}")
            profiles.append(runs)
        wiring.rewrite(leaf, numbers(draw, leaf.shape))
        wiring.check(outputs, states, "after a profile")
    devices = {device.id for device in lab.backend.devices()}
    for runs in profiles:
        require(len(runs) == RUNS, f"{len(runs)} runs were profiled, not {RUNS}", check="values")
        for run in runs:
            check_times(run, devices)
    timed = {bool(run.timings) for runs in profiles for run in runs}
    told = "some profiled runs of a graph tell times of its ops, and some tell none"
    require(len(timed) < 2, told, check="values")


def check_times(run: ProfiledRun, devices: Collection[str]) -> None:
    """Raise Fault unless the times are of ops of the graph, on devices of the backend, and do not overlap."""
    total, nodes = sum(timing.seconds for timing in run.timings), run.graph.nodes
    told = f"the times of a profiled run sum up to {total} s, and the run took {run.seconds} s"
    require(total <= run.seconds + CLOCKS, told, check="values")
    for timing in run.timings:
        require(
            timing.seconds >= 0, f"a profile tells a time of {timing.seconds} s: {timing}", check="values"
        )
        told = f"a profile names the device {timing.device!r}, which is none of {sorted(devices)}"
        require(timing.device in devices, told, check="values")
        for index in timing.nodes:
            known = 0 <= index < len(nodes) and nodes[index].op is not None
            require(
                known,
                f"a profile tells the time of node {index}, which is no op of the graph",
                check="values",
            )
