"""A whole graph as one ONNX model, and how written states leave it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from onnx import GraphProto, NodeProto, TensorProto

from backbay import Graph, Op
from backbay.internals import Term, term_of

from ..session.native import DOMAIN
from .kernel_view import Lowering, LoweringSettings
from .lowered_model import LoweredModel, RowsOutput, SizeFeeds, StateOutput, onnx_type
from .model_builder import values_read
from .states import WrittenState


class ValueDependencies:
    """Which values depend on which, in the nodes of a model."""

    def __init__(self, nodes: Iterable[NodeProto]) -> None:
        self._readers: dict[str, list[NodeProto]] = {}
        for node in nodes:
            for name in dict.fromkeys(values_read(node)):
                self._readers.setdefault(name, []).append(node)

    def readers(self, name: str) -> list[NodeProto]:
        return self._readers.get(name, [])

    def reached(self, name: str, barrier: NodeProto) -> set[str]:
        """A value, and all values that depend on it without passing through the node `barrier`."""
        found, waiting = {name}, [name]
        while waiting:
            for node in self.readers(waiting.pop()):
                fresh = [value for value in node.output if value not in found] if node is not barrier else []
                found.update(fresh)
                waiting += fresh
        return found


def finish_states(b: Lowering) -> tuple[tuple[StateOutput, ...], tuple[RowsOutput, ...]]:
    """Make outputs of all written states; the other outputs are already made."""
    flow = ValueDependencies(b.nodes)
    ends = {value.name for value in b.outputs} | {state.latest for state in b.states.values()}
    chosen = [(state, _chain(flow, state, ends), _is_unread(flow, state)) for state in b.states.values()]
    wholes: list[StateOutput] = []
    rows: list[RowsOutput] = []
    for state, chain, unread in chosen:
        b.go_to(state.node)
        if chain is not None and b.binds(state):
            wholes += _in_place(b, flow, state, chain)
        elif unread and not b.settings.exported:
            rows += _as_rows(b, state)
        else:
            wholes.append(_as_whole(b, flow, state))
    return tuple(wholes), tuple(rows)


# -- in place --------------------------------------------------------------------------------------------


def _chain(flow: ValueDependencies, state: WrittenState, ends: set[str]) -> list[int] | None:
    """The versions before the last scatters, if all of these may write into the state's memory.

    The version that a scatter overwrites may only be used to compute its operands: all its readers then run before it.
    """
    first = len(state.values) - 1
    while first and state.writers[first - 1] is not None:
        first -= 1
    chain = list(range(first, len(state.values) - 1))
    if not chain or any(_overwritten(flow, state, chain, version) & ends for version in chain):
        return None
    return chain


def _overwritten(
    flow: ValueDependencies, state: WrittenState, chain: Sequence[int], version: int
) -> set[str]:
    """All values that depend on the state's memory before a scatter overwrites it, without passing through the scatter.

    Where a graph replaced the whole state, the first scatter copies the replacement into that memory.
    """
    scatter = state.writers[version]
    assert scatter is not None
    return flow.reached(state.values[version if version != chain[0] else 0], scatter)


def _in_place(
    b: Lowering, flow: ValueDependencies, state: WrittenState, chain: Sequence[int]
) -> list[StateOutput]:
    """Bind each version that the chain makes to the same memory, so that none is copied."""
    for version in chain:
        scatter = state.writers[version]
        assert scatter is not None
        if scatter.input[2] in _overwritten(flow, state, chain, version):
            _detach(b, scatter, state)
    name = b.name_output(state.latest, _out(b, state))
    names = [*[state.values[version + 1] for version in chain[:-1]], name]
    for each in names:
        b.add_output(each, onnx_type(state.node.dtype), 2)
    return [
        StateOutput(each, state.node.index, _shape(state), state.first_byte, in_place=True) for each in names
    ]


def _detach(b: Lowering, scatter: NodeProto, state: WrittenState) -> None:
    """Give a scatter rows in memory of their own: ONNX Runtime may optimize their computation to a view of the state.

    The rows are joined with a part that is empty, which no optimizer can know.
    """
    made, b.nodes = b.nodes, []
    flat = b.shaped(scatter.input[2], [-1])
    nothing = b.cast_to(b.grid(0, [0], [1]), onnx_type(state.node.dtype))
    scatter.input[2] = b.shaped(b.add("Concat", flat, nothing, axis=0), [state.width, -1])
    at = next(place for place, node in enumerate(made) if node is scatter)
    b.nodes = [*made[:at], *b.nodes, *made[at:]]


# -- as rows, or as a whole ------------------------------------------------------------------------------


def _is_unread(flow: ValueDependencies, state: WrittenState) -> bool:
    """Whether nothing reads the state after a write, and only rows were written."""
    return all(
        writer is not None and all(_is_among(node, state.writers) for node in flow.readers(value))
        for writer, value in zip(state.writers, state.values[1:], strict=True)
    )


def _is_among(node: NodeProto, nodes: Iterable[NodeProto | None]) -> bool:
    return any(node is other for other in nodes)  # == would compare all fields of nodes


def _as_rows(b: Lowering, state: WrittenState) -> list[RowsOutput]:
    b.nodes = [node for node in b.nodes if not _is_among(node, state.writers)]
    made: list[RowsOutput] = []
    for scatter, count in zip(state.writers, state.counts, strict=True):
        assert scatter is not None
        numbers, rows = (b.fresh(f"state{state.node.index}_{part}") for part in ("numbers", "rows"))
        b.end(numbers, scatter.input[1], TensorProto.INT64, 2)
        b.end(rows, scatter.input[2], onnx_type(state.node.dtype), 2)
        shape = (term_of(state.width), term_of(count // state.width))
        made.append(RowsOutput(numbers, rows, state.node.index, shape, state.first_byte))
    return made


def _as_whole(b: Lowering, flow: ValueDependencies, state: WrittenState) -> StateOutput:
    """A copy that is put into the state's memory after the run, or made in place if nothing reads the old value."""
    name, replaced = _out(b, state), state.writers[-1] is None
    in_place = b.binds(state) and replaced and not flow.readers(state.values[0])
    if replaced:
        b.end(name, state.latest, onnx_type(state.node.dtype), 2)
    else:
        b.name_output(state.latest, name)
        b.add_output(name, onnx_type(state.node.dtype), 2)
    return StateOutput(name, state.node.index, _shape(state), state.first_byte, in_place)


