"""Lifetime and threads: closing in any order, use from several threads, cancelling, memory over time."""

import gc
import resource
import threading

import numpy as np
import pytest
from patience import PATIENCE, CountedLock, wait_until

import backbay
from backbay import CancelledError, ClosedError, ContextBusyError, DType
from backbay.backend.kernels.kernel_backend import KernelPlan


def test_closing_is_final_and_may_be_repeated(backend):
    ctx = backend.new_context()
    x = ctx.from_floats([1, 2])
    for thing in (ctx, ctx, backend, backend):
        thing.close()
    for use in (
        lambda: backend.new_context(),
        lambda: backend.get("w"),
        lambda: backend.load(),
        lambda: backend.memory(),
        lambda: ctx.input(),
        lambda: ctx.layer(0),
        lambda: ctx.set_batch_size(1),
        lambda: ctx.compute(),
        lambda: ctx.reserve(),
        lambda: x.from_floats([1, 2]),
        lambda: x.floats(),
    ):
        with pytest.raises(ClosedError):
            use()


def test_closing_a_backend_closes_its_contexts(backend):
    ctx = backend.new_context()
    y = ctx.from_floats([1, 2]).neg(ctx)
    ctx.compute(y)
    backend.close()
    with pytest.raises(ClosedError):
        y.floats()
    ctx.close()


def test_a_result_that_looks_into_a_closed_contexts_leaf_is_closed_too(backend, ctx):
    other = backend.new_context()
    x = other.from_floats([1, 2])
    seen, copied = x.view(ctx, 4, (1,)), x.neg(ctx)
    ctx.compute(seen, copied)
    other.close()
    with pytest.raises(ClosedError, match="view of a leaf of a closed context"):
        seen.floats()
    assert copied.floats().tolist() == [-1, -2]


def test_memory_is_given_back(backend):
    ctx = backend.new_context()
    y = ctx.layer(1).zeros(DType.F32, 1000).neg(ctx)
    ctx.compute(y)
    assert backend.memory().allocated() >= 8000
    ctx.close()
    assert backend.memory().total() == 0


class Gated:
    """A backend whose nodes tell when they run, and wait until they may go on."""

    def __new__(cls):
        reference = backbay.backends()["cpu_ref"].load()
        running, go_on = threading.Event(), threading.Event()
        active = []

        def run_node(self, node, arrays):
            running.set()
            active.append(1)
            assert len(active) == 1, "two computes at once"
            assert go_on.wait(PATIENCE)
            active.pop()
            reference.run_node(self, node, arrays)

        made = type("Gated", (reference,), {"run_node": run_node})()
        made.running, made.go_on, made.lock = running, go_on, CountedLock(made.lock)
        return made


def chain(ctx, length):
    y = ctx.from_floats([1.0])
    for _ in range(length):
        y = y.neg(ctx)
    return y


def in_thread(function):
    errors = []

    def run():
        try:
            function()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def test_computes_of_two_contexts_take_turns():
    backend = Gated()
    contexts = [backend.new_context() for _ in range(2)]
    outputs = [chain(ctx, 6) for ctx in contexts]
    threads = [in_thread(lambda c=c, y=y: c.compute(y)) for c, y in zip(contexts, outputs, strict=True)]
    wait_until(lambda: backend.lock.waits)
    backend.go_on.set()
    for thread, errors in threads:
        thread.join()
        assert errors == []
    assert [y.floats().tolist() for y in outputs] == [[1.0], [1.0]]


@pytest.mark.fault("two threads use one context at the same time", "ContextBusyError in the second thread")
def test_one_context_from_two_threads_raises():
    backend = Gated()
    ctx = backend.new_context()
    y = chain(ctx, 4)
    x = ctx.from_floats([1.0])
    thread, errors = in_thread(lambda: ctx.compute(y))
    assert backend.running.wait(PATIENCE)
    for use in (
        lambda: ctx.compute(y),
        lambda: ctx.reserve(),
        lambda: x.neg(ctx),
        lambda: x.from_floats([2.0]),
    ):
        with pytest.raises(ContextBusyError):
            use()
    backend.go_on.set()
    thread.join()
    assert errors == [] and y.floats().tolist() == [1.0]


@pytest.mark.fault(
    "a backend is closed in the midst of a compute", "closing waits until the compute has ended"
)
@pytest.mark.parametrize("what", ["context", "backend"])
def test_closing_waits_for_a_running_compute(what):
    backend = Gated()
    ctx = backend.new_context()
    context_lock = ctx.recording.in_use = CountedLock(ctx.recording.in_use)
    y = chain(ctx, 4)
    thread, errors = in_thread(lambda: ctx.compute(y))
    assert backend.running.wait(PATIENCE)
    closing, errors_of_closing = in_thread((ctx if what == "context" else backend).close)
    wait_until(lambda: context_lock.waits + backend.lock.waits)
    backend.go_on.set()
    closing.join()
    thread.join()
    assert errors + errors_of_closing == [] and ctx.counters.runs == 1


