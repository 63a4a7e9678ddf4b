"""Cancelled computes and loads: what follows is right, and nothing stays booked."""

from __future__ import annotations

from functools import partial
from threading import Event

import numpy as np

from backbay import DType, NotComputedError

from ..draw.draw import Draw
from ..fault import Fault, must_raise
from ..numbers.comparison import must_equal
from ..suite.lab import Lab, scenario
from .graphs import numbers
from .threads import CancelCountdown, cancelled
from .weights.drawn_weights import load_and_compare, open_drawn_weights

MORE_PARTS = 3  # a load looks at its cancellation at least once in so many parts that its progress tells


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
            if cancelled(partial(ctx.compute, total, cancel=CancelCountdown(looks))):
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
                cancelled(partial(ctx.compute, y, cancel=None if looks is None else CancelCountdown(looks)))
            booked.append(backend.memory().total())
            draw.note(f"cancelled after {looks} looks; {booked} bytes are booked")
    if len(set(booked)) > 1:
        told = "after contexts that computed, were cancelled twice, and computed"
        raise Fault("memory", f"{told}: {booked} bytes")


@scenario("core", smoke=1, default=16, nightly=150)
def a_cancelled_load_can_be_repeated(lab: Lab, draw: Draw) -> None:
    """Cancel a load after any number of looks, once or twice, and load again: every weight is the file's."""
    with open_drawn_weights(lab, draw) as (backend, weights):
        looks = draw.by_turn(1, 2, 3, 0, 5, 9, 4, 17)
        for at in (looks, *[draw.below(looks + 2)] * draw.below(2)):
            draw.note(f"load cancelled after {at} looks")
            if not cancelled(partial(backend.load, cancel=CancelCountdown(at))):
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
