"""Threads: several contexts run in parallel; one context serves one thread at a time, and a call may be cancelled."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from typing import TypeVar

import numpy as np

from backbay import (
    BackbayError,
    Backend,
    CancelledError,
    Context,
    ContextBusyError,
    DType,
    KernelBackend,
    Tensor,
    UnsupportedOpError,
)

from ..draw.draw import Draw
from ..fault import Fault, require
from ..numbers.comparison import must_equal
from ..suite.lab import Lab, scenario


class CancelCountdown:
    """A cancellation that becomes set after so many looks."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def cancelled(act: Callable[[], object]) -> bool:
    """Whether a call ends with CancelledError."""
    try:
        act()
    except CancelledError:
        return True
    return False


T = TypeVar("T")

OFTEN = 1e-5
"""Seconds after which another thread gets Python's lock: a race between kernels in Python then shows."""


def together(*works: Callable[[], None]) -> None:
    """Run all functions in parallel, and raise the first error."""
    start = threading.Barrier(len(works))

    def begin(work: Callable[[], None]) -> None:
        start.wait()
        work()

    usual = sys.getswitchinterval()
    sys.setswitchinterval(OFTEN)
    try:
        with ThreadPoolExecutor(len(works)) as pool:
            for _ in pool.map(begin, works):
                pass
    finally:
        sys.setswitchinterval(usual)


def steps(backend: Backend, offset: int, rounds: int, n: int) -> None:
    """Compute again and again, and check each result; f16 needs working memory, which threads must not share."""
    with backend.new_context() as ctx:
        x = ctx.empty(DType.F16, n, n)
        w = ctx.empty(DType.F16, n, n).from_floats(np.eye(n) * (1 + offset))
        state = ctx.zeros(DType.F32, n, n)
        y = w.mulmat(ctx, x).add(ctx, state)
        ctx.forward(y).forward(y.clamp(ctx, -1e6, 1e6).copy(ctx, state))
        total, numbers = np.zeros(n * n), np.arange(float(n * n)) % 61
        for turn in range(rounds):
            data = numbers + turn + offset
            x.from_floats(data)
            ctx.compute(y)
            total = total + data * (1 + offset)
            must_equal(y.floats(), total, f"thread {offset}, round {turn}", "threads")


@scenario("graph", smoke=2, default=8, nightly=60)
def contexts_in_threads_do_not_disturb_each_other(lab: Lab, draw: Draw) -> None:
    backend, rounds, n = lab.backend, draw.pick(10, 30), draw.pick(8, 33, 160, 240)
    together(*[lambda offset=offset: steps(backend, offset, rounds, n) for offset in range(draw.pick(2, 3))])


@scenario("graph", smoke=1, default=12, nightly=60)
def backends_in_threads_do_not_disturb_each_other(lab: Lab, draw: Draw) -> None:
    """Several backends compute in parallel, each in a thread; some are closed while the others go on."""
    rounds, n = draw.pick(10, 30), draw.pick(8, 160, 33, 240)

    def work(offset: int) -> None:
        for _ in range(1 + offset % 2):
            with lab.fresh() as backend:
                steps(backend, offset, rounds, n)

    together(*[lambda offset=offset: work(offset) for offset in range(draw.by_turn(2, 4, 3))])


@scenario("graph", smoke=2, default=8, nightly=60)
def one_context_serves_one_thread_at_a_time(lab: Lab, draw: Draw) -> None:
    """A second thread waits for the first or is refused; results of the two never mix."""
    with lab.backend.new_context() as ctx:
        x = ctx.from_floats(np.ones(4096), 64, 64)
        y = x
        for _ in range(20):
            y = x.mulmat(ctx, y).scale(ctx, 1 / 64)
        ctx.compute(y)

        def work() -> None:
            for _ in range(5):
                try:
                    ctx.compute(y)
                except ContextBusyError:
                    continue

        together(work, work)
        ctx.compute(y)
        must_equal(y.floats(), np.ones(y.size), "after two threads", "threads")


@scenario("graph", smoke=1, default=8, nightly=60)
def a_context_passes_from_thread_to_thread(lab: Lab, draw: Draw) -> None:
    """One context, used by one thread after the other: each sees what the one before it has written and computed."""
    n = draw.pick(8, 33, 160)
    with ExitStack() as opened:
        threads = [opened.enter_context(ThreadPoolExecutor(1)) for _ in range(draw.pick(2, 3))]

        def elsewhere(act: Callable[[], T]) -> T:
            return threads[draw.below(len(threads))].submit(act).result()

        ctx = elsewhere(lab.backend.new_context)
        opened.callback(ctx.close)
        x, w = ctx.empty(DType.F16, n, n), ctx.empty(DType.F16, n, n).from_floats(np.eye(n) * 2)
        state, total = ctx.zeros(DType.F32, n, n), np.zeros(n * n)
        y = elsewhere(lambda: w.mulmat(ctx, x).add(ctx, state))
        ctx.forward(y).forward(y.scale(ctx, 1.0).copy(ctx, state))
        for turn in range(6):
            data = np.arange(float(n * n)) % 61 + turn
            elsewhere(lambda data=data: x.from_floats(data))  # type: ignore[misc]
            elsewhere(lambda: ctx.compute(y))
            total = total + data * 2
            for result, told in ((y, "a result"), (state, "a state"), (y, "a result, read again")):
                what = f"{told} in turn {turn}, read in another thread"
                must_equal(elsewhere(result.floats), total, what, "threads")
        elsewhere(ctx.close)


