"""From a checked graph to an ONNX model and what must be bound to run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any

from onnx import TensorProto, helper

from backbay import DType, Graph, Node, Op
from backbay.plugin import Guards, Size, Term, term_of

from ..memory.residence import is_resident
from .element_types import Form, onnx_type
from .emitter import Emitter
from .feeds import Feeds, Sizes
from .operand import Operand
from .state_outputs import RowsOutput, StateOutput, byte_of, finish_states
from .states import State, find_states
from .views import strided

COPIES = ("Slice", "Gather", "Transpose")


@dataclass(frozen=True)
class LeafInput:
    """A leaf or weight as an input, in a form; in `shape`, or its own reversed; from a byte on."""

    name: str
    index: int
    form: Form
    shape: tuple[Term, ...] | None = None  # innermost first
    begin: Term = 0


@dataclass(frozen=True)
class PartInput:
    """A part of a packed weight as an input: where constants would be copied to a device for each session."""

    name: str
    index: int
    part: str
    kind: int
    shape: tuple[int, ...]
    begin: int


@dataclass(frozen=True)
class Lowered:
    """A model, and what is bound to its inputs and outputs; node indices are those of any graph of the structure."""

    model: Any
    leaves: tuple[LeafInput, ...]
    feeds: Feeds
    results: tuple[tuple[str, int], ...]
    states: tuple[StateOutput, ...]
    rows: tuple[RowsOutput, ...]
    parts: tuple[tuple[str, int, str], ...]  # constants handed over beside the model: file, node index, part
    resident: tuple[PartInput, ...]
    checks: tuple[tuple[int, Term, Term], ...]  # ids by node index; first row and count where they must lie
    baked: tuple[tuple[int, str], ...]  # weights that are part of the model: node index and name
    packed: tuple[tuple[int, int], ...]  # bytes that a session of this model takes for weights, by node index
    guards: Guards
    copied: frozenset[int]  # views, by index, that nodes copy

    @cached_property
    def sizes(self) -> Sizes:
        """All terms above."""
        bound = [(*(leaf.shape or ()), leaf.begin) for leaf in self.leaves]
        outputs: list[StateOutput | RowsOutput] = [*self.states, *self.rows]
        bound += [(*output.shape, output.begin) for output in outputs]
        return Sizes([term for terms in (*bound, *(limits for _, *limits in self.checks)) for term in terms])


class Lowering(Emitter):
    """Lowers node by node, in the graph's order.

    Views are lowered when they are used, at the version that their storage then has: so what is read is what was
    written before, and nothing that is written later.
    """

    def __init__(
        self,
        graph: Graph,
        kernels: Mapping[Op[Any, Any], Callable[..., str]],
        *,
        exact: bool,
        windows: bool,
        resident: bool = False,
        exported: bool = False,
        names: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(graph)
        self._names = names  # of inputs and outputs, by node index
        self.graph, self.exact = graph, exact
        self.resident = resident  # weights and caches lie on a device that is not the host
        self.exported = exported  # the model is to run where nobody knows of our buffers
        self.states = find_states(self, graph, windows=windows)
        self._parts: dict[tuple[int, str], str] = {}
        self._baked: dict[int, str] = {}
        self._packed: dict[int, int] = {}
        self._copied: set[int] = set()
        self._resident: list[PartInput] = []
        self._constants_of: dict[tuple[int, str, int | None], str] = {}
        self._leaves: dict[tuple[int, Form], LeafInput] = {}
        self._values: dict[tuple[int, int, Form], str] = {}
        self._calls = {op: op.spread(function, skip=1) for op, function in kernels.items()}

    def lower(self) -> Lowered:
        for node in self.graph.nodes:
            if node.op is not None and not node.op.view:
                self._lower_node(node)
        results = self._results()
        states, rows = finish_states(self)
        return Lowered(
            self.build(),
            tuple(self._leaves.values()),
            Feeds({name: feed for feed, name in self.feeds.items()}),
            results,
            states,
            rows,
            tuple((file, index, part) for (index, part), file in self._parts.items()),
            tuple(self._resident),
            self._checks(),
            tuple(self._baked.items()),
            tuple(self._packed.items()),
            self.symbols.guards,
            frozenset(self._copied),
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
            file = f"weight{node.index}.{part}"
            rows = node.dim(1) if expert is not None else node.size // node.dim(0)
            nbytes = rows * prod(row) * (1 if type == TensorProto.UINT8 else 4)
            name = self._constants_of[key] = f"{file}{'' if expert is None else f'.{expert}'}"
            shape, begin = (rows, *row), (expert or 0) * nbytes
            if self.resident:
                self.add_input(name, type, len(shape))
                self._resident.append(PartInput(name, node.index, part, type, shape, begin))
            else:
                self._parts[node.index, part] = file
                self.add_external(name, type, shape, file, (begin, nbytes))
        return self._constants_of[key]

    def note_packed(self, node: Node, nbytes: int) -> None:
        """Count the copy of a weight that ONNX Runtime makes for a product, as its kernels like it."""
        if not self.resident:
            self._packed[node.index] = self._packed.get(node.index, 0) + nbytes

    def value(self, node: Node, form: Form) -> str:
        """The value of a node now, in a form."""
        return self.floats(node) if form == "floats" else self._value(node, form)

    def write(self, target: Node, value: str) -> None:
        """Give the storage of a target a new version, with `value`, in the storage's dtype, where the target looks."""
        state = self._state(target)
        if state.covered_by(target):
            state.add(self.shaped(value, state.shape), None, state.elements)
        else:
            self.scatter(target, state.index(target), value, self.product(self.extents(target)))

    def scatter(self, target: Node, index: str, value: str, count: Size) -> None:
        """Give the storage a new version, with rows of `value` at the bound rows that `index`, (rows, 1), names.

        It has `count` elements.
        """
        state = self._state(target)
        rows = self.shaped(value, [state.width, -1])
        state.add(self.add_once("ScatterND", state.latest, index, rows), self.nodes[-1], count)

    def named(self, node: Node, otherwise: str) -> str:
        """What an input or output is called."""
        return self._names.get(node.index, otherwise)

    def binds(self, state: State) -> bool:
        """Whether a state's memory can be bound as input and output: where the session runs, and known to us."""
        return not self.exported and not (self.resident and not is_resident(state.node, state.node.placement))

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
        state = self.states.get(node.storage.index)
        if op.name != "view" and (state is None or state.window is None):
            self._value(node.args[0], form)  # what is added for it is not added for this one
        before = len(self.nodes)
        value = self._look(node, op, form)
        if any(made.op_type in COPIES for made in self.nodes[before:]):
            self._copied.add(node.index)
        return value

    def _look(self, node: Node, op: Op[Any, Any], form: Form) -> str:
        """A view of what its storage holds now."""
        state = self.states.get(node.storage.index)
        if state is not None and state.window is not None:
            return strided(
                self, node, self._state(node).latest, raw=False, window=(state.begin, state.elements)
            )
        if op.name == "view":
            return strided(self, node, self._value(node.storage, form), raw=form == "raw")
        return str(self._calls[op](self, *self._arguments(node, form)))

    def _leaf(self, node: Node, form: Form) -> str:
        if node.index in self.states:
            return self.shaped(self._state(node).latest, self.extents(node))
        form = "floats" if node.dtype.is_quantized and form == "stored" else form
        if (node.index, form) not in self._leaves:
            name = self.named(node, f"leaf{node.index}_{form}") + (".bytes" if form == "raw" else "")
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
            name = self.named(node, f"state{node.index}")
            shape = tuple(term_of(size) for size in state.shape)
            self._leaves[node.index, "stored"] = LeafInput(name, node.index, "stored", shape, byte_of(state))
            self.add_input(name, onnx_type(node.dtype), 2)
            state.values.append(name)
        return state

    # -- the end -----------------------------------------------------------------------------------------

    def _results(self) -> tuple[tuple[str, int], ...]:
        """Outputs that no leaf holds; those of leaves are read where they lie."""
        found: dict[int, str] = {}
        for output in self.graph.outputs:
            node = output if self.exported else output.storage
            if node.op is not None and node.op.writes is None and node.index not in found:
                name = found[node.index] = self.named(node, f"result{node.index}")
                raw = node.dtype.is_quantized
                type = TensorProto.UINT8 if raw else onnx_type(node.dtype)
                self.end(name, self._value(node, "raw" if raw else "stored"), type, node.rank)
        return tuple((name, index) for index, name in found.items())

    def _checks(self) -> tuple[tuple[int, Term, Term], ...]:
        """Each write into a window must fall into it."""
        cut = [state.window for state in self.states.values() if state.window is not None]
        found = [(ids.index, window.first.term, window.rows.term) for window in cut for ids in window.ids]
        return tuple(dict.fromkeys(found))

    def name_output(self, old: str, new: str) -> str:
        """Call a value by another name, which is returned."""
        for node in self.nodes:
            for names in (node.input, node.output):
                for i, name in enumerate(names):
                    if name == old:
                        names[i] = new
        return new

    def end(self, name: str, value: str, type: int, rank: int) -> None:
        """Make an output of a value, which may be one of another name too."""
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.add_output(name, type, rank)
