"""Diagonals, triangles and triangular systems."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from backbay import Node, ops

from ..lowering.kernel_view import Lowering, Operand
from ..memory.working_memory import nothing, results
from .kernel_table import kernel

TRIANGLES = {"upper-diag": (1, 0), "upper": (1, 1), "lower-diag": (0, 0), "lower": (0, -1)}


@kernel(ops.diag, working_memory=results)
def diag(lowering: Lowering, x: Operand) -> str:
    """Repeat the rows, and cut off both triangles: a Where would lose the sign of zeros."""
    rank = max(x.rank, 2)
    value = lowering.expanded(x.of_rank(rank), [x.dim(0), x.dim(0), *x.dims(rank)[2:]])
    return _triangle(lowering, x, _triangle(lowering, x, value, "lower-diag"), "upper-diag")


@kernel(ops.tri, working_memory=nothing)
def tri(lowering: Lowering, x: Operand, kind: str) -> str:
    rank = max(x.rank, 2)
    return lowering.ranked(_triangle(lowering, x, x.of_rank(rank), kind), rank, x.rank)


def _triangle(lowering: Lowering, x: Operand, value: str, kind: str) -> str:
    """A triangle of a value that was made of x."""
    if x.is_empty():  # CUDA refuses it
        return value
    upper, k = TRIANGLES[kind]
    return lowering.add("Trilu", value, lowering.scalar(k), upper=upper)


def _diagonal(lowering: Lowering, x: Operand) -> str:
    """A mask of the diagonal of an (n, n) matrix."""
    line = lowering.count(x.dim(0))
    return lowering.add("Equal", line, lowering.add("Unsqueeze", line, lowering.ints(1)))


def _rows_of_solution(node: Node) -> int:
    """The triangle, its diagonal and pivots; the solution, and its copies in a loop."""
    return 4 * (6 * node.operands[0].size + 8 * node.size)


@kernel(ops.solve_tri, working_memory=_rows_of_solution)
def solve_tri(
    lowering: Lowering,
    a: Operand,
    b: Operand,
    lower: bool = True,
    left: bool = True,
    unit_diagonal: bool = False,
) -> str:
    """Row by row in a loop, each from the rows before it; an upper triangle is solved from the last row."""
    if b.is_empty():
        return lowering.zeros(b.dims())
    matrix, right = a.of_rank(4), b.of_rank(4)
    sizes = b.dims(4)
    on = _diagonal(lowering, a)
    if not left:  # the transposed problem has its matrix on the left
        matrix, right = (lowering.transposed(value, 0, 1, 3, 2) for value in (matrix, right))
        sizes, lower = [sizes[1], sizes[0], *sizes[2:]], not lower
    strict = _triangle(lowering, a, matrix, "lower" if lower else "upper")
    diagonal = lowering.add("Where", on, matrix, lowering.number(0))
    pivots = lowering.add("ReduceSum", diagonal, lowering.ints(-1), keepdims=1)  # (.., n, 1)
    blank = lowering.zeros(sizes)
    order = lowering.grid(0 if lower else a.dim(0) - 1, [a.dim(0)], [1 if lower else -1])
    line = lowering.add("Unsqueeze", lowering.count(a.dim(0)), lowering.ints(1))  # (n, 1)
    with lowering.body() as body:
        turn, going, known = (
            body.input(TensorProto.INT64, 0),
            body.input(TensorProto.BOOL, 0),
            body.input(1, 4),
        )
        here = lowering.add("Gather", order, lowering.add("Unsqueeze", turn, lowering.ints(0)))  # (1,)
        row, goal, pivot = (lowering.add("Gather", value, here, axis=2) for value in (strict, right, pivots))
        rest = lowering.add("Sub", goal, lowering.add("MatMul", row, known))
        rest = rest if unit_diagonal else lowering.add("Div", rest, pivot)
        after = lowering.add("Where", lowering.add("Equal", line, here), rest, known)
    graph = body.graph([(going, TensorProto.BOOL, 0), (after, TensorProto.FLOAT, 4)])
    always = lowering.constant(np.array(True))
    solved = lowering.add("Loop", lowering.scalar(a.dim(0)), always, blank, body=graph)
    solved = solved if left else lowering.transposed(solved, 0, 1, 3, 2)
    return lowering.ranked(solved, 4, b.rank)
