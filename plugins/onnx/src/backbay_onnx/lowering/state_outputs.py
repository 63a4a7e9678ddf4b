"""How what was written leaves a model: into the state where it lies, as rows to be put there, or as a new whole.

ONNX Runtime does not know that an output lies where an input does. A model is therefore only given a state's memory
to write to if nothing can read there too late, in whatever order its nodes run and however they were fused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx import NodeProto, TensorProto

from backbay.plugin import Term, term_of

from .element_types import onnx_type
from .lowered import RowsOutput, StateOutput
from .lowering import Lowering
from .model_builder import names_read
from .states import State


class Flow:
    """Which values follow from which, in the nodes of a model."""

    def __init__(self, nodes: Iterable[NodeProto]) -> None:
        self._readers: dict[str, list[NodeProto]] = {}
        for node in nodes:
            for name in dict.fromkeys(names_read(node)):
                self._readers.setdefault(name, []).append(node)

    def readers(self, name: str) -> list[NodeProto]:
        return self._readers.get(name, [])

    def reached(self, name: str, barrier: NodeProto) -> set[str]:
        """The value, and all that follow from it other than through one node."""
        found, waiting = {name}, [name]
        while waiting:
            for node in self.readers(waiting.pop()):
                fresh = [value for value in node.output if value not in found] if node is not barrier else []
                found.update(fresh)
                waiting += fresh
        return found


def finish_states(b: Lowering) -> tuple[tuple[StateOutput, ...], tuple[RowsOutput, ...]]:
    """Make outputs of what was written into all states; the other outputs stand already."""
    flow = Flow(b.nodes)
    ends = {value.name for value in b.outputs} | {state.latest for state in b.states.values()}
    chosen = [(state, _chain(flow, state, ends), _is_unread(flow, state)) for state in b.states.values()]
    wholes: list[StateOutput] = []
    rows: list[RowsOutput] = []
    for state, chain, unread in chosen:
        if chain is not None and b.binds(state):
            wholes += _in_place(b, flow, state, chain)
        elif unread and not b.settings.exported:
            rows += _as_rows(b, state)
        else:
            wholes.append(_as_whole(b, flow, state))
    return tuple(wholes), tuple(rows)


# -- in place --------------------------------------------------------------------------------------------


def _chain(flow: Flow, state: State, ends: set[str]) -> list[int] | None:
    """The versions from which scatters lead to the last one, if all of them may work in the state's memory.

    What a scatter overwrites must lead nowhere but into it: whoever reads that then runs before it.
    """
    first = len(state.values) - 1
    while first and state.writers[first - 1] is not None:
        first -= 1
    chain = list(range(first, len(state.values) - 1))
    if not chain or any(_overwritten(flow, state, chain, version) & ends for version in chain):
        return None
    return chain


def _overwritten(flow: Flow, state: State, chain: Sequence[int], version: int) -> set[str]:
    """What follows from the values that lie in the state's memory when a version is written over, else than by that.

    A chain that does not begin with the first version first copies into that memory what a graph put in its place.
    """
    scatter = state.writers[version]
    assert scatter is not None
    return flow.reached(state.values[version if version != chain[0] else 0], scatter)


def _in_place(b: Lowering, flow: Flow, state: State, chain: Sequence[int]) -> list[StateOutput]:
    """Each version that a scatter of the chain makes is bound to the same memory, so that none is copied."""
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


def _detach(b: Lowering, scatter: NodeProto, state: State) -> None:
    """Give a scatter rows in memory of their own: what seems to compute them may be optimized to a look at the state.

    Nobody can know that the second part is empty.
    """
    made, b.nodes = b.nodes, []
    flat = b.shaped(scatter.input[2], [-1])
    nothing = b.cast_to(b.grid(0, [0], [1]), onnx_type(state.node.dtype))
    scatter.input[2] = b.shaped(b.add("Concat", flat, nothing, axis=0), [state.width, -1])
    at = next(place for place, node in enumerate(made) if node is scatter)
    b.nodes = [*made[:at], *b.nodes, *made[at:]]


# -- as rows, or as a whole ------------------------------------------------------------------------------


def _is_unread(flow: Flow, state: State) -> bool:
    """Whether nothing reads the state once it was written to, and only rows were written."""
    return all(
        writer is not None and all(_is_among(node, state.writers) for node in flow.readers(value))
        for writer, value in zip(state.writers, state.values[1:], strict=True)
    )


def _is_among(node: NodeProto, nodes: Iterable[NodeProto | None]) -> bool:
    return any(node is other for other in nodes)  # comparing nodes would compare all that they say


def _as_rows(b: Lowering, state: State) -> list[RowsOutput]:
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


def _as_whole(b: Lowering, flow: Flow, state: State) -> StateOutput:
    """A copy that is put into the state's memory after the run, or made there if nothing reads what was there."""
    name, replaced = _out(b, state), state.writers[-1] is None
    in_place = b.binds(state) and replaced and not flow.readers(state.values[0])
    if replaced:
        b.end(name, state.latest, onnx_type(state.node.dtype), 2)
    else:
        b.name_output(state.latest, name)
        b.add_output(name, onnx_type(state.node.dtype), 2)
    return StateOutput(name, state.node.index, _shape(state), state.first_byte, in_place)


def _out(b: Lowering, state: State) -> str:
    return b.named(state.node, f"state{state.node.index}") + "_out"


def _shape(state: State) -> tuple[Term, ...]:
    return tuple(map(term_of, state.shape))
