"""Dump: the layout of the seeds, and that it only reads."""

import threading

import numpy as np
import pytest
from patience import PATIENCE, CountedLock, wait_until

import backbay
from backbay import DType, KernelBackend, NotComputedError, dump, ops


def test_the_layout_of_brackets(ctx):
    x = ctx.from_floats(np.arange(-3, 5), 2, 2, 2)
    assert dump(x, precision=1) == "[[[-3.0, -2.0],\n  [-1.0,  0.0]],\n\n [[ 1.0,  2.0],\n  [ 3.0,  4.0]]]"
    assert dump(ctx.from_ints([1, -2])) == "[ 1, -2]"
    assert dump(ctx.from_floats([1.23456])) == "[ 1.2346]"


def test_beyond_the_threshold_only_the_edges_are_shown(ctx):
    x = ctx.arange(0, 10)
    assert dump(x, precision=0, threshold=9, edge_items=2) == "[ 0,  1, ...,  8,  9]"
    assert dump(x, precision=0, threshold=10).count(",") == 9
    square = ctx.from_floats(np.arange(25), 5, 5)
    assert (
        dump(square, precision=0, threshold=4, edge_items=1) == "[[ 0, ...,  4],\n ..., \n [ 20, ...,  24]]"
    )


def test_half_and_quantized_tensors_are_shown_as_floats(ctx):
    for dtype in (DType.F16, DType.BF16, DType.Q8_0):
        assert (
            dump(ctx.empty(dtype, 32).from_floats(np.ones(32)), precision=1, threshold=1, edge_items=1)
            == "[ 1.0, ...,  1.0]"
        )


def test_what_is_not_computed_is_and_nothing_else_changes(ctx):
    x = ctx.from_floats([1, 2])
    y = x.neg(ctx)
    z = y.scale(ctx, 10)
    ctx.compute(y)
    assert dump(z, precision=0) == "[-10, -20]"
    assert y.floats().tolist() == [-1, -2]
    assert ctx.counters.runs == 1 and ctx.counters.compilations == 1
    with pytest.raises(NotComputedError):
        z.floats()


def test_it_never_writes(ctx):
    state = ctx.zeros(DType.F32, 2)
    written = ctx.from_floats([1, 2]).copy(ctx, state)
    with pytest.raises(NotComputedError, match="depends on copy, which writes"):
        dump(written.neg(ctx))
    assert state.floats().tolist() == [0, 0]
    ctx.compute(written)
    assert dump(written, precision=0) == "[ 1,  2]"
    assert backbay.dump is dump


def test_a_dump_that_computes_takes_its_turn():
    entered, leave, compiled = threading.Event(), threading.Event(), []

    class Slow(KernelBackend):
        contract_version = "1.1"

        @staticmethod
        def neg(x):
            entered.set()
            assert leave.wait(PATIENCE)
            return -x

        kernels = {ops.neg: neg, ops.sqr: np.square}

        def compile(self, graph):
            compiled.append(graph)
            return super().compile(graph)

    with Slow() as backend, backend.new_context() as first, backend.new_context() as second:
        backend.lock = CountedLock(backend.lock)
        slow, wanted = first.from_floats([1.0]).neg(first), second.from_floats([3.0]).sqr(second)
        computing = threading.Thread(target=first.compute, args=(slow,))
        computing.start()
        assert entered.wait(PATIENCE)
        shown = []
        dumping = threading.Thread(target=lambda: shown.append(dump(wanted)))
        dumping.start()
        wait_until(lambda: backend.lock.waits or not dumping.is_alive())
        early = len(compiled)  # a plan that is compiled now may free the memory of the running one
        leave.set()
        dumping.join(PATIENCE)
        computing.join(PATIENCE)
    assert early == 1
    assert shown == ["[ 9.0000]"]
