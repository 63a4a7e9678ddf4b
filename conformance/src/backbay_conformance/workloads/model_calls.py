"""The calls that a model makes, read into the lab of a run: different calls only, and none that is too large to be judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from backbay import BackbayError, Backend
from backbay.internals import open_regular
from backbay.plugin import Graph, Node, Plan

from ..checks.node_calls import kind_of, op_of
from ..suite.extensions import PROVIDERS
from ..suite.lab import Lab
from .exported_program import trace_program
from .graph_tracer import GraphTracer
from .onnx_graph import trace_onnx

LIKE = "like"  # the profile of a model's own calls
MOST_ELEMENTS, MOST_PRODUCTS = 1 << 26, 1 << 32
"""Larger calls are left out: their formula would take minutes, or gigabytes in float64."""
MOST_NODES = 1 << 20  # of a traced graph


@dataclass
class ModelCallCounts:
    """The number of a model's different calls by op, and what of the model is not judged.

    left_out   descriptions of calls that are too large
    nodes      the number of a graph's nodes that depend on its inputs
    unmapped   of these, the number of those that are no calls of the contract, by name and reason
    """

    calls: dict[str, int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    nodes: int = 0
    unmapped: dict[str, int] = field(default_factory=dict)


def read_model_calls(lab: Lab, path: Path) -> ModelCallCounts:
    """Read the different calls of a model into the lab: of the steps of a GGUF file, or of the graph of another."""
    with open_regular(path) as file:
        begin = file.read(4)
    read = ModelCallCounts()
    nodes = _step_nodes(lab, path) if begin == b"GGUF" else _graph_nodes(lab, path, begin, read)
    found = {_key(node): node for node in nodes}
    lab.model_calls = {}
    for node in found.values():
        op = op_of(node)
        if _is_too_large(node):
            read.left_out.append(kind_of(op, [node.args[i] for i in op.operands]))
        else:
            lab.model_calls.setdefault(op.name, []).append(node)
    read.calls = {op: len(nodes) for op, nodes in lab.model_calls.items()}
    return read


def _graph_nodes(lab: Lab, path: Path, begin: bytes, read: ModelCallCounts) -> list[Node]:
    trace = trace_program if begin.startswith(b"PK") else trace_onnx
    with lab.fresh(alloc_memory=False) as backend, backend.new_context(MOST_NODES) as ctx:
        tracer = GraphTracer(ctx)
        trace(tracer, path)
    read.nodes, read.unmapped = tracer.count, dict(tracer.unmapped.most_common())
    if not tracer.calls:
        names = ", ".join(read.unmapped) or "it has only views and constants"
        raise BackbayError(f"no node of {path} is a call of the contract: {names}")
    return tracer.calls


def _step_nodes(lab: Lab, path: Path) -> Iterator[Node]:
    if not PROVIDERS:
        raise BackbayError(
            "a GGUF model needs a package that knows models, and none is installed; in a clone of backbay: pip install ./apps/engine"
        )
    for graph in _graphs(lab, path):
        for node in graph.nodes:
            if node.op is not None and (not node.is_view or node.op.writes is not None):
                yield node


def _graphs(lab: Lab, path: Path) -> list[Graph]:
    graphs: list[Graph] = []

    def record(backend: Backend) -> Backend:
        compile_graph = backend.compile

        def compile_recorded(graph: Graph) -> Plan:
            graphs.append(graph)
            return compile_graph(graph)

        vars(backend)["compile"] = compile_recorded
        return backend

    for steps in PROVIDERS:
        with lab.through(record).fresh(path, alloc_memory=False) as backend:
            steps(backend)
    if not graphs:
        raise BackbayError(f"no step of {path} was compiled")
    return graphs


def _key(node: Node) -> tuple[Any, ...]:
    """Equal for calls that differ only in data, and in the offsets of their views."""

    def described(value: Any) -> Any:
        if isinstance(value, Node):
            return int(value.dtype), value.shape, value.strides
        return tuple(map(described, value)) if type(value) is tuple else repr(value)

    return op_of(node).name, *map(described, node.args)


INNER: dict[str, Callable[[list[Node]], int]] = {
    "mulmat": lambda operands: operands[0].dim(0),
    "mulmat_full_prec": lambda operands: operands[0].dim(0),
    "mulmat_id": lambda operands: operands[0].dim(0),
    "conv2d": lambda operands: prod(operands[0].shape[:3]),
    "scaled_dot_product_attention": lambda operands: operands[1].dim(2),
}
"""The multiplications for each element of a result."""


def _is_too_large(node: Node) -> bool:
    operands = node.operands
    products = prod(node.shape) * INNER.get(op_of(node).name, len)(operands)
    return sum(operand.size for operand in operands) > MOST_ELEMENTS or products > MOST_PRODUCTS
