"""Profiles: times of runs, and of the nodes of their graphs."""

import threading

import numpy as np
import pytest

import backbay
from backbay import BackbayError, CancelledError, ClosedError, ops
from backbay.backend.kernels.kernel_backend import KernelPlan
from backbay.plugin import Plan


def traced(backend):
    ctx = backend.new_context()
    x = ctx.from_floats(np.ones((3, 4), np.float32))
    return ctx, x, x.add(ctx, x).silu(ctx)


def test_each_op_has_a_time_and_the_times_fit_into_the_run(backend):
    ctx, _, y = traced(backend)
    with backend.profiling() as runs:
        ctx.compute(y)
        assert runs == []  # times are told at the end
        ctx.compute(y)
    first, second = runs
    for run in runs:
        ran = [run.graph.nodes[index].op for timing in run.timings for index in timing.nodes]
        assert ran == [ops.add, ops.silu]
        assert all(timing.device == "CPU:0" for timing in run.timings)
        assert 0 < sum(timing.seconds for timing in run.timings) <= run.seconds
    assert first.begun + first.seconds <= second.begun


def test_results_are_the_same_with_and_without_a_profile(backend):
    ctx, x, y = traced(backend)
    ctx.compute(y)
    before = y.floats()
    with backend.profiling():
        ctx.compute(y)
        assert np.array_equal(y.floats(), before)
        x.from_floats(np.zeros((3, 4), np.float32))
        ctx.compute(y)
        assert not y.floats().any()


def test_contexts_compile_anew_for_a_profile_of_nodes_and_afterwards(backend):
    ctx, _, y = traced(backend)
    ctx.compute(y)
    with backend.profiling():
        assert backend.profiles_nodes
        ctx.compute(y)
        ctx.compute(y)
    assert not backend.profiles_nodes
    ctx.compute(y)
    ctx.compute(y)
    assert ctx.counters.compilations == 3


def test_without_nodes_runs_are_as_ever_and_only_they_are_timed(backend, monkeypatch):
    monkeypatch.setattr(KernelPlan, "profile", lambda *_: pytest.fail("a plan was profiled"))
    ctx, _, y = traced(backend)
    ctx.compute(y)
    with backend.profiling(nodes=False) as runs:
        ctx.compute(y)
    (run,) = runs
    assert run.timings == () and run.seconds > 0
    assert ctx.counters.compilations == 1


def test_a_plan_without_a_profile_of_its_own_tells_no_times_of_nodes(backend, monkeypatch):
    monkeypatch.setattr(KernelPlan, "profile", Plan.profile)
    ctx, _, y = traced(backend)
    with backend.profiling() as runs:
        ctx.compute(y)
    (run,) = runs
    assert run.timings == () and run.seconds > 0
    assert y.floats().any()


def test_times_are_told_after_the_context_is_closed(backend):
    ctx, _, y = traced(backend)
    with backend.profiling() as runs:
        ctx.compute(y)
        ctx.close()
    assert len(runs[0].timings) == 2


def test_a_profile_ends_after_an_error_and_a_cancelled_run_is_not_in_it(backend):
    ctx, _, y = traced(backend)
    cancelled = threading.Event()
    cancelled.set()
    with backend.profiling() as runs:
        with pytest.raises(CancelledError):
            ctx.compute(y, cancel=cancelled)
        ctx.compute(y)
    assert len(runs) == 1 and len(runs[0].timings) == 2
    with pytest.raises(ZeroDivisionError), backend.profiling():
        1 / 0  # noqa: B018
    with backend.profiling() as runs:
        ctx.compute(y)
    assert len(runs) == 1


def test_only_one_profile_at_a_time(backend):
    with backend.profiling(), pytest.raises(BackbayError, match="is being profiled already"):
        backend.profiling().__enter__()


def test_a_closed_backend_is_not_profiled_and_one_may_be_closed_in_a_profile(backend):
    ctx, _, y = traced(backend)
    with backend.profiling() as runs:
        ctx.compute(y)
        backend.close()
    assert len(runs) == 1
    with pytest.raises(ClosedError):
        backend.profiling().__enter__()


def test_the_time_of_a_kernel_is_its_own(monkeypatch):
    clock = [7.0]
    monkeypatch.setattr("backbay.backend.kernels.kernel_backend.perf_counter", lambda: clock[0])

    class Slow(backbay.backends()["cpu_ref"].load()):
        def run_node(self, node, arrays):
            if node.op is ops.silu:
                clock[0] += 2
            super().run_node(node, arrays)

    with backbay.open(None, Slow) as backend:
        ctx, _, y = traced(backend)
        with backend.profiling() as runs:
            ctx.compute(y)
    add, silu = runs[0].timings
    assert (add.seconds, silu.seconds) == (0, 2)