def _out(b: Lowering, state: WrittenState) -> str:
    return b.named(state.node, f"state{state.node.index}") + "_out"


def _shape(state: WrittenState) -> tuple[Term, ...]:
    return tuple(map(term_of, state.shape))


def lower_graph(
    graph: Graph, kernels: Mapping[Op[Any, Any], Callable[..., str]], settings: LoweringSettings
) -> LoweredModel:
    b = Lowering(graph, kernels, settings)
    owners: dict[str, int] = {}
    for node in graph.nodes:
        if node.op is not None and not node.op.view:
            begin = len(b.nodes)
            b.lower_node(node)
            owners |= {made.name: node.index for made in b.nodes[begin:]}
    results = _results(b)
    states, rows = finish_states(b)
    model = b.build()
    shape_products(model.graph)
    name_following_weights(model.graph)
    return LoweredModel(
        model,
        tuple(b.leaves.values()),
        SizeFeeds({name: feed for feed, name in b.feeds.items()}),
        results,
        states,
        rows,
        tuple((file, index, part) for (index, part), file in b.parts.items()),
        tuple(b.resident_parts),
        _checks(b),
        tuple(b.distinct),
        tuple(b.baked.items()),
        tuple(b.packed.items()),
        b.symbols.guards,
        frozenset(b.copied),
        owners,
    )


def _products(graph: GraphProto) -> list[NodeProto]:
    return [node for node in graph.node if node.domain == DOMAIN and node.op_type == "Products"]


def _names_extents(node: NodeProto) -> bool:
    """Whether a node reshapes, and a 0 in its shape is an extent; without `allowzero` it would stand for one of its operand."""
    return node.op_type == "Reshape" and any(given.name == "allowzero" for given in node.attribute)


def shape_products(graph: GraphProto) -> None:
    """Let native products make the shape to which they are reshaped: a node less, which takes microseconds."""
    flow, made = ValueDependencies(graph.node), {name for node in graph.node for name in node.output}
    ends = {value.name for value in graph.output}
    merged: set[str] = set()
    for product in _products(graph):
        (name,), readers = product.output, flow.readers(product.output[0])
        if len(readers) == 1 and _names_extents(readers[0]) and name not in ends:
            shape = readers[0].input[1]
            if shape not in made:
                product.input.extend(["", shape])
                product.output[0] = readers[0].output[0]
                merged.add(readers[0].name)
    kept = [node for node in graph.node if node.name not in merged]
    del graph.node[:]
    graph.node.extend(kept)


def name_following_weights(graph: GraphProto) -> None:
    """Tell native products which weights are read next, so that they fetch some meanwhile."""
    made = {name for node in graph.node for name in node.output}
    for product, following in pairwise(_products(graph)):
        name = following.input[0]
        # The rows of an expert that is not the first begin elsewhere.
        begins = all(given.i == 0 for given in following.attribute if given.name == "first")
        if begins and name not in made and name != product.input[0]:
            product.input[2:3] = [name]


def _results(b: Lowering) -> tuple[tuple[str, int], ...]:
    """Outputs that no leaf holds; leaves are read where they lie."""
    found: dict[int, str] = {}
    for output in b.graph.outputs:
        node = output if b.settings.exported else output.storage
        if node.op is not None and node.op.writes is None and node.index not in found:
            name = found[node.index] = b.named(node, f"result{node.index}")
            b.go_to(node)
            raw = node.dtype.is_quantized
            type = TensorProto.UINT8 if raw else onnx_type(node.dtype)
            b.end(name, b.value(node, "raw" if raw else "stored"), type, node.rank)
    return tuple((name, index) for index, name in found.items())


def _checks(b: Lowering) -> tuple[tuple[int, Term, Term], ...]:
    """Each write into a window must fall into it."""
    cut = [state.window for state in b.states.values() if state.window is not None]
    found = [(ids.index, window.first.term, window.rows.term) for window in cut for ids in window.ids]
    return tuple(dict.fromkeys(found))