@pytest.mark.fault(
    "a backend is closed while another thread reads or writes data", "closing waits until it has the data"
)
@pytest.mark.parametrize("what", ["read", "write", "zero"])
def test_closing_waits_for_a_thread_that_reads_or_writes_data(backend, monkeypatch, what):
    ctx = backend.new_context()
    x = ctx.from_floats([1, 2])
    lock = ctx.recording.data_lock = CountedLock(ctx.recording.data_lock)
    uses = {"read": x.floats, "write": lambda: x.from_floats([3, 4]), "zero": x.leaf.zero}
    unhurried, closings = getattr(x.leaf.buffer, what), []

    def use_data(*data):
        closings.append(in_thread(backend.close))
        wait_until(lambda: lock.waits)
        assert not x.leaf.closed
        return unhurried(*data)

    monkeypatch.setattr(x.leaf.buffer, what, use_data)
    uses[what]()
    [(closing, errors)] = closings
    closing.join()
    assert errors == [] and backend.closed
    for use in uses.values():
        with pytest.raises(ClosedError):
            use()


def test_a_cancelled_compute_stops_early_and_has_no_results():
    reference, ran, cancel = backbay.backends()["cpu_ref"].load(), [], threading.Event()

    class Cancelled(reference):
        """Its fifth node is cancelled while it runs."""

        def run_node(self, node, arrays):
            ran.append(node)
            if len(ran) == 5:
                cancel.set()
            super().run_node(node, arrays)

    ctx = Cancelled().new_context()
    y = chain(ctx, 200)
    with pytest.raises(CancelledError):
        ctx.compute(y, cancel=cancel)
    assert len(ran) == 5
    with pytest.raises(backbay.NotComputedError):
        y.floats()


def test_tracing_two_contexts_in_two_threads_is_fine(backend):
    shared = backend.new_context().from_floats(np.ones(4))
    results = {}

    def trace(name):
        ctx = backend.new_context(max_nodes=5000)
        y = ctx.from_floats(np.ones(4))
        for _ in range(2000):
            y = y.add(ctx, shared)
        ctx.compute(y)
        results[name] = y.floats().tolist()

    threads = [in_thread(lambda n=n: trace(n)) for n in range(4)]
    for thread, errors in threads:
        thread.join()
        assert errors == []
    assert results == {n: [2001.0] * 4 for n in range(4)}


def test_tensors_hash_by_identity_and_outlive_their_use(ctx):
    x = ctx.from_floats([1, 2])
    assert len({x, x, ctx.from_floats([1, 2])}) == 2
    assert x != ctx.from_floats([1, 2])


def test_a_context_that_is_dropped_gives_its_memory_back(backend):
    ctx = backend.new_context()
    y = ctx.from_floats(np.ones(1000)).neg(ctx)
    ctx.compute(y)
    assert backend.memory().total() >= 8000  # leaf and result; kernels work in more
    del ctx, y
    gc.collect()
    assert backend.memory().total() == 0
    assert backend.counters.runs == 1


def test_collecting_a_dropped_context_never_waits_for_a_running_compute():
    backend = Gated()
    running, dropped = backend.new_context(), backend.new_context()
    y = chain(running, 3)
    running.reserve()
    dropped.layer(0).zeros(DType.F32, 1000)
    thread, errors = in_thread(lambda: running.compute(y))
    assert backend.running.wait(PATIENCE)
    del dropped
    gc.collect()
    assert thread.is_alive()
    backend.go_on.set()
    thread.join()
    assert errors == []
    running.compute(y)  # who computes next frees it
    assert backend.memory().cpu.cache[0].size == 0


def test_a_plan_whose_memory_moved_is_compiled_again_and_counted():
    reference = backbay.backends()["cpu_ref"].load()
    newest = []

    class Moving(KernelPlan):
        valid = property(lambda self: newest[-1] is self)

    class Moves(reference):
        """Its plans share one memory, as if every compile moved it."""

        def compile(self, graph):
            newest.append(Moving(self, graph))
            return newest[-1]

    with backbay.open(None, backend=Moves) as backend:
        first, second = backend.new_context(), backend.new_context()
        x = first.from_floats([1.0])
        a, b = x.neg(first), second.from_floats([2.0]).neg(second)
        first.compute(a)
        second.compute(b)
        with pytest.raises(backbay.NotComputedError):
            a.floats()
        first.compute(a)
        assert a.floats().tolist() == [-1.0]
        assert first.counters.compilations == 2


@pytest.mark.thorough
def test_ten_thousand_contexts_leave_memory_flat(backend):
    def live():
        for _ in range(1000):
            with backend.new_context() as ctx:
                y = ctx.from_floats(np.ones((8, 64))).exp(ctx)
                ctx.compute(y)

    live()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(9):
        live()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 2048, f"{grown} KiB more after 9,000 contexts"
    assert backend.memory().total() == 0
    assert backend.counters.runs == 10_000


def test_a_graph_that_grew_over_a_leaf_of_a_closed_context_says_so(backend):
    """Compiling it anew does not stumble over memory that is gone."""
    with backend.new_context() as ctx:
        other = backend.new_context()
        x, state = ctx.from_floats([1.0, 2.0]), other.zeros(DType.F32, 2)
        ctx.forward(x.copy(ctx, state))
        ctx.compute()
        y = x.neg(ctx)
        other.close()
        with pytest.raises(ClosedError, match="a leaf of this graph belongs to a closed context"):
            ctx.compute(y)
        with pytest.raises(ClosedError):
            ctx.reserve()
