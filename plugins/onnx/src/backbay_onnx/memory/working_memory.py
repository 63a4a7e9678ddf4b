"""The working memory of a graph, from the declarations of its kernels, without a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backbay import DType, Graph, Node, Op

Measure = Callable[[Node], int]
"""The bytes that a kernel works in for a node, beside its operands and its result."""


def nothing(node: Node) -> int:
    """For kernels that make nothing but their result."""
    return 0


def results(node: Node) -> int:
    """For kernels that make one more float32 value of the result's size."""
    return 4 * node.size


def receivers(node: Node) -> int:
    """For kernels that make one more float32 value of the first operand's size."""
    return 4 * node.operands[0].size


def times(count: int, measure: Measure) -> Measure:
    """`count` values of the measured size."""
    return lambda node: count * measure(node)


def never(node: Node) -> bool:
    """For graphs whose kernels compute in float32 alone."""
    return False


# -- the peak of a graph -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeValue:
    """The value of a node in a run, or its copy as float32."""

    index: int
    as_floats: bool = False

    def nbytes(self, node: Node) -> int:
        return 4 * node.size if self.as_floats or node.dtype.is_quantized else node.nbytes


@dataclass
class OpMemory:
    """An op: the values that it is the first to need, its working memory, and the values that it is the last to read."""

    index: int
    work: Measure
    begin: list[tuple[int, NodeValue]] = field(default_factory=list)  # numbered through the graph
    end: list[int] = field(default_factory=list)


class PeakMemoryCalculator:
    """The most bytes that some nodes of a graph hold at one time. When values begin and end is the same for all of a structure.

    `declared` is the working memory of each op. `copied` are the views, by index, that a lowering copies: other views
    take nothing. Neither do results that are bound, unless another op reads them. `reads_halves` says whether the kernel
    of a node reads numbers of 16 bits as they are stored; others read a copy as float32.
    """

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        declared: Mapping[Op[Any, Any], Measure],
        copied: Collection[int],
        reads_halves: Callable[[Node], bool] = never,
    ) -> None:
        of_ops = {
            node.index: OpMemory(node.index, _work(node, declared[node.op]))
            for node in nodes
            if node.op is not None and not node.op.view
        }
        first: dict[NodeValue, int] = {}
        last: dict[NodeValue, int] = {}
        for index in list(of_ops):
            for value in _values(graph.nodes[index], copied, reads_halves):
                first.setdefault(value, index)
                last[value] = index
        bound = {NodeValue(node.storage.index) for node in graph.outputs}
        held = [value for value in first if value not in bound or last[value] != value.index]
        for number, value in enumerate(held):
            of_ops[first[value]].begin.append((number, value))
            of_ops[last[value]].end.append(number)
        self._ops, self._count = list(of_ops.values()), len(held)

    def of(self, graph: Graph) -> int:
        held = most = 0
        nodes = graph.nodes
        sizes = [0] * self._count
        for op in self._ops:
            for number, value in op.begin:
                sizes[number] = nbytes = value.nbytes(nodes[value.index])
                held += nbytes
            most = max(most, held + op.work(nodes[op.index]))
            for number in op.end:
                held -= sizes[number]
        return most


def _values(node: Node, copied: Collection[int], reads_halves: Callable[[Node], bool]) -> Iterator[NodeValue]:
    """The operands and the result of an op, as far as they take memory."""
    assert node.op is not None
    for operand in node.operands:
        looked_at = operand
        while looked_at.op is not None and looked_at.op.view:
            if looked_at.index in copied:
                yield NodeValue(looked_at.index)
            looked_at = looked_at.args[0]
        if looked_at.storage.op is not None:
            yield NodeValue(looked_at.storage.index)
        as_floats = _is_half(operand) and not (node.op.moves or reads_halves(node))
        if as_floats and operand.storage.kind != "parameter":
            yield NodeValue(operand.index, as_floats=True)
    if node.op.writes is None:
        yield NodeValue(node.index)


def _is_half(node: Node) -> bool:
    return node.dtype in (DType.F16, DType.BF16)


def _work(node: Node, declared: Measure) -> Measure:
    """Kernels compute in float32: a result of 16 bits is made of one of 32."""
    assert node.op is not None
    if not _is_half(node) or node.op.moves:
        return declared
    return lambda node: declared(node) + 4 * node.size
