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
def diag(g: Lowering, x: Operand) -> str:
    """Repeat the rows, and cut off both triangles: a Where would lose the sign of zeros."""
    rank = max(x.rank, 2)
    sizes = [x.dim(0), x.dim(0), *x.dims(rank)[2:]]
    if x.is_empty():  # ONNX Runtime expands no 1 to 0
        return g.zeros(sizes)
    value = g.expanded(x.of_rank(rank), sizes)
    return _triangle(g, x, _triangle(g, x, value, "lower-diag"), "upper-diag")


@kernel(ops.tri, working_memory=nothing)
def tri(g: Lowering, x: Operand, kind: str) -> str:
    rank = max(x.rank, 2)
    return g.ranked(_triangle(g, x, x.of_rank(rank), kind), rank, x.rank)


def _triangle(g: Lowering, x: Operand, value: str, kind: str) -> str:
    """A triangle of a value that was made of x."""
    if x.is_empty():  # CUDA refuses it
        return value
    upper, k = TRIANGLES[kind]
    return g.add("Trilu", value, g.scalar(k), upper=upper)


def _diagonal(g: Lowering, x: Operand) -> str:
    """A mask of the diagonal of an (n, n) matrix."""
    line = g.count(x.dim(0))
    return g.add("Equal", line, g.add("Unsqueeze", line, g.ints(1)))


def _rows_of_solution(node: Node) -> int:
    """The triangle, its diagonal and pivots; the solution, and its copies in a loop."""
    return 4 * (6 * node.operands[0].size + 8 * node.size)


@kernel(ops.solve_tri, working_memory=_rows_of_solution)
def solve_tri(
    g: Lowering, a: Operand, b: Operand, lower: bool = True, left: bool = True, unit_diagonal: bool = False
) -> str:
    """Row by row in a loop, each from the rows before it; an upper triangle is solved from the last row."""
    if b.is_empty():
        return g.zeros(b.dims())
    matrix, right = a.of_rank(4), b.of_rank(4)
    sizes = b.dims(4)
    on = _diagonal(g, a)
    if not left:  # the transposed problem has its matrix on the left
        matrix, right = (g.transposed(value, 0, 1, 3, 2) for value in (matrix, right))
        sizes, lower = [sizes[1], sizes[0], *sizes[2:]], not lower
    strict = _triangle(g, a, matrix, "lower" if lower else "upper")
    diagonal = g.add("Where", on, matrix, g.number(0))
    pivots = g.add("ReduceSum", diagonal, g.ints(-1), keepdims=1)  # (.., n, 1)
    blank = g.zeros(sizes)
    order = g.grid(0 if lower else a.dim(0) - 1, [a.dim(0)], [1 if lower else -1])
    line = g.add("Unsqueeze", g.count(a.dim(0)), g.ints(1))  # (n, 1)
    with g.body() as body:
        turn, going = body.input(TensorProto.INT64, 0), body.input(TensorProto.BOOL, 0)
        known = body.input(TensorProto.FLOAT, 4)
        here = g.add("Gather", order, g.add("Unsqueeze", turn, g.ints(0)))  # (1,)
        row, goal, pivot = (g.add("Gather", value, here, axis=2) for value in (strict, right, pivots))
        rest = g.add("Sub", goal, g.add("MatMul", row, known))
        rest = rest if unit_diagonal else g.add("Div", rest, pivot)
        after = g.add("Where", g.add("Equal", line, here), rest, known)
    graph = body.graph([(going, TensorProto.BOOL, 0), (after, TensorProto.FLOAT, 4)])
    always = g.constant(np.array(True))
    solved = g.add("Loop", g.scalar(a.dim(0)), always, blank, body=graph)
    solved = solved if left else g.transposed(solved, 0, 1, 3, 2)
    return g.ranked(solved, 4, b.rank)
