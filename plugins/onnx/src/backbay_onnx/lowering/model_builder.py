"""An ONNX model under construction: nodes in order, constants, inputs, and subgraphs of loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..session.cpu_nodes import leave_to_cpu

OPSET, IR_VERSION = 23, 11  # the first with RMSNormalization; WebGPU has no Transpose of opset 25
CONTRIB = "com.microsoft"


class ModelBuilder:
    """Adds nodes and keeps their order. The same node with the same inputs is added once.

    Values are named by numbers. All extents are symbolic: inputs and outputs only have a rank.
    """

    def __init__(self) -> None:
        self.leaves_to_cpu = False  # nodes that are added now, in a session on another device
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._known: list[dict[Any, tuple[str, ...]]] = [{}]  # a scope for each loop body
        self._constants: dict[Any, str] = {}
        self._count = 0
        self._domains = {""}

    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def add(self, op: str, *inputs: str, domain: str = "", label: str = "", **attributes: Any) -> str:
        """A node with one output; its name."""
        return self.add_many(op, *inputs, outputs=1, domain=domain, label=label, **attributes)[0]

    def add_many(
        self, op: str, *inputs: str, outputs: int, domain: str = "", label: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """A node with several outputs; their names. A node with a loop body is always added.

        Providers may leave nodes of some labels, else of some ops, to the CPU.
        """
        key = (op, inputs, outputs, domain, repr(attributes))
        plain = not any(isinstance(value, GraphProto) for value in attributes.values())
        if plain:
            for scope in reversed(self._known):
                if key in scope:
                    found: tuple[str, ...] = scope[key]
                    return found
        self._domains.add(domain)
        names = tuple(self.fresh() for _ in range(outputs))
        self._append(
            helper.make_node(op, inputs, names, name=f"{label or op}_{names[0]}", domain=domain, **attributes)
        )
        if plain:
            self._known[-1][key] = names
        return names

    def add_once(self, op: str, *inputs: str) -> str:
        """A node, also if the same one was added before."""
        name = self.fresh()
        self._append(helper.make_node(op, inputs, [name], name=f"{op}_{name}"))
        return name

    def _append(self, node: NodeProto) -> None:
        if self.leaves_to_cpu:
            leave_to_cpu(node)
        self.nodes.append(node)

    def constant(self, array: NDArray[Any]) -> str:
        array = np.asarray(array)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._constants[key] = self.fresh("c")
            self.initializers.append(numpy_helper.from_array(array, name))
        return self._constants[key]

    def raw_constant(self, type: int, shape: tuple[int, ...], raw: bytes) -> str:
        """A constant of a type that NumPy lacks."""
        key = (type, shape, raw)
        if key not in self._constants:
            name = self._constants[key] = self.fresh("c")
            self.initializers.append(helper.make_tensor(name, type, shape, raw, raw=True))
        return self._constants[key]

    def add_input(self, name: str, type: int, rank: int) -> None:
        self.inputs.append(_value(name, type, rank))

    def add_output(self, name: str, type: int, rank: int) -> None:
        self.outputs.append(_value(name, type, rank))

    def name_output(self, old: str, new: str) -> str:
        """Call a value by another name, which is returned."""
        for node in self.nodes:
            for names in (node.input, node.output):
                for i, name in enumerate(names):
                    if name == old:
                        names[i] = new
        return new

    def end(self, name: str, value: str, type: int, rank: int) -> None:
        """Make an output of a value, which may be another output as well."""
        self._append(helper.make_node("Identity", [value], [name]))
        self.add_output(name, type, rank)

    def add_external(
        self, name: str, type: int, shape: tuple[int, ...], location: str, span: tuple[int, int]
    ) -> None:
        """A constant whose bytes lie in a file beside the model."""
        self.initializers.append(external_tensor(name, type, shape, location, span))

    @contextmanager
    def body(self) -> Iterator[LoopBody]:
        """Nodes added inside of the `with` belong to a loop body, which may use all values from outside."""
        outer, self.nodes = self.nodes, []
        self._known.append({})
        body = LoopBody(self)
        try:
            yield body
        finally:
            body.nodes, self.nodes = self.nodes, outer
            self._known.pop()

    def _needed(self) -> list[NodeProto]:
        """The nodes that outputs depend on: ONNX Runtime would run the others too."""
        wanted = {value.name for value in self.outputs}
        kept: list[NodeProto] = []
        for node in reversed(self.nodes):
            if wanted.intersection(node.output):
                kept.append(node)
                wanted.update(values_read(node))
        return kept[::-1]

    def build(self) -> ModelProto:
        nodes = self._needed()
        read = {name for node in nodes for name in values_read(node)}
        constants = [constant for constant in self.initializers if constant.name in read]
        graph = helper.make_graph(nodes, "backbay", self.inputs, self.outputs, constants)
        opsets = [helper.make_opsetid(domain, 1 if domain else OPSET) for domain in sorted(self._domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="backbay")


class LoopBody:
    def __init__(self, model: ModelBuilder) -> None:
        self._model = model
        self.nodes: list[NodeProto] = []
        self._inputs: list[Any] = []

    def input(self, type: int, rank: int) -> str:
        name = self._model.fresh("b")
        self._inputs.append(_value(name, type, rank))
        return name

    def graph(self, outputs: list[tuple[str, int, int]]) -> GraphProto:
        """The finished subgraph; outputs are (value, type, rank). Call it when the body is closed."""
        names = [self._model.fresh("b") for _ in outputs]
        ends = [helper.make_node("Identity", [o[0]], [name]) for o, name in zip(outputs, names, strict=True)]
        described = [_value(name, type, rank) for name, (_, type, rank) in zip(names, outputs, strict=True)]
        return helper.make_graph([*self.nodes, *ends], self._model.fresh("body"), self._inputs, described)


def external_tensor(
    name: str, type: int, shape: tuple[int, ...], location: str, span: tuple[int, int]
) -> TensorProto:
    """A tensor whose bytes lie in a file, at `span`, (offset, length)."""
    tensor = TensorProto(name=name, data_type=type, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", str(span[0])), ("length", str(span[1]))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def values_read(node: NodeProto) -> Iterator[str]:
    """The values that a node reads, also in its loop body."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node if attribute.HasField("g") else ():
            yield from values_read(inner)


def _value(name: str, type: int, rank: int) -> Any:
    return helper.make_tensor_value_info(name, type, [None] * rank)
