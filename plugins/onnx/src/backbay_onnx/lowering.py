"""From a checked graph to an ONNX model and what must be bound to run it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from onnx import TensorProto, helper

from backbay import DType, Graph, Node
from backbay.structure import Guards, Term, term_of

from .element_types import Form, onnx_type
from .emitting import Emitter
from .feeds import Feeds
from .operand import Operand
from .states import State, find_states
from .table import kernel
from .views import strided


@dataclass(frozen=True)
class LeafInput:
    """A leaf or weight as an input, in a form; in `shape`, or its own reversed."""

    name: str
    index: int
    form: Form
    shape: tuple[Term, ...] | None = None  # innermost first


@dataclass(frozen=True)
class StateOutput:
    """The last value of a written state. `in_place`: nothing reads what it was before."""

    name: str
    index: int
    shape: tuple[Term, ...]
    in_place: bool


@dataclass(frozen=True)
class Lowered:
    """A model, and what is bound to its inputs and outputs; node indices are those of any graph of the structure."""

    model: Any
    leaves: tuple[LeafInput, ...]
    feeds: Feeds
    results: tuple[tuple[str, int], ...]
    states: tuple[StateOutput, ...]
    parts: tuple[tuple[str, int, str], ...]  # constants handed over beside the model: file, node index, part
    checks: tuple[
        tuple[int, Term], ...
    ]  # ids, by node index, and what they must stay below for this model to serve
    baked: tuple[tuple[int, str], ...]  # weights that are part of the model: node index and name
    guards: Guards


class Lowering(Emitter):
    """Lowers node by node, in the graph's order.

    Views are lowered when they are used, at the version that their storage then has: so what is read is what was
    written before, and nothing that is written later.
    """

    def __init__(self, graph: Graph, *, exact: bool, prefixes: bool) -> None:
        super().__init__(graph)
        self.graph, self.exact = graph, exact
        self.states = find_states(self, graph, prefixes=prefixes)
        self._parts: dict[tuple[int, str], str] = {}
        self._baked: dict[int, str] = {}
        self._constants_of: dict[tuple[int, str, int | None], str] = {}
        self._leaves: dict[tuple[int, Form], LeafInput] = {}
        self._values: dict[tuple[int, int, Form], str] = {}
        self._calls = {op: op.spread(function, skip=1) for op, function in kernel.items()}

    def lower(self) -> Lowered:
        for node in self.graph.nodes:
            if node.op is not None and not node.op.view:
                self._lower_node(node)
        results = self._results()
        states = tuple(self._finish(state) for state in self.states.values())
        return Lowered(
            self.build(),
            tuple(self._leaves.values()),
            Feeds({name: feed for feed, name in self.feeds.items()}),
            results,
            states,
            tuple((file, index, part) for (index, part), file in self._parts.items()),
            self._checks(),
            tuple(self._baked.items()),
            self.symbols.guards,
        )

    # -- what kernels ask for ----------------------------------------------------------------------------

    def stored(self, node: Node) -> str:
        """The value of a node now, in its own dtype; quantized types as float32."""
        return self._value(node, "stored")

    def floats(self, node: Node) -> str:
        """The value of a node now, as float32. Weights are converted once, not in each run."""
        if node.storage.kind == "parameter" and node.dtype in (DType.F16, DType.BF16):
            return self._value(node, "floats")
        return self.cast(self.stored(node), node.dtype, DType.F32)

    def weight_part(
        self, node: Node, part: str, type: int, row: tuple[int, ...], expert: int | None = None
    ) -> str:
        """A part of a packed weight, for each of its rows; of one expert, or all rows of all."""
        key = (node.index, part, expert)
        if key not in self._constants_of:
            leaf = node.leaf
            assert leaf is not None
            self._baked[node.index] = leaf.name
            file = self._parts.setdefault((node.index, part), f"weight{node.index}.{part}")
            rows = node.dim(1) if expert is not None else node.size // node.dim(0)
            nbytes = rows * prod(row) * (1 if type == TensorProto.UINT8 else 4)
            name = self._constants_of[key] = f"{file}{'' if expert is None else f'.{expert}'}"
            self.add_external(name, type, (rows, *row), file, ((expert or 0) * nbytes, nbytes))
        return self._constants_of[key]

    def value(self, node: Node, form: Form) -> str:
        """The value of a node now, in a form."""
        return self.floats(node) if form == "floats" else self._value(node, form)

    def write(self, target: Node, value: str) -> None:
        """Give the storage of a target a new version, with `value`, in the storage's dtype, where the target looks."""
        state = self._state(target)
        if state.covered_by(target):
            state.values.append(self.shaped(value, state.shape))
        else:
            self.scatter(target, state.index(target), value)

    def scatter(self, target: Node, index: str, value: str) -> None:
        """Give the storage a new version, with rows of `value` at the bound rows that `index`, (rows, 1), names."""
        state = self._state(target)
        rows = self.shaped(value, [state.width, -1])
        state.values.append(self.add("ScatterND", state.latest, index, rows))

    def state_of(self, target: Node) -> State:
        return self._state(target)

    # -- nodes -------------------------------------------------------------------------------------------

    def _lower_node(self, node: Node) -> None:
        op = node.op
        assert op is not None
        result = self._calls[op](self, *self._arguments(node, "stored"))
        if op.writes is None:
            made = node.dtype if op.moves or not node.dtype.is_float else DType.F32
            self._values[node.index, 0, "stored"] = self.cast(result, made, node.dtype)

    def _arguments(self, node: Node, form: Form) -> list[Any]:
        assert node.op is not None
        return [
            self.symbols.size(node, position) if position in node.op.sizes else self._argument(value, form)
            for position, value in enumerate(node.args)
        ]

    def _argument(self, value: Any, form: Form) -> Any:
        return Operand(self, value, form) if isinstance(value, Node) else value

    # -- values ------------------------------------------------------------------------------------------

    def _value(self, node: Node, form: Form) -> str:
        state = self.states.get(node.storage.index)
        version = max(len(state.values) - 1, 0) if state is not None else 0
        key = (node.index, version, form)
        if key not in self._values:
            self._values[key] = self._read(node, form)
        return self._values[key]

    def _read(self, node: Node, form: Form) -> str:
        op = node.op
        if op is None:
            return self._leaf(node, form)
        if op.writes is not None:
            return self._value(node.args[op.writes], form)
        if op.name == "view":
            state = self.states.get(node.storage.index)
            cut = state.elements if state is not None and state.prefix is not None else None
            return strided(self, node, self._value(node.storage, form), raw=form == "raw", prefix=cut)
        return str(self._calls[op](self, *self._arguments(node, form)))

    def _leaf(self, node: Node, form: Form) -> str:
        if node.index in self.states:
            state = self._state(node)
            return state.latest if state.prefix is not None else self.shaped(state.latest, self.extents(node))
        form = "floats" if node.dtype.is_quantized and form == "stored" else form
        if (node.index, form) not in self._leaves:
            name = f"leaf{node.index}_{form}"
            self._leaves[node.index, form] = LeafInput(name, node.index, form)
            type = (
                TensorProto.UINT8
                if form == "raw"
                else onnx_type(DType.F32 if form == "floats" else node.dtype)
            )
            self.add_input(name, type, node.rank)
        return self._leaves[node.index, form].name

    def _state(self, target: Node) -> State:
        state = self.states[target.storage.index]
        if not state.values:
            node = state.node
            name = f"state{node.index}"
            shape = tuple(term_of(size) for size in state.shape)
            self._leaves[node.index, "stored"] = LeafInput(name, node.index, "stored", shape)
            self.add_input(name, onnx_type(node.dtype), 2)
            state.values.append(name)
        return state

    # -- the end -----------------------------------------------------------------------------------------

    def _results(self) -> tuple[tuple[str, int], ...]:
        """Outputs that no leaf holds; those of leaves are read where they lie."""
        found: dict[int, str] = {}
        for output in self.graph.outputs:
            node = output.storage
            if node.op is not None and node.index not in found:
                name = found[node.index] = f"result{node.index}"
                raw = node.dtype.is_quantized
                type = TensorProto.UINT8 if raw else onnx_type(node.dtype)
                self._end(name, self._value(node, "raw" if raw else "stored"), type, node.rank)
        return tuple((name, index) for index, name in found.items())

    def _checks(self) -> tuple[tuple[int, Term], ...]:
        """Each write into a prefix must fall into it."""
        cut = [state.prefix for state in self.states.values() if state.prefix is not None]
        found = [(ids.index, prefix.rows.term) for prefix in cut for ids in prefix.ids]
        return tuple(dict.fromkeys(found))

    def _finish(self, state: State) -> StateOutput:
        """Bind the last version to the state's own memory where that is safe by construction.

        ONNX Runtime does not know that the output is the input's memory. It is safe only if one node alone, the
        scatter that makes the last version, takes the first one; otherwise the output is copied back after the run.
        """
        first, last = state.values[0], state.latest
        readers = [node for node in self.nodes if first in node.input]
        in_place = all(node.op_type == "ScatterND" and node.output[0] == last for node in readers)
        name = f"state{state.node.index}_out"
        scatter = next(
            (node for node in self.nodes if last in node.output and node.op_type == "ScatterND"), None
        )
        if scatter is None:
            self._end(name, last, onnx_type(state.node.dtype), 2)
        else:
            self._rename(last, name)
            self.add_output(name, onnx_type(state.node.dtype), 2)
        return StateOutput(name, state.node.index, tuple(map(term_of, state.shape)), in_place)

    def _rename(self, old: str, new: str) -> None:
        for node in self.nodes:
            for names in (node.input, node.output):
                for i, name in enumerate(names):
                    if name == old:
                        names[i] = new

    def _end(self, name: str, value: str, type: int, rank: int) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.add_output(name, type, rank)
