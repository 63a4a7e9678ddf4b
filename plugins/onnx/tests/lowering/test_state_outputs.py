"""How written states leave a model: in place whenever nothing can read there too late, else as rows, else as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from decoder_step import SHAPES, Step

import backbay
from backbay import DType
from backbay_onnx.lowering.lowered_model import LoweredModel

ROWS, WIDTH = 6, 4


@pytest.fixture
def backend() -> Iterator[Any]:
    with backbay.open(None, backend="onnx") as opened:
        yield opened


def numbered(ctx: Any) -> Any:
    """A state whose every element is different."""
    return ctx.from_floats(np.arange(1.0, 1.0 + ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH))


def rows(ctx: Any, *values: float) -> Any:
    return ctx.from_floats(np.repeat(np.array(values, np.float32)[:, None], WIDTH, axis=1))


def at(ctx: Any, state: Any, first: int, count: int) -> Any:
    return state.view(ctx, 4 * WIDTH * first, (WIDTH, count), (4 * WIDTH,))


Case = Callable[[Any, Any], list[Any]]  # (context, state) -> outputs


def check(backend: Any, case: Case) -> LoweredModel:
    """Run a case twice on both backends, compare outputs and state, and give the lowered graph."""
    seen: dict[str, list[Any]] = {}
    with backbay.open(None, backend="cpu_ref") as reference:
        for name, each in (("ours", backend), ("theirs", reference)):
            with each.new_context() as ctx:
                state = numbered(ctx)
                outputs = case(ctx, state)
                seen[name] = []
                for _ in range(2):
                    ctx.compute(*outputs)
                    seen[name] += [tensor.numpy() for tensor in (*outputs, state)]
    for ours, theirs in zip(*seen.values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    (compiled,) = next(reversed(backend.sessions._compiled.values()))
    return compiled.lowered


def in_place(lowered: LoweredModel) -> list[bool]:
    return [state.in_place for state in lowered.states]


def test_several_writes_are_all_made_in_place(backend: Any) -> None:
    def case(ctx: Any, state: Any) -> list[Any]:
        ctx.forward(state.set_rows(ctx, rows(ctx, 7, 8), ctx.from_ints([1, 4])))
        ctx.forward(state.set_rows(ctx, rows(ctx, 9), ctx.from_ints([4])))
        ctx.forward(rows(ctx, -1).copy(ctx, at(ctx, state, 0, 1)))
        return [state.sum_rows(ctx)]

    assert in_place(check(backend, case)) == [True] * 3


def test_rows_that_are_turned_are_written_back_in_place(backend: Any) -> None:
    def case(ctx: Any, state: Any) -> list[Any]:
        place = state.view(ctx, 4 * WIDTH, (WIDTH, 1, 3), (4 * WIDTH, 4 * WIDTH))
        turned = place.rope(ctx, ctx.from_ints([1, 2, 3]), WIDTH, 100.0)
        ctx.forward(turned.copy(ctx, place))
        return []

    assert in_place(check(backend, case)) == [True]


def test_rows_that_move_one_after_the_other_move_in_place(backend: Any) -> None:
    def case(ctx: Any, state: Any) -> list[Any]:
        for source, target, count in ((2, 0, 2), (1, 2, 3), (3, 4, 1)):  # the second overlaps itself
            ctx.forward(at(ctx, state, source, count).copy(ctx, at(ctx, state, target, count)))
        return []

    assert in_place(check(backend, case)) == [True] * 3


@pytest.mark.parametrize("factor", [None, 1.0, 2.0])
def test_rows_that_change_places_among_themselves_are_read_before_they_are_written(
    backend: Any, factor: float | None
) -> None:
    def case(ctx: Any, state: Any) -> list[Any]:
        source = state if factor is None else state.scale(ctx, factor)
        ctx.forward(state.set_rows(ctx, source, ctx.from_ints([5, 4, 3, 2, 1, 0])))
        return []

    assert in_place(check(backend, case)) == [True]


def test_a_value_kept_from_before_a_write_leaves_rows_to_put(backend: Any) -> None:
    def case(ctx: Any, state: Any) -> list[Any]:
        ids = ctx.from_ints([3, 1])
        old = state.rows(ctx, ids)
        ctx.forward(state.set_rows(ctx, old.scale(ctx, 0.5), ids))
        ctx.forward(state.set_rows(ctx, rows(ctx, 2), ctx.from_ints([1])))
        return [old.sqr(ctx)]

    lowered = check(backend, case)
    assert not lowered.states
    assert len(lowered.rows) == 2


def test_a_state_that_is_read_before_and_after_a_write_is_made_anew(backend: Any) -> None:
    def case(ctx: Any, state: Any) -> list[Any]:
        before = state.sqr(ctx)
        ctx.forward(before, state.set_rows(ctx, rows(ctx, 5), ctx.from_ints([2])))
        return [before, state.sum_rows(ctx)]

    assert in_place(check(backend, case)) == [False]


def test_rows_go_where_all_was_replaced_before(backend: Any) -> None:
    def case(ctx: Any, state: Any) -> list[Any]:
        ctx.forward(state.scale(ctx, 0.5).copy(ctx, state))
        ctx.forward(state.set_rows(ctx, rows(ctx, 3), ctx.from_ints([2])))
        return [state.sum_rows(ctx)]

    assert in_place(check(backend, case)) == [True]


def test_reads_inside_of_a_loop_count_as_reads(backend: Any) -> None:
    def case(ctx: Any, state: Any) -> list[Any]:
        square = at(ctx, state, 0, WIDTH).reshape(ctx, WIDTH, WIDTH, 1, 1)
        solved = square.solve_tri(ctx, ctx.from_floats(np.ones((1, 1, WIDTH, 2), np.float32)))
        ctx.forward(solved)
        ctx.forward(state.set_rows(ctx, rows(ctx, 3), ctx.from_ints([2])))
        return [solved, state.sum_rows(ctx)]

    assert in_place(check(backend, case)) == [False]


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.I32], ids=str)
def test_rows_of_other_types_are_put_where_they_belong(backend: Any, dtype: DType) -> None:
    with backend.new_context() as ctx:
        state = ctx.zeros(dtype, 3, 4)
        old = state.rows(ctx, ctx.from_ints([2]))
        new = ctx.empty(dtype, 3, 1)
        new.from_ints([7, 8, 9]) if dtype.is_integer else new.from_floats([7, 8, 9])
        ctx.forward(old, state.set_rows(ctx, new, ctx.from_ints([2])))
        for expected in ([0, 0, 0], [7, 8, 9]):
            ctx.compute(old)
            assert old.numpy().reshape(-1).tolist() == expected
        assert state.numpy().tolist() == [[0, 0, 0], [0, 0, 0], [7, 8, 9], [0, 0, 0]]


def test_two_states_that_become_their_sum_need_no_result_to_be_written(backend: Any) -> None:
    with backend.new_context() as ctx:
        one, other, ids = ctx.from_floats([[1.0, 2.0]]), ctx.from_floats([[3.0, 4.0]]), ctx.from_ints([0])
        both = one.rows(ctx, ids).add(ctx, other.rows(ctx, ids))
        ctx.forward(one.set_rows(ctx, both, ids), other.set_rows(ctx, both, ids)).compute()
        assert (list(one.floats()), list(other.floats())) == ([4, 6], [4, 6])
    ((compiled,),) = backend.sessions._compiled.values()
    assert not compiled.lowered.states
    assert len(compiled.lowered.rows) == 2


def test_the_cache_is_written_in_place(backend: Any) -> None:
    Step(backend).run(backend, *SHAPES[0])
    compiled = next(iter(backend.sessions._compiled.values()))[0]
    assert [state.in_place for state in compiled.lowered.states] == [True]


def test_a_state_that_is_read_before_it_is_written_is_not_written_in_place(backend: Any) -> None:
    with backend.new_context() as ctx:
        state = ctx.from_floats([1.0, 2.0, 3.0])
        ctx.compute(state.scale(ctx, 2.0).copy(ctx, state))
        assert list(state.floats()) == [2.0, 4.0, 6.0]
    compiled = next(iter(backend.sessions._compiled.values()))[0]
    assert [state.in_place for state in compiled.lowered.states] == [False]
