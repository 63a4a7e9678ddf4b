"""Matrix products, dense, quantized and by expert."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from onnx import TensorProto

from backbay import DType, Node, ops

from ..lowering.kernel_view import Lowering
from ..lowering.model_builder import CONTRIB
from ..lowering.operand import Operand
from ..memory.working_memory import Measure
from .kernel_table import kernel
from .quantized import is_packed, packed_product


def rows_product(b: Lowering, x: str, w: str) -> str:
    """x times w transposed, over the last two axes; leading axes broadcast."""
    return b.add("FusedMatMul", x, w, domain=CONTRIB, transB=1)


def product(b: Lowering, w: Operand, x: Operand) -> str:
    if x.dim(0).same(0):  # ONNX Runtime leaves a product of no terms unwritten
        return b.zeros([w.dim(1), *x.dims()[1:]])
    rank = max(x.rank, 2)
    value = x.of_rank(rank)
    if w.dim(2).same(1) and w.dim(3).same(1):
        y = packed_product(b, w, value, rank) or rows_product(b, value, w.of_rank(2))
        return b.ranked(y, rank, max(x.rank, 1))
    if w.dim(2).fits(x.dim(2)) and w.dim(3).fits(x.dim(3)):
        rank = max(x.rank, w.rank)
        y = rows_product(b, x.of_rank(rank), w.of_rank(w.rank))
        return b.ranked(y, rank, max(x.rank, 1))
    return _grouped(b, w, x)


def _grouped(b: Lowering, w: Operand, x: Operand) -> str:
    """Consecutive slices of x share one slice of w: they become more rows of x, or one more axis."""
    n, (k, m, xa, xb) = w.dim(1), x.dims(4)
    wa, wb = w.dim(2), w.dim(3)
    if wb.fits(xb):
        y = rows_product(b, b.shaped(x.floats, [k, m * (xa // wa), wa, xb]), w.of_rank(4))
    else:
        value = b.shaped(x.floats, [k, m * (xa // wa), wa, xb // wb, wb])
        y = rows_product(b, value, b.shaped(w.floats, [k, n, wa, 1, wb]))
    return b.shaped(y, [n, *x.dims()[1:]])


def _rounded_activations(node: Node) -> int:
    """Of quantized weights: rounded activations, and a second product, which is added."""
    weight, x = node.operands
    return 4 * node.size + 2 * x.size if is_packed(weight) else 0


def native_codes(dtypes: Collection[DType]) -> Measure:
    """Of native code: columns in codes, which products of weights of some dtypes read."""

    def measure(node: Node) -> int:
        weight, x = node.operands
        return 2 * x.size if is_packed(weight) and weight.dtype in dtypes else _rounded_activations(node)

    return measure


def _rows_of_experts(node: Node) -> int:
    """The rows of one expert, the products of all experts, and the places of their rows."""
    weight, _, ids = node.operands
    return 2 * 4 * node.size + 6 * weight.dim(0) * ids.size


@kernel(ops.mulmat, working_memory=_rounded_activations)
def mulmat(b: Lowering, w: Operand, x: Operand) -> str:
    return product(b, w, x)


@kernel(ops.mulmat_full_prec, working_memory=_rounded_activations)
def mulmat_full_prec(b: Lowering, w: Operand, x: Operand) -> str:
    return product(b, w, x)


@kernel(ops.mulmat_id, working_memory=_rows_of_experts)
def mulmat_id(b: Lowering, w: Operand, x: Operand, ids: Operand) -> str:
    """One product for each expert with the tokens that chose it; its rows are scattered into the result."""
    k, n, used, tokens = w.dim(0), w.dim(1), ids.dim(0), ids.dim(1)
    places = used * tokens
    if n.same(0) or places.same(0):
        return b.zeros([n, used, tokens])
    one_row = x.dim(1).same(1) and not used.same(1)
    chosen = b.cast_to(b.shaped(ids.stored, [places]), TensorProto.INT64)
    rows = b.shaped(x.floats, [k, tokens if one_row else places])
    found: list[str] = []
    made: list[str] = []
    for expert in range(w.dim(2).pin()):
        index = b.add("NonZero", b.add("Equal", chosen, b.ints(expert)))  # (1, places of this expert)
        index = b.shaped(index, [-1])
        row = b.add("Div", index, b.scalar(used)) if one_row else index
        taken = b.add("Gather", rows, row)
        made.append(packed_product(b, w, taken, 2, expert) or rows_product(b, taken, _expert(b, w, expert)))
        found.append(index)
    blank = b.zeros([n, places])
    if not made:
        return b.shaped(blank, [n, used, tokens])
    index = b.shaped(_joined(b, found), [1, -1])
    y = b.add("ScatterND", blank, index, _joined(b, made))
    return b.shaped(y, [n, used, tokens])


def _joined(b: Lowering, pieces: list[str]) -> str:
    """Pieces, any of which may be empty, one after the other."""
    return b.add("Concat", *pieces, axis=0, label="ConcatPieces")


def _expert(b: Lowering, w: Operand, expert: int) -> str:
    return b.add("Gather", w.of_rank(3), b.constant(np.array(expert, np.int64)))
