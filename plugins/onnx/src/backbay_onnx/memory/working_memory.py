"""How much ONNX Runtime works in while a graph runs, by what its lowering makes: nothing is run to know it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from backbay import DType, Graph, Node, Op, ops

Bytes = Callable[[Node], int]


@dataclass(frozen=True)
class Value:
    """What a node is while the graph runs, or its copy as float32."""

    index: int
    as_floats: bool = False

    def nbytes(self, node: Node) -> int:
        return 4 * node.size if self.as_floats or node.dtype.is_quantized else node.nbytes


@dataclass
class Step:
    """What an op begins to hold, works in, and is the last to read."""

    index: int
    work: Bytes | None
    begin: list[tuple[int, Value]] = field(default_factory=list)  # numbered through all of a graph
    end: list[int] = field(default_factory=list)


class Needs:
    """The most bytes that a graph holds at one time: when values begin and end is the same in all of a structure.

    `copied` are the views, by index, that a lowering copies; the others take nothing. Neither do results that are
    bound, unless more is made of them.
    """

    def __init__(self, graph: Graph, copied: Collection[int]) -> None:
        steps = {n.index: Step(n.index, _work(n)) for n in graph.nodes if n.op is not None and not n.op.view}
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        for index in list(steps):
            for value in _values(graph.nodes[index], copied):
                first.setdefault(value, index)
                last[value] = index
        bound = {Value(node.storage.index) for node in graph.outputs}
        held = [value for value in first if value not in bound or last[value] != value.index]
        for number, value in enumerate(held):
            steps[first[value]].begin.append((number, value))
            steps[last[value]].end.append(number)
        self._steps, self._count = list(steps.values()), len(held)

    def of(self, graph: Graph) -> int:
        held = most = 0
        nodes = graph.nodes
        sizes = [0] * self._count
        for step in self._steps:
            for number, value in step.begin:
                sizes[number] = nbytes = value.nbytes(nodes[value.index])
                held += nbytes
            most = max(most, held + step.work(nodes[step.index]) if step.work else held)
            for number in step.end:
                held -= sizes[number]
        return most


def _values(node: Node, copied: Collection[int]) -> Iterator[Value]:
    """What an op reads and makes, as far as it takes memory."""
    assert node.op is not None
    for operand in node.operands:
        looked_at = operand
        while looked_at.op is not None and looked_at.op.view:
            if looked_at.index in copied:
                yield Value(looked_at.index)
            looked_at = looked_at.args[0]
        if looked_at.storage.op is not None:
            yield Value(looked_at.storage.index)
        if _is_half(operand) and not node.op.moves and operand.storage.kind != "parameter":
            yield Value(operand.index, as_floats=True)
    if node.op.writes is None:
        yield Value(node.index)


def _is_half(node: Node) -> bool:
    return node.dtype in (DType.F16, DType.BF16)


# -- what a kernel makes besides its result ----------------------------------------------------------------


def _work(node: Node) -> Bytes | None:
    assert node.op is not None
    work = WORK.get(node.op)
    if not _is_half(node) or node.op.moves:
        return work
    return _result if work is None else lambda node: work(node) + _result(node)


def _result(node: Node) -> int:
    return 4 * node.size


def _results(times: float) -> Bytes:
    """So many values as large as the result."""
    return lambda node: int(times * 4 * node.size)


def _receivers(times: float) -> Bytes:
    """So many values as large as the first operand."""
    return lambda node: int(times * 4 * node.operands[0].size)


def _gated(node: Node) -> int:
    """What is multiplied with the second operand, if there is one."""
    return 4 * node.size if len(node.operands) > 1 else 0


def _tiled(node: Node) -> int:
    """The second operand, where ONNX does not repeat it by itself."""
    second = node.operands[1]
    fits = all(second.dim(n) in (1, node.dim(n)) for n in range(node.rank))
    return 0 if fits else 4 * node.size


def _sorted(node: Node) -> int:
    """Numbers without NaN and where those were; values, positions of 64 bits, and what sorts them."""
    return 2 * 4 * node.operands[0].size + 6 * 4 * node.size


def _product(node: Node) -> int:
    """Of quantized weights: activations rounded, and what is added to or as a second half."""
    weight, x = node.operands
    return 4 * node.size + 2 * x.size if _is_packed(weight) else 0


def _is_packed(weight: Node) -> bool:
    return weight.dtype.is_quantized and weight.kind == "parameter"


def _product_of_experts(node: Node) -> int:
    """The rows of one expert, all that came out of each, and where it is put."""
    weight, _, ids = node.operands
    return 2 * 4 * node.size + 6 * weight.dim(0) * ids.size


def _rows(node: Node) -> int:
    """Of a quantized weight codes in halves, then numbers."""
    return 3 * 4 * node.size if _is_packed(node.operands[0]) else 0


def _turned(node: Node) -> int:
    """Angles of 64 bits."""
    dim: int = node.args[2]
    return 24 * node.operands[1].size * dim


def _attention(node: Node) -> int:
    """Scores before and behind a step; queries and results in another order."""
    query, key = node.operands[:2]
    return 2 * 4 * query.dim(1) * query.dim(2) * key.dim(2) + 4 * (query.size + node.size)


def _windows(node: Node) -> int:
    """As many values as a kernel has taps."""
    x, weight = node.operands
    return 2 * 4 * node.size * weight.dim(0) + 4 * x.size


def _scanned(node: Node) -> int:
    """Shares of each head, and all that is scanned, in the order of tokens."""
    state, x = node.operands[:2]
    return 4 * 4 * state.dim(0) * x.dim(1) * x.dim(2) * x.dim(3) + 2 * 4 * (x.size + node.size)


def _written(node: Node) -> int:
    """What is written, in the dtype that is written to, and apart from what it was made of."""
    source = node.operands[0 if node.op is ops.copy else 1]
    return 2 * source.size * node.dtype.type_size


WORK: Mapping[Op[Any, Any], Bytes] = {
    **dict.fromkeys((ops.sigmoid, ops.silu, ops.quick_gelu), _results(2)),
    **dict.fromkeys((ops.relu, ops.gelu), _gated),
    ops.swiglu: _results(3),
    **dict.fromkeys((ops.add, ops.sub, ops.mul, ops.div), _tiled),
    **dict.fromkeys((ops.mulmat, ops.mulmat_full_prec), _product),
    **dict.fromkeys((ops.top_k, ops.argsort), _sorted),
    **dict.fromkeys((ops.variance, ops.stddev), _receivers(2)),
    **dict.fromkeys((ops.copy, ops.set_rows), _written),
    ops.mulmat_id: _product_of_experts,
    ops.layer_norm: _results(1),
    ops.l2_norm: _receivers(1),
    ops.rows: _rows,
    ops.conv1d_dw: _windows,
    ops.im2col: _results(2),
    ops.interpolate: _results(2),
    ops.rope: _turned,
    ops.ssm_conv: _results(2),
    ops.ssm_scan: _scanned,
    ops.diag: _results(1),
    ops.solve_tri: lambda node: 4 * (6 * node.operands[0].size + 8 * node.size),
    ops.scaled_dot_product_attention: _attention,
}
