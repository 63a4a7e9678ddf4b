"""Diagonals, triangles and triangular systems."""

from __future__ import annotations

from typing import Literal

import numpy as np

from backbay import DType, Node, ops

from ..library.abi import Ptr
from ..lowering.builder import GgmlBuilder, kernel
from .index import same_rows_of_slices

TRIANGLES = {"upper-diag": 0, "upper": 1, "lower-diag": 2, "lower": 3}  # of enum ggml_tri_type


@kernel(ops.diag)
def diag(g: GgmlBuilder, x: Node) -> Ptr:
    return g.call("diag", g.floats(x))


@kernel(ops.tri)
def tri(g: GgmlBuilder, x: Node, kind: Literal["upper-diag", "upper", "lower-diag", "lower"]) -> Ptr:
    return g.call("tri", g.floats(x), TRIANGLES[kind])


@kernel(ops.solve_tri)
def solve_tri(
    g: GgmlBuilder, a: Node, b: Node, lower: bool = True, left: bool = True, unit_diagonal: bool = False
) -> Ptr:
    """ggml solves lower triangles from the left only: other systems are transposed or reversed, and so is the answer."""
    matrix, sides = g.floats(a), g.floats(b)
    if unit_diagonal:
        triangle = g.call("tri", matrix, TRIANGLES["lower" if lower else "upper"])
        matrix = g.call("add", triangle, g.constant(np.eye(a.dim(0), dtype=np.float32), DType.F32))
    if not left:
        matrix, sides, lower = g.transposed(matrix), g.transposed(sides), not lower
    if not lower:
        matrix, sides = _reversed(g, g.transposed(_reversed(g, g.transposed(matrix)))), _reversed(g, sides)
    solved = g.call("solve_tri", matrix, sides, True, True, False)
    solved = solved if lower else _reversed(g, solved)
    return solved if left else g.transposed(solved)


def _reversed(g: GgmlBuilder, x: Ptr) -> Ptr:
    ne = tuple(x.ne)
    places = g.constant(np.arange(ne[1])[::-1].astype(np.int32), DType.I32)
    return g.reshape(same_rows_of_slices(g, g.reshape(x, ne[0], ne[1], ne[2] * ne[3]), places), *ne)
