"""Kept contexts: which are dropped, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import backbay
from backbay import Backend, NoMemoryError
from backbay_engine.steps.context_cache import ContextCache


@dataclass(eq=False)
class Shape:
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def backend() -> Iterator[Backend]:
    with backbay.open(None, "cpu_ref") as opened:
        yield opened


def keeping(backend: Backend, count: int, limit: int = 3) -> tuple[ContextCache[Shape], list[Shape]]:
    kept = ContextCache[Shape](backend, limit)
    return kept, [kept.add(n, Shape) for n in range(count)]


def test_the_least_recently_used_is_dropped_beyond_the_limit(backend: Backend) -> None:
    kept, (first, second, third) = keeping(backend, 3)
    assert kept.get(0) is first
    kept.add(3, Shape)
    assert [each.closed for each in (first, second, third)] == [False, True, False]
    assert kept.get(1) is None


def test_all_but_one_are_dropped_beyond_the_reserved_memory(backend: Backend) -> None:
    kept, shapes = keeping(backend, 2)
    kept.reserve(nodes=10)
    kept.keep_within()
    assert not any(shape.closed for shape in shapes)
    with backend.new_context() as ctx:
        ctx.zeros(backbay.DType.F32, 100)
        kept.keep_within()
    assert [shape.closed for shape in shapes] == [True, False]


def test_memory_that_contexts_share_may_grow_once(backend: Backend) -> None:
    """A shape may take more than a larger one. Dropping contexts would not give that memory back, step after step."""
    kept, _ = keeping(backend, 2)
    kept.reserve(nodes=10)
    with backend.new_context() as shared:
        shared.zeros(backbay.DType.F32, 100)
        kept.keep_within()
        assert [kept.get(n) is not None for n in range(2)] == [False, True]
        kept.add(2, Shape)
        kept.keep_within()
    assert [kept.get(n) is not None for n in range(3)] == [False, True, True]


@pytest.mark.parametrize("needed", [0, 1, 2])
def test_where_memory_is_short_contexts_give_theirs_up(backend: Backend, needed: int) -> None:
    kept, shapes = keeping(backend, 2)

    def work() -> str:
        if sum(shape.closed for shape in shapes) < needed:
            raise MemoryError
        return "done"

    assert kept.run(work) == "done"
    assert sum(shape.closed for shape in shapes) == needed


def test_what_does_not_fit_alone_is_refused(backend: Backend) -> None:
    kept, shapes = keeping(backend, 2)

    def work() -> None:
        raise MemoryError("no room")

    with pytest.raises(NoMemoryError, match="no room"):
        kept.run(work)
    assert all(shape.closed for shape in shapes)
