"""One structure serves many sizes, and a guard refuses the graphs that a decision does not hold for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backbay import Backend, DType, Graph, KernelBackend, KernelTable
from backbay.composites.graph_builder import build_graph
from backbay.errors import BackbayError
from backbay.graph.symbolic_sizes import Guards, Size, Symbols, evaluate_term, program


class Traced(KernelBackend):
    """A backend that is only traced with: nothing here runs."""

    contract_version = 1
    kernels: Any = KernelTable()

    def supports(self, op: Any, specs: Any) -> Any:
        from backbay.types.backend_declarations import KERNEL

        return KERNEL


@pytest.fixture
def backend() -> Iterator[Backend]:
    with Traced() as opened:
        yield opened


def step(backend: Backend, tokens: int, heads: int = 8, history: int = 32, layers: int = 2) -> Graph:
    """A step of a model with a cache, as the engine would trace it."""
    ctx = backend.new_context()
    x = ctx.empty(DType.F32, 64, tokens)
    ids = ctx.empty(DType.I64, tokens)
    positions = ctx.empty(DType.I32, tokens)
    for _ in range(layers):
        weight = ctx.empty(DType.F32, 64, 64)
        cache = ctx.empty(DType.F32, 64, 128)
        q = weight.mulmat(ctx, x).reshape(ctx, 64 // heads, heads, tokens)
        q = q.rope(ctx, positions, 64 // heads, 10000.0)
        ctx.forward(cache.set_rows(ctx, q.reshape(ctx, 64, tokens), ids))
        seen = cache.view(ctx, 0, (64 // heads, heads, history), (4 * 64 // heads, 256))
        x = seen.permute(ctx, 0, 2, 1).mulmat(ctx, q.permute(ctx, 0, 2, 1)).sum_rows(ctx)
        x = x.reshape(ctx, heads, tokens).repeat(ctx, 0, 64 // heads)
    return build_graph(ctx.recording, (*ctx.recording._roots, x), ctx.backend.supports)


def test_step_shapes_of_one_model_have_one_structure(backend: Backend) -> None:
    graphs = [step(backend, 1), step(backend, 8), step(backend, 5, history=96)]
    assert len({graph.structure_key() for graph in graphs}) == 1
    assert len({graph.sizes() for graph in graphs}) == 3
    assert len({tuple(map(len, graph.sizes())) for graph in graphs}) == 1


def test_another_number_of_layers_is_another_structure(backend: Backend) -> None:
    assert step(backend, 1).structure_key() != step(backend, 1, layers=3).structure_key()


def test_a_size_is_found_again_in_another_graph(backend: Backend) -> None:
    first, second = step(backend, 8), step(backend, 3, history=64)
    symbols = Symbols(first)
    reshape = next(node for node in first.nodes if node.op and node.op.name == "reshape")
    shape = symbols.size(reshape, "shape")
    assert isinstance(shape, tuple)
    assert [evaluate_term(size.term, first) for size in shape] == [8, 8, 8]
    assert [evaluate_term(size.term, second) for size in shape] == [8, 8, 3]
    assert symbols.guards.hold(second)


def test_coincidental_equality_is_not_relied_on(backend: Backend) -> None:
    graph = step(backend, tokens=8, heads=8)
    symbols = Symbols(graph)
    heads, tokens = _heads_and_tokens(symbols, graph)
    assert heads != tokens  # they mean different things
    assert heads.same(tokens)  # and only a guard may say that they are equal
    assert symbols.guards.hold(step(backend, tokens=8))
    assert not symbols.guards.hold(step(backend, tokens=7))


def test_a_pinned_size_refuses_reuse(backend: Backend) -> None:
    graph = step(backend, tokens=4)
    symbols = Symbols(graph)
    heads, tokens = _heads_and_tokens(symbols, graph)
    assert heads.pin() == 8
    others = [step(backend, tokens=9), step(backend, tokens=9, heads=4)]
    assert [symbols.guards.hold(other) for other in others] == [True, False]
    assert tokens.pin() == 4
    assert not symbols.guards.hold(others[0])


def test_an_answer_no_is_a_guard_too(backend: Backend) -> None:
    graph = step(backend, tokens=4)
    symbols = Symbols(graph)
    assert not _heads_and_tokens(symbols, graph)[1].same(1)
    assert symbols.guards.hold(step(backend, tokens=3))
    assert not symbols.guards.hold(step(backend, tokens=1))


@pytest.mark.parametrize(("tokens", "fits"), [(1, True), (8, True), (5, False)])
def test_broadcasting_asks_for_one_or_the_same(backend: Backend, tokens: int, fits: bool) -> None:
    graph = step(backend, tokens=1)
    symbols = Symbols(graph)
    heads, size = _heads_and_tokens(symbols, graph)
    assert size.fits(heads)
    assert symbols.guards.hold(step(backend, tokens=tokens)) is fits


def test_arithmetic_follows_the_graph(backend: Backend) -> None:
    graph, other = step(backend, tokens=6), step(backend, tokens=10)
    symbols = Symbols(graph)
    tokens = _heads_and_tokens(symbols, graph)[1]
    results = [tokens * 3 + 1, tokens - 2, tokens // 4, tokens % 4, tokens.max(8), tokens * tokens]
    assert [evaluate_term(size.term, graph) for size in results] == [19, 4, 1, 2, 8, 36]
    assert [evaluate_term(size.term, other) for size in results] == [31, 8, 2, 2, 10, 100]
    assert program([size.term for size in results])(other) == (31, 8, 2, 2, 10, 100)
    assert (symbols.constant(4) * 3 + 1).constant == 13
    assert tokens.divides(12) and tokens.at_most(6)
    assert not symbols.guards.hold(other)


def test_a_program_answers_as_terms_do_where_a_divisor_is_nothing(backend: Backend) -> None:
    graph, other = step(backend, tokens=6), step(backend, tokens=10)
    tokens = _heads_and_tokens(Symbols(graph), graph)[1]
    nothing = tokens - 10
    results = [tokens // nothing, tokens % nothing, (tokens // nothing).max(nothing - 1)]
    assert [evaluate_term(size.term, other) for size in results] == [0, 0, 0]
    assert program([size.term for size in results])(other) == (0, 0, 0)
    assert program([size.term for size in results])(graph) == tuple(
        evaluate_term(s.term, graph) for s in results
    )


def test_a_view_has_strides_and_an_offset_of_its_own(backend: Backend) -> None:
    graph, other = step(backend, tokens=6), step(backend, tokens=6, heads=4)
    symbols = Symbols(graph)
    view = next(node for node in graph.nodes if node.op and node.op.name == "view")
    stride, offset = symbols.stride(view, 1), symbols.offset(view)
    assert [evaluate_term(stride.term, g) for g in (graph, other)] == [32, 64]
    reshaped = symbols.size(
        next(node for node in graph.nodes if node.op and node.op.name == "reshape"), "shape"
    )
    assert isinstance(reshaped, tuple)
    assert program([stride.term, offset.term, *[size.term for size in reshaped]])(other) == (64, 0, 16, 4, 6)
    assert evaluate_term(offset.term, graph) == 0


def test_a_size_is_no_condition(backend: Backend) -> None:
    graph = step(backend, tokens=6)
    with pytest.raises(BackbayError, match="same"):
        bool(_heads_and_tokens(Symbols(graph), graph)[0])


def test_a_missing_size_attribute_is_named(backend: Backend) -> None:
    graph = step(backend, tokens=6)
    rope = next(node for node in graph.nodes if node.op and node.op.name == "rope")
    with pytest.raises(BackbayError, match="rope has no size attribute 'dim'"):
        Symbols(graph).size(rope, "dim")


def test_guards_without_decisions_hold_for_all(backend: Backend) -> None:
    assert Guards().hold(step(backend, tokens=2))


def _heads_and_tokens(symbols: Symbols, graph: Graph) -> tuple[Size, Size]:
    rope = next(node for node in graph.nodes if node.op and node.op.name == "rope")
    return symbols.dim(rope, 1), symbols.dim(rope, 2)


def test_the_shape_key_tells_all_shapes_apart(backend: Backend) -> None:
    one, same, other = (step(backend, tokens) for tokens in (3, 3, 4))
    assert one.shape_key() == same.shape_key()
    assert one.shape_key() != other.shape_key()
    assert one.structure_key() == other.structure_key() != one.shape_key()


def test_the_shape_key_covers_leaves_that_no_size_tells_of(backend: Backend) -> None:
    def graph(extent: int) -> Graph:
        with backend.new_context() as ctx:
            y = ctx.empty(DType.F32, extent, 2).exp(ctx)
            return build_graph(ctx.recording, (y,), backend.supports)

    assert graph(3).structure_key() == graph(4).structure_key()
    assert graph(3).sizes() == graph(4).sizes()
    assert graph(3).shape_key() != graph(4).shape_key()
