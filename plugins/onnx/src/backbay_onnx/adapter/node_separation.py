"""A model whose nodes are apart from each other, so that a provider takes or refuses each for itself."""

from __future__ import annotations

from onnx import ModelProto, NodeProto, ValueInfoProto, shape_inference

from ..lowering.model_builder import values_read

INNER = "inner."  # names of nodes in loop bodies begin so


def separate_nodes(model: bytes) -> bytes:
    """The model with what its nodes make as outputs, and with inputs where other nodes read it; constants stay."""
    whole = ModelProto.FromString(model)
    typed, graph = shape_inference.infer_shapes(whole, data_prop=True).graph, whole.graph
    types = {value.name: value for value in (*typed.value_info, *typed.output)}
    varying = {value.name for value in graph.input}
    made: list[str] = []
    for node in graph.node:
        if not varying.isdisjoint(values_read(node)):
            made += [name for name in node.output if name in types]
            varying |= {*node.output} - {""}
    read = {name for node in graph.node for name in values_read(node)}
    renamed = {name: f"{name}.made" for name in made}
    for node in graph.node:
        node.output[:] = [renamed.get(name, name) for name in node.output]
        _name_inner(node)
    kept = [value for value in graph.output if value.name not in renamed]
    outputs = [_renamed(types[old], new) for old, new in renamed.items()]
    graph.input.extend(types[name] for name in made if name in read)
    del graph.output[:]
    graph.output.extend([*kept, *outputs])
    apart: bytes = whole.SerializeToString()
    return apart


def _name_inner(node: NodeProto) -> None:
    for attribute in node.attribute:
        for inner in attribute.g.node if attribute.HasField("g") else ():
            inner.name = INNER + inner.output[0]
            _name_inner(inner)


def _renamed(value: ValueInfoProto, name: str) -> ValueInfoProto:
    return ValueInfoProto(name=name, type=value.type)
