"""A context whose compute was refused goes on: what cannot be compiled is dropped, and nothing else."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import backbay
from backbay import (
    Backend,
    BackendParams,
    Context,
    DType,
    DTypeError,
    Graph,
    NoMemoryError,
    NotComputedError,
    Plan,
    Tensor,
    UnsupportedOpError,
    ops,
)
from backbay.composites.graph_builder import build_graph


@pytest.fixture
def lacking() -> Iterator[Backend]:
    """The reference without softmax."""
    reference = backbay.backends()["cpu_ref"].load()
    table = {op: kernel for op, kernel in reference.kernels.items() if op is not ops.softmax}
    with type("Lacking", (reference,), {"kernels": table})() as opened:
        yield opened


def unknown_op(ctx: Context, x: Tensor) -> Tensor:
    """What core refuses, as the graph is built."""
    return x.softmax(ctx)


def unknown_dtype(ctx: Context, x: Tensor) -> Tensor:
    """What the plugin refuses, as it compiles."""
    return x.cast(ctx, DType.Q4_K)


refusals = pytest.mark.parametrize("refused", [unknown_op, unknown_dtype])


@refusals
def test_a_refused_compute_is_refused_once(lacking: Backend, refused) -> None:
    with lacking.new_context() as ctx:
        x = ctx.from_floats(np.ones(256))
        bad, good = refused(ctx, x), x.neg(ctx)
        with pytest.raises(UnsupportedOpError):
            ctx.compute(bad)
        ctx.compute(good)
        assert good.floats().tolist() == [-1.0] * 256
        with pytest.raises(UnsupportedOpError):
            ctx.compute(bad)
        with pytest.raises(NotComputedError):
            bad.bytes()


@refusals
def test_what_forward_was_given_and_cannot_be_compiled_is_dropped(lacking: Backend, refused) -> None:
    with lacking.new_context() as ctx:
        x = ctx.from_floats(np.ones(256))
        bad, good = refused(ctx, x), x.neg(ctx)
        with pytest.raises(UnsupportedOpError):
            ctx.forward(bad).compute(bad)
        ctx.compute(good)
        assert good.floats()[0] == -1.0
        with pytest.raises(UnsupportedOpError):
            ctx.forward(refused(ctx, x)).reserve()
        ctx.reserve()


@refusals
def test_writes_that_were_given_to_forward_still_run_and_in_their_order(lacking: Backend, refused) -> None:
    with lacking.new_context() as ctx:
        x, cache = ctx.from_floats(np.ones(256)), ctx.zeros(DType.F32, 256)
        first, second = x.copy(ctx, cache), cache.scale(ctx, 3.0).copy(ctx, cache)
        others = [refused(ctx, x) for _ in range(3)]
        ctx.forward(others[0], first, others[1], second, others[2])
        with pytest.raises(UnsupportedOpError):
            ctx.compute(refused(ctx, x))
        assert list(ctx.recording._roots) == [first, second]
        last = cache.neg(ctx)
        ctx.compute(last)
        assert (cache.floats()[0], last.floats()[0]) == (3.0, -3.0)


@refusals
def test_what_was_compiled_before_stays_and_runs_again(lacking: Backend, refused) -> None:
    with lacking.new_context() as ctx:
        x, counter = ctx.from_floats(np.ones(256)), ctx.zeros(DType.F32, 256)
        ctx.forward(counter.add(ctx, x).copy(ctx, counter))
        ctx.compute()
        with pytest.raises(UnsupportedOpError):
            ctx.compute(refused(ctx, x))
        assert counter.floats()[0] == 1.0
        ctx.compute()
        assert counter.floats()[0] == 2.0


def test_results_are_still_read_after_a_refusal_that_came_before_compiling(lacking: Backend) -> None:
    with lacking.new_context() as ctx:
        x = ctx.from_floats([1.0, 2.0])
        y = x.neg(ctx)
        ctx.compute(y)
        with pytest.raises(UnsupportedOpError):
            ctx.compute(x.softmax(ctx))
        assert y.floats().tolist() == [-1.0, -2.0]
        ctx.compute(y)
        assert ctx.counters.compilations == 1


def test_a_graph_that_finds_no_memory_is_not_added(backend: Backend) -> None:
    limited = type(backend)(None, BackendParams(max_memory={"CPU:0": 1 << 16}))
    with limited, limited.new_context() as ctx:
        x = ctx.from_floats(np.ones(64))
        big = x.repeat(ctx, 0, 1 << 12).neg(ctx)
        with pytest.raises(NoMemoryError):
            ctx.compute(big)
        small = x.neg(ctx)
        ctx.compute(small)
        assert small.floats()[0] == -1.0
        ctx.forward(big)
        for _ in range(2):  # a reserve must not forget what it was to reserve: another time there may be room
            with pytest.raises(NoMemoryError):
                ctx.reserve()


def test_a_compile_that_is_interrupted_leaves_the_context_usable() -> None:
    reference = backbay.backends()["cpu_ref"].load()

    class Interrupted(reference):  # type: ignore[misc, valid-type]
        tries = 0

        def compile(self, graph: Graph) -> Plan:
            self.tries += 1
            if self.tries == 1:
                raise KeyboardInterrupt
            plan: Plan = super().compile(graph)
            return plan

    with Interrupted() as backend, backend.new_context() as ctx:
        x = ctx.from_floats([1.0])
        left, right = x.neg(ctx), x.exp(ctx)
        with pytest.raises(KeyboardInterrupt):
            ctx.compute(left)
        ctx.compute(right)
        assert [
            node.op
            for node in build_graph(ctx.recording, tuple(ctx.recording._roots), ctx.backend.supports).nodes
        ][1:] == [ops.exp]


def test_outputs_of_a_compute_that_is_refused_before_it_compiles_are_not_kept(lacking: Backend) -> None:
    with lacking.new_context() as ctx, lacking.new_context() as other:
        x = ctx.from_floats(np.ones(4))
        foreign = other.from_floats(np.ones(4)).neg(other)
        for refused in (ctx.compute, ctx.forward):
            with pytest.raises(DTypeError):
                refused(x.sqr(ctx), foreign)
            with pytest.raises(DTypeError):
                refused(x.sqr(ctx), "junk")
        assert not ctx.recording._roots
        ctx.compute(y := x.neg(ctx))
        assert list(ctx.recording._roots) == [y]


def test_a_backend_that_only_measures_keeps_no_outputs() -> None:
    reference = backbay.backends()["cpu_ref"].load()
    with reference(None, BackendParams(alloc_memory=False)) as backend, backend.new_context() as ctx:
        x = ctx.empty(DType.F32, 4)
        with pytest.raises(backbay.BackbayError, match="only measures"):
            ctx.compute(x.neg(ctx))
        assert not ctx.recording._roots


def test_a_context_that_is_collected_in_the_midst_of_a_compile_is_freed_later() -> None:
    reference = backbay.backends()["cpu_ref"].load()
    lost: list[Context] = []
    held: list[int] = []

    class Collecting(reference):  # type: ignore[valid-type, misc]
        def compile(self, graph: Graph) -> Plan:
            if lost:
                lost.pop().zeros(DType.F32, 1000)
                gc.collect()
                held.append(self.ledger.report().cpu.graph.size)
            return super().compile(graph)

    with Collecting() as backend, backend.new_context() as ctx:
        lost.append(backend.new_context())
        x = ctx.from_floats([2.0])
        ctx.compute(x.neg(ctx))
        ctx.compute(x.sqr(ctx))  # frees the lost context first
        held.append(backend.memory().cpu.graph.size)
    during, after = held
    assert during >= 4000 > after
