"""A model under construction as kernels see it: the value of each node at this point of the graph, and its sizes as symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from backbay import DType, Graph, Node, Op
from backbay.internals import Size, term_of
from backbay_native import NativeCode

from ..session.layer_assignment import ON_HOST, LayerAssignment
from ..session.native import NO_NATIVE
from .emitter import Emitter
from .lowered_model import Form, LeafInput, WeightPartInput, onnx_type
from .states import WrittenState, find_states, ids_are_checked
from .views import strided_view


class Operand:
    """An operand of a kernel, as a value of the ONNX model: its shape is reversed, dimension 0 is the last axis."""

    def __init__(self, b: Lowering, node: Node, form: Form) -> None:
        self._b, self.node, self.dtype, self.rank = b, node, node.dtype, node.rank
        self._form: Form = form

    def dim(self, n: int) -> Size:
        """The extent of a dimension; 1 beyond the rank."""
        return self._b.symbols.dim(self.node, n)

    def dims(self, rank: int | None = None) -> list[Size]:
        return [self.dim(n) for n in range(self.rank if rank is None else rank)]

    def is_empty(self) -> bool:
        """Whether it has no elements; a guard makes sure that this holds for every graph of the model."""
        return any(size.same(0) for size in self.dims() if size.constant is None or size.constant == 0)

    @property
    def stored(self) -> str:
        """The value in its own dtype, quantized types as float32."""
        return self._b.stored(self.node)

    @property
    def floats(self) -> str:
        return self._b.floats(self.node)

    @property
    def value(self) -> str:
        """The value in the wanted form, for ops that only move elements."""
        return self._b.value(self.node, self._form)

    def across(self, size: Size) -> Size:
        """An extent of dimension 0 in the wanted form: rows of a quantized type may be bytes."""
        return size // self.dtype.block_size * self.dtype.type_size if self._form == "raw" else size

    def of_rank(self, rank: int) -> str:
        """The value as float32 with exactly so many axes; dimensions beyond are 1."""
        return self._b.ranked(self.floats, self.rank, rank)


BITS: dict[int, int] = {TensorProto.FLOAT: 32, TensorProto.UINT8: 8, TensorProto.UINT4: 4}
COPIES = ("Slice", "Gather", "Transpose")


@dataclass(frozen=True)
class LoweringSettings:
    """What a lowering may assume of the device, and of the runs of its model."""

    exact: bool  # activations stay float32
    usual: bool  # caches may be bound in part, and on a GPU no row is written twice: each run checks that it fits
    layers: LayerAssignment = ON_HOST
    native: NativeCode = NO_NATIVE  # for ops that the CPU runs
    exported: bool = False  # the model is to run without this backend's buffers
    standard: bool = False  # it has ops of the ONNX standard alone, where they have a form in these
    plain: bool = False  # of these, those that all engines know: no norms, Gelu, Softplus, Softmax, Tile, rotary embeddings
    foreign: bool = False  # the engine is not ONNX Runtime's CPU: it gets nodes that this one computes badly
    names: Mapping[int, str] = field(default_factory=dict)  # of inputs and outputs, by node index


class Lowering(Emitter):
    """Lowers node by node, in the graph's order.

    A view is lowered when an op reads it, from the version that its storage then has: it shows all earlier writes and
    no later one.
    """

    def __init__(
        self, graph: Graph, kernels: Mapping[Op[Any, Any], Callable[..., str]], settings: LoweringSettings
    ) -> None:
        super().__init__(graph, plain=settings.plain)
        self.settings, self._on_cpu = settings, True
        self.states = find_states(self, graph, windows=settings.usual)
        self.parts: dict[tuple[int, str], str] = {}
        self.baked: dict[int, str] = {}
        self.packed: dict[int, int] = {}
        self.copied: set[int] = set()
        self.distinct: dict[int, None] = {}
        self.resident_parts: list[WeightPartInput] = []
        self._constants_of: dict[tuple[int, str, tuple[int, ...], int | None], str] = {}
        self.leaves: dict[tuple[int, Form], LeafInput] = {}
        self._values: dict[tuple[int, int, Form], str] = {}
        self._kernels = kernels

    # -- for kernels -------------------------------------------------------------------------------------

    @property
    def native(self) -> NativeCode:
        """Native code, if the CPU runs the op."""
        return self.settings.native if self._on_cpu else NO_NATIVE

    @property
    def resident(self) -> bool:
        """Whether a device runs the op that has memory of its own."""
        return self.settings.layers.device.has_memory and not self._on_cpu

    def has(self, op: str) -> bool:
        """Whether what runs the node has a kernel for an ONNX op: others would go to the CPU, with copies of their operands."""
        return self._on_cpu or op not in self.settings.layers.device.provider.missing

    def stored(self, node: Node) -> str:
        """The value of a node now, in its own dtype; quantized types as float32."""
        return self._value(node, "stored")

    def floats(self, node: Node) -> str:
        """The value of a node now, as float32. Weights are converted once, not in each run."""
        if node.storage.kind == "parameter" and node.dtype in (DType.F16, DType.BF16):
            return self._value(node, "floats")
        return self.cast(self.stored(node), node.dtype, DType.F32)

    def in_order(self, node: Node) -> str:
        """The elements of a node in its own dtype, in any shape and rank: of a view of a whole storage, the storage."""
        storage = node.storage
        if storage.index not in self.states and storage.dtype is node.dtype and self.is_in_order(node):
            elements, all_elements = (self.product(self.extents(each)) for each in (node, storage))
            node = storage if elements.same(all_elements) else node
        return self.before_shaping(self.stored(node))

    def weight_part(
        self, node: Node, part: str, type: int, row: tuple[int, ...], expert: int | None = None
    ) -> str:
        """A part of a packed weight, of shape `row` for each row of one expert, or of the whole weight."""
        key = (node.index, part, row, expert)
        if key not in self._constants_of:
            leaf = node.leaf
            assert leaf is not None
            self.baked[node.index] = leaf.name
            file = f"weight{node.index}.{part}"
            rows = node.dim(1) if expert is not None else node.size // node.dim(0)
            nbytes = rows * prod(row) * BITS[type] // 8
            name = self._constants_of[key] = self.fresh(f"{file}.")
            shape, begin = (rows, *row), (expert or 0) * nbytes
            if self.settings.layers.is_resident(node):
                self.add_input(name, type, len(shape))
                self.resident_parts.append(WeightPartInput(name, node.index, part, type, shape, begin))
            else:
                self.parts[node.index, part] = file
                self.add_external(name, type, shape, file, (begin, nbytes))
        return self._constants_of[key]

    def note_packed(self, node: Node, nbytes: int) -> None:
        """Count the copy of a weight that ONNX Runtime makes in the layout of its kernels."""
        if not self.settings.layers.is_resident(node):
            self.packed[node.index] = self.packed.get(node.index, 0) + nbytes

    def value(self, node: Node, form: Form) -> str:
        """The value of a node now, in a form."""
        return self.floats(node) if form == "floats" else self._value(node, form)

    def write(self, target: Node, value: str, dtype: DType) -> None:
        """Give the storage of a target a new version, with `value`, of a dtype, in the place of the target."""
        state = self.state_of(target)
        if state.covered_by(target):
            whole = self.cast(self.shaped(value, state.shape), dtype, target.dtype)
            state.add(whole, None, state.elements)
        else:
            index = state.index(target)
            self.scatter(target, index, value, dtype, self.product(self.extents(target)))

    def scatter(
        self, target: Node, index: str, value: str, dtype: DType, count: Size, ids: Node | None = None
    ) -> None:
        """Give the storage of a target a new version, with rows of `value` at the bound rows in `index`, (rows, 1).

        `value`, of a dtype, has `count` elements. `index` was made of `ids`, if it may name a row twice.
        """
        state = self.state_of(target)
        rows = self.cast(self.shaped(value, [state.width, -1]), dtype, target.dtype)
        if ids is not None and self.resident:
            if self.settings.usual and ids_are_checked(ids):
                self.distinct[ids.index] = None
            else:
                rows = self._whole_rows(state, index, rows, count // state.width)
        state.add(self.add_once("ScatterND", state.latest, index, rows), self.nodes[-1], count)

    def _whole_rows(self, state: WrittenState, index: str, rows: str, count: Size) -> str:
        """The rows, of which those for one place are the same: a GPU writes them side by side, and would mix others."""
        places = self.shaped(index, [-1])
        nobody = self.filled(np.array(0, np.int64), [state.shape[1]])
        writers = self.add("ScatterElements", nobody, places, self.count(count), axis=0, reduction="max")
        return self.add("Gather", rows, self.add("Gather", writers, places, axis=0), axis=0)

    def named(self, node: Node, otherwise: str) -> str:
        """The name of an input or output: the caller's, if there is one."""
        return self.settings.names.get(node.index, otherwise)

    def binds(self, state: WrittenState) -> bool:
        """Whether the memory of a state can be bound as input and output: it must be ours, on the session's device."""
        if self.settings.exported:
            return False
        layers, node = self.settings.layers, state.node
        return layers.runs_on_cpu(node) or layers.lies_on_device(node, node.placement)

    def state_of(self, target: Node) -> WrittenState:
        """The state that a target is part of, which becomes an input when it is first needed."""
        state = self.states[target.storage.index]
        if not state.values:
            node = state.node
            name = self.named(node, f"state{node.index}")
            shape = tuple(term_of(size) for size in state.shape)
            self.leaves[node.index, "stored"] = LeafInput(name, node.index, "stored", shape, state.first_byte)
            self.add_input(name, onnx_type(node.dtype), 2)
            state.values.append(name)
        return state

    # -- nodes -------------------------------------------------------------------------------------------

    def go_to(self, node: Node) -> None:
        """Add nodes from now on where an op runs, or where the ops run that write a leaf."""
        self._on_cpu = self.settings.layers.runs_on_cpu(node)
        self.leaves_to_cpu = self._on_cpu and not self.settings.layers.device.is_host

    def lower_node(self, node: Node) -> None:
        """Run the kernel of a node that is no view."""
        op = node.op
        assert op is not None
        self.go_to(node)
        result = self._lowered(node, op, "stored")
        if op.writes is None:
            made = node.dtype if op.moves or not node.dtype.is_float else DType.F32
            self._values[node.index, 0, "stored"] = self.cast(result, made, node.dtype)

    def _lowered(self, node: Node, op: Op[Any, Any], form: Form) -> Any:
        arguments = [Operand(self, value, form) if isinstance(value, Node) else value for value in node.args]
        for position in op.sizes:
            arguments[position] = self.symbols.size(node, position)
        return op.spread(self._kernels[op], skip=1)(self, *arguments)

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
            self._value(node.args[0], form)  # first, so that its nodes do not count as a copy by this view
        before = len(self.nodes)
        value = self._look(node, op, form)
        if any(made.op_type in COPIES for made in self.nodes[before:]):
            self.copied.add(node.index)
        return value

    def _look(self, node: Node, op: Op[Any, Any], form: Form) -> str:
        """The value of a view of its storage now."""
        state = self.states.get(node.storage.index)
        if state is not None and state.window is not None:
            return strided_view(
                self, node, self.state_of(node).latest, raw=False, window=(state.begin, state.elements)
            )
        if op.name == "view":
            return strided_view(self, node, self._value(node.storage, form), raw=form == "raw")
        return str(self._lowered(node, op, form))

    def _leaf(self, node: Node, form: Form) -> str:
        if node.index in self.states:
            return self.shaped(self.state_of(node).latest, self.extents(node))
        form = "floats" if node.dtype.is_quantized and form == "stored" else form
        if (node.index, form) not in self.leaves:
            name = self.named(node, f"leaf{node.index}_{form}") + (".bytes" if form == "raw" else "")
            self.leaves[node.index, form] = LeafInput(name, node.index, form)
            type = (
                TensorProto.UINT8
                if form == "raw"
                else onnx_type(DType.F32 if form == "floats" else node.dtype)
            )
            self.add_input(name, type, node.rank)
        return self.leaves[node.index, form].name
