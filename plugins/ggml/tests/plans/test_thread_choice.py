"""The number of threads: all on a quiet machine, fewer beside busy neighbours, and all again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from backbay import BackendParams, DType
from backbay_ggml import Ggml
from backbay_ggml.plans.thread_choice import ThreadCountChooser

Times = Callable[[int], float]


def run(
    choice: ThreadCountChooser, seconds: float, time_of: Times, *, interrupted: bool = False
) -> tuple[float, Counter[int]]:
    """Runs a second, and how many were on each count, over so many seconds."""
    passed, counts = 0.0, Counter[int]()
    while passed < seconds:
        count = choice.next()
        counts[count] += 1
        taken = time_of(count)
        choice.learn(taken, min(taken, 1e-3) if interrupted else taken)
        passed += taken
    return counts.total() / passed, counts


def quiet(count: int) -> float:
    return 1e-3 / count**0.6


def busy(chance: random.Random) -> Times:
    """Half of one core for one thread; several threads are mostly interrupted, and then wait for each other."""
    return lambda count: 2e-3 if count == 1 or chance.random() < 0.2 else 15e-3


def test_a_quiet_machine_loses_nothing() -> None:
    for most in (2, 3, 8, 16):
        rate, counts = run(ThreadCountChooser(most), 20.0, quiet)
        assert rate > 0.99 / quiet(most)
        assert counts[most] > 0.99 * counts.total()


def test_single_interruptions_change_nothing() -> None:
    chance = random.Random(1)
    _, counts = run(
        ThreadCountChooser(2), 20.0, lambda count: 5e-3 if chance.random() < 0.01 else quiet(count)
    )
    assert counts[2] > 0.98 * counts.total()


@pytest.mark.fault("busy neighbours on every core", "ggml takes fewer threads, and all again when they end")
def test_busy_neighbours_leave_almost_the_rate_of_one_thread() -> None:
    choice, beside = ThreadCountChooser(2), busy(random.Random(1))
    run(choice, 5.0, quiet)
    run(choice, 1.0, beside, interrupted=True)
    rate, _ = run(choice, 20.0, beside)
    assert rate > 0.85 * 500
    run(choice, 5.0, quiet)
    rate, _ = run(choice, 5.0, quiet)
    assert rate > 0.99 / quiet(2)


def test_a_machine_that_is_busy_from_the_beginning_soon_runs_one_thread() -> None:
    choice = ThreadCountChooser(2)
    run(choice, 1.0, lambda count: 4e-3 if count == 1 else 0.1, interrupted=True)
    assert run(choice, 0.1, lambda count: 4e-3 if count == 1 else 0.1, interrupted=True)[1].keys() == {1}


@pytest.mark.fault(
    "many busy neighbours on every core", "ggml takes one thread after two steps, not after ten seconds"
)
def test_threads_that_spin_while_they_wait_hide_no_better_count() -> None:
    choice, spent, counts = ThreadCountChooser(2), 0.0, Counter[int]()
    while spent < 60.0:
        count = choice.next()
        counts[count] += 1
        seconds, work = (0.17, 0.02) if count == 2 else (1.3e-3, 1.3e-3)
        choice.learn(seconds, work)
        spent += seconds
        if spent < 0.5:
            assert counts[2] <= 2
    assert counts[2] * 0.17 < 0.04 * spent


@pytest.mark.fault(
    "a neighbour that disturbs two steps of a large model",
    "ggml runs on one thread for 20 steps, not for 370",
)
@pytest.mark.parametrize(("disturbed", "most"), [(2, 20), (10, 20), (30, 100), (100, 100)])
def test_after_a_short_disturbance_all_threads_soon_run_again(disturbed: int, most: int) -> None:
    choice, counts = ThreadCountChooser(2), Counter[int]()
    for step in range(disturbed + 400):
        count = choice.next()
        counts[count] += 1
        seconds = 0.031 if count == 1 else 0.08 if step < disturbed else 0.022
        choice.learn(seconds, min(seconds, 0.022))
    assert counts[1] <= most


def test_a_graph_that_is_faster_on_one_thread_gets_one() -> None:
    rate, _ = run(ThreadCountChooser(2), 10.0, lambda count: 1e-4 * count)
    assert rate > 0.9 * 1e4


def test_long_runs_are_not_slowed_down_by_tries() -> None:
    _, counts = run(ThreadCountChooser(2), 30.0, lambda count: 2.0 / count)
    assert counts[1] == 0


def test_one_thread_stays_one() -> None:
    assert run(ThreadCountChooser(1), 1.0, lambda _: 1e-3)[1].keys() == {1}


def test_steps_of_one_token_and_of_many_choose_apart_however_large_their_cache_is() -> None:
    with Ggml(None, BackendParams(num_threads=2)) as backend:
        cache = backend.new_context().zeros(DType.F16, 64, 8192)
        for tokens in (1, 16):
            ctx = backend.new_context()
            rows = ctx.from_floats(np.ones((tokens, 64), np.float32))
            y = cache.set_rows(ctx, rows, ctx.from_ints(np.arange(tokens))).rows(
                ctx, ctx.from_ints([0] * tokens)
            )
            ctx.compute(y.add(ctx, rows))
        assert len(backend.services.thread_choices) == 2


def test_results_are_the_same_on_any_number_of_threads() -> None:
    """Attention over a long history is divided between threads, so there the number is fixed."""
    random_ = np.random.default_rng(1)
    with Ggml(None, BackendParams(num_threads=2)) as backend, backend.new_context() as ctx:
        q = ctx.from_floats(random_.standard_normal((1, 4, 64)))
        k, v = (ctx.empty(DType.F16, 64, 2, 1024) for _ in range(2))
        for leaf in (k, v):
            leaf.from_floats(random_.standard_normal((1024, 2, 64)))
        y = q.scaled_dot_product_attention(ctx, k, v, scale=0.125)
        ctx.compute(y)
        first = y.bytes()
        for _ in range(60):
            ctx.compute(y)
            assert y.bytes() == first