@scenario("graph", smoke=1, default=4, nightly=20)
def closing_waits_for_what_runs(lab: Lab, draw: Draw) -> None:
    """Another thread may close the backend at any time: running computes end, later computes are refused."""
    with lab.fresh() as backend:
        closed = threading.Event()

        def work() -> None:
            try:
                steps(backend, 1, 200, 8)
            except (Fault, UnsupportedOpError):
                raise
            except BackbayError:
                closed.wait(5)

        def close() -> None:
            backend.close()
            closed.set()

        together(work, close)


@scenario("graph", tiny=1, smoke=1, default=3, nightly=20)
def a_cancelled_compute_raises(lab: Lab, draw: Draw) -> None:
    """A compute cancelled before its start raises; afterwards the context computes as usual."""
    cancel = threading.Event()
    cancel.set()
    with lab.backend.new_context() as ctx:
        x = ctx.from_floats([1.0, 2.0, 3.0])
        y = x.add(ctx, x).mul(ctx, x)
        if not cancelled(lambda: ctx.compute(y, cancel=cancel)):
            raise Fault("threads", "a cancelled compute did not raise CancelledError")
        ctx.compute(y)
        must_equal(y.floats(), np.array([2.0, 8.0, 18.0]), "after a cancelled compute", "threads")


LONG = 0.2
"""A compute of at least so many seconds must notice a cancellation: engines check every few milliseconds."""


def product_chain(ctx: Context, n: int, length: int) -> Tensor:
    """A chain of n by n products with the unit matrix: ones, and nodes that take equally long."""
    y, w = ctx.from_floats(np.ones((n, n))), ctx.from_floats(np.eye(n))
    for _ in range(length):
        y = w.mulmat(ctx, y)
    return y


class CancelLookRecorder:
    """An event that is never set, and the times of all looks at it."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def is_set(self) -> bool:
        self.times.append(time.perf_counter())
        return False


TRIES = 8
NODES = 64
BLIND = 12 / NODES  # the longest part of a compute of equal nodes without a look at `cancel`


def watched(ctx: Context, y: Tensor) -> tuple[float, float]:
    """The seconds of a compute that nobody cancels, and the longest part of it in which it did not look at `cancel`.

    The part is 0 for an engine that nothing can interrupt, which looks before and after its run only.
    """
    looks = CancelLookRecorder()
    started = time.perf_counter()
    ctx.compute(y, cancel=looks)
    seconds = time.perf_counter() - started
    times = [0.0, *[(look - started) / seconds for look in looks.times], 1.0]
    within = any(1 / NODES < look < 1 - 1 / NODES for look in times)
    kernels = isinstance(ctx.backend, KernelBackend)  # core runs them one by one
    return seconds, max(b - a for a, b in pairwise(times)) if within or kernels else 0.0


@scenario("graph", smoke=1, default=1, nightly=5)
def a_compute_is_cancelled_while_it_runs(lab: Lab, draw: Draw) -> None:
    """A long compute looks at `cancel` often, and ends early when cancelled; afterwards the context computes as usual."""
    n = 256
    for _ in range(6):  # until a compute is long, however fast the machine is
        with lab.backend.new_context() as ctx:
            y = product_chain(ctx, n, NODES)
            ctx.forward(y).reserve()  # compiling does not count
            seconds, blind = watched(ctx, y)
            if seconds > LONG:
                must_end_early(ctx, y, seconds, blind)
            part = product_chain(ctx, n, 2)
            ctx.compute(part)
            must_equal(part.floats(), np.ones(part.size), "after a cancelled compute", "threads")
        if seconds > LONG or n >= 1024:
            return
        wide = n * math.cbrt(1.4 * LONG / seconds)  # products take time by the cube of their width
        n = min(1024, max(n + 32, 32 * math.ceil(wide / 32)))


def must_end_early(ctx: Context, y: Tensor, seconds: float, blind: float) -> None:
    """Raise Fault unless a long compute ends when it is cancelled, and looks often whether it is."""
    # On a busy machine the thread that checks may get no time, but not in each of three tries.
    if not any(cancelled(lambda: ctx.compute(y, cancel=CancelCountdown(1))) for _ in range(3)):
        raise Fault("threads", f"a compute of {seconds:.1f} s was cancelled, but ran to its end")
    # A busy machine may stop the compute between two looks, but not in each of several tries.
    tries = 1
    while blind > BLIND and tries < TRIES:
        blind, tries = min(blind, watched(ctx, y)[1]), tries + 1
    told = f"{100 * blind:.0f} % of a compute of {NODES} long nodes pass without a look at cancel"
    require(blind <= BLIND, told, check="threads")
